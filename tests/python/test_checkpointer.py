"""The life of a checkpointer: saving, waiting, keeping, closing."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater import _core, lifecycle, session
from support import unsettled, wait_until

Make = Callable[..., sw.Checkpointer]
STATE = {"t": torch.arange(10.0)}


def test_every(make: Make) -> None:
    ckpt = make(every=3, keep=0)
    saved = [step for step in range(10) if ckpt.save(step, STATE) is not None]
    ckpt.wait()
    assert saved == ckpt.steps() == [0, 3, 6, 9]


def test_keep_and_keep_every(make: Make) -> None:
    ckpt = make(keep=2, keep_every=4)
    for step in range(1, 11):
        ckpt.save(step, STATE)
    ckpt.wait()
    assert ckpt.steps() == [4, 8, 9, 10]
    assert ckpt.latest_step() == 10


def test_pin_and_delete(make: Make) -> None:
    ckpt = make(keep=1)
    ckpt.save(1, STATE)
    ckpt.wait()
    ckpt.pin(1)
    for step in (2, 3):
        ckpt.save(step, STATE)
    ckpt.wait()
    assert ckpt.steps() == [1, 3]
    ckpt.delete(1)
    assert ckpt.steps() == [3]
    with pytest.raises(sw.NotFoundError, match="no checkpoint of step 1"):
        ckpt.delete(1)


def test_no_steps_yet(make: Make) -> None:
    ckpt = make()
    assert ckpt.steps() == []
    assert ckpt.latest_step() is None


def test_snapshot_tells_how_it_stands(make: Make) -> None:
    ckpt = make()
    snapshot = ckpt.save(7, {"t": torch.ones(100_000), "s": torch.ones(2)})
    assert snapshot is not None
    snapshot.wait("staged", timeout=60)
    snapshot.wait("durable", timeout=60)
    snapshot.wait(timeout=60)
    assert snapshot.step == 7
    assert snapshot.error is None
    progress, stats = snapshot.progress, snapshot.stats
    assert (progress.level, progress.failed) == ("committed", False)
    assert progress.total_bytes == progress.staged_bytes == progress.written_bytes > 400_000
    assert stats.tensor_count == 2
    assert stats.at_once_bytes == 8
    assert 0 < stats.staged_seconds <= stats.durable_seconds <= stats.committed_seconds
    assert stats.save_seconds > 0
    assert "step=7 committed" in repr(snapshot)


def test_snapshot_outlives_its_checkpointer(make: Make) -> None:
    with make() as ckpt:
        snapshot = ckpt.save(1, STATE)
    assert snapshot is not None
    snapshot.fence()
    snapshot.wait()
    assert snapshot.progress.level == "committed"


def test_busy_engine_skips_if_asked(make: Make) -> None:
    ckpt = make(on_busy="skip", in_flight=1, pool="2MiB", keep=0)

    def saved_of(steps: range) -> list[int]:
        return [step for step in steps if ckpt.save(step, {"t": torch.ones(1_000_000)}) is not None]

    with unsettled():  # the first stays in flight
        saved = saved_of(range(1, 10))
    assert saved == [1]
    saved += saved_of(range(10, 30))
    ckpt.wait()
    assert saved == ckpt.steps()
    assert 1 in saved
    assert len(saved) < 29
    assert ckpt.stats.snapshots_skipped == 29 - len(saved)


def test_busy_engine_waits_by_default(make: Make) -> None:
    ckpt = make(in_flight=1, pool="2MiB", keep=0)
    waited = 0.0
    for step in itertools.count(1):
        snapshot = ckpt.save(step, {"t": torch.ones(1_000_000)})
        assert snapshot is not None
        waited += snapshot.stats.busy_seconds
        if step >= 5 and waited > 0:  # on a busy machine each may be done before the next comes
            break
    ckpt.wait()
    assert ckpt.steps() == list(range(1, step + 1))


def test_wait_times_out_with_what_is_missing(make: Make) -> None:
    ckpt = make(pool="2MiB")
    with unsettled():
        snapshot = ckpt.save(1, {"t": torch.ones(3_000_000)})
        assert snapshot is not None
        for waiting in (snapshot.wait, ckpt.wait, ckpt.wait_copied):
            with pytest.raises(TimeoutError, match="step 1 is not committed") as caught:
                waiting(timeout=0)
            assert isinstance(caught.value, sw.TimeoutError)
    ckpt.wait(timeout=60)


def test_wait_times_out_even_if_the_step_is_committed_a_moment_later(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is asked as well, and gets a second more. It must not answer for the caller's time."""
    ckpt = make()
    wait = sw.Snapshot.wait

    def too_late(snapshot: sw.Snapshot, *_: object) -> None:
        wait(snapshot)
        raise sw.TimeoutError("it was not committed in time")

    monkeypatch.setattr(sw.Snapshot, "wait", too_late)
    for step, waiting in enumerate((ckpt.wait, ckpt.wait_copied), start=1):
        ckpt.save(step, STATE)
        with pytest.raises(sw.TimeoutError, match="it was not committed in time"):
            waiting(timeout=0)


def test_close_gives_up_after_its_time(make: Make, path: Path) -> None:
    ckpt = make(pool="2MiB")
    with unsettled():
        snapshot = ckpt.save(1, {"t": torch.ones(3_000_000)})
        with pytest.raises(sw.Error, match="1"):
            ckpt.close(timeout=0)
    assert snapshot is not None
    assert snapshot.progress.failed
    assert opened_once_free(make).restore({"t": torch.ones(3_000_000)}) is None


def opened_once_free(make: Make) -> sw.Checkpointer:
    """close() that has given up leaves the directory locked until the last write has ended."""
    made: list[sw.Checkpointer] = []

    def is_free() -> bool:
        with contextlib.suppress(sw.BusyError):
            made.append(make())
        return bool(made)

    wait_until(is_free, "the lock is free")
    return made[0]


def test_snapshot_whose_save_is_interrupted_is_committed_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, calls = session.Session._join_in_flight, []

    def interrupted(self: session.Session, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) == 2:  # the engine has it, nobody else yet
            raise KeyboardInterrupt
        join(self, *arguments)

    ckpt = make()
    monkeypatch.setattr(session.Session, "_join_in_flight", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ckpt.save(1, STATE)
    ckpt.save(2, STATE)
    ckpt.wait(timeout=60)
    assert ckpt.steps() == [1, 2]


def test_exception_in_the_block_is_not_masked_and_work_is_committed(make: Make, path: Path) -> None:
    with pytest.raises(ZeroDivisionError), make() as ckpt:
        ckpt.save(1, STATE)
        raise ZeroDivisionError
    assert sw.open(path).step == 1


def fail_next(ckpt: sw.Checkpointer, path: Path, step: int) -> sw.Snapshot:
    """A save that fails in the background: something foreign stands where its directory would be."""
    attempts = [int(m[1]) for p in path.glob("step-*.a*") if (m := re.search(r"\.a(\d+)$", p.name))]
    (path / f"step-{step:010d}.a{max(attempts)}").write_text("in the way")
    snapshot = ckpt.save(step, STATE)
    assert snapshot is not None
    ckpt.fence()
    return snapshot


def first_then_broken(make: Make, path: Path, **options: Any) -> tuple[sw.Checkpointer, sw.Snapshot]:
    ckpt = make(**options)
    ckpt.save(1, STATE)
    ckpt.wait()
    return ckpt, fail_next(ckpt, path, 2)


def test_background_error_is_kept_logged_and_raised_by_wait(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt, snapshot = first_then_broken(make, path)
    ckpt.save(3, STATE)
    with pytest.raises(sw.StorageError):
        ckpt.wait()
    assert isinstance(snapshot.error, sw.StorageError)
    assert snapshot.error.path
    with pytest.raises(sw.StorageError):
        snapshot.wait()
    ckpt.wait()  # reported once
    assert ckpt.steps() == [1, 3]
    wait_until(lambda: "step 2 was not checkpointed" in caplog.text, "the line of the log")


def test_background_error_is_raised_by_close(make: Make, path: Path) -> None:
    ckpt, _ = first_then_broken(make, path)
    with pytest.raises(sw.StorageError):
        ckpt.close()


def test_background_error_is_raised_by_the_next_save_if_asked(make: Make, path: Path) -> None:
    ckpt, snapshot = first_then_broken(make, path, on_error="raise")
    with pytest.raises(sw.StorageError):
        snapshot.wait()
    with pytest.raises(sw.StorageError):
        ckpt.save(3, STATE)
    ckpt.save(3, STATE)  # once


def test_exception_of_the_block_hides_the_one_of_close(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError), make() as ckpt:
        ckpt.save(1, STATE)
        ckpt.wait()
        fail_next(ckpt, path, 2)
        raise ZeroDivisionError
    assert "closing the checkpointer" in caplog.text


def test_log_lines_reach_python(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = make()
    with caplog.at_level(logging.INFO, logger="slackwater"):
        ckpt._session.mailbox.post(30, "from an engine thread %s")
        ckpt.save(1, STATE)
    assert ("slackwater", logging.WARNING, "from an engine thread %s") in caplog.record_tuples


def test_log_queue_is_bounded() -> None:
    mailbox = _core.Mailbox()
    for _ in range(3000):
        mailbox.post(20, "line")
    lines = mailbox.collect()
    assert len(lines) < 1100
    assert "further messages were dropped" in lines[-1][1]
    assert mailbox.collect() == []


def test_signature_has_every_option_of_the_engine() -> None:
    parameters = inspect.signature(sw.Checkpointer).parameters
    table = {row["name"] for row in _core.option_table()}
    assert table <= set(parameters)
    own = {"path", "tiers", "every", "save_last", "on_error", "allow_pickle", "coordinator", "take_over"}
    assert set(parameters) == table | own


def test_defaults_are_those_of_the_engine() -> None:
    parameters = inspect.signature(sw.Checkpointer).parameters
    for row in _core.option_table():
        default = parameters[row["name"]].default
        if default is not None:
            assert str(default).lower() == row["default"], row["name"]


def test_guide_describes_every_option() -> None:
    guide = Path(__file__).parents[2] / "docs" / "python.md"
    text = guide.read_text()
    for name in inspect.signature(sw.Checkpointer).parameters:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    "options", [{"io_backend": "threads"}, {"direct_io": False}, {"copy_threads": 1, "queue_depth": 2, "run_name": "ü"}]
)
def test_other_ways_of_writing(options: dict[str, Any], make: Make, path: Path) -> None:
    tensor = torch.randn(700_000)
    with make(**options) as ckpt:
        ckpt.save(1, {"t": tensor})
        ckpt.wait()
        if options.get("io_backend"):
            assert ckpt.stats.io_backend == "threads"
    assert torch.equal(sw.load(path)["t"], tensor)


def test_pool_in_bytes_or_words(make: Make, path: Path) -> None:
    with make(pool=3 << 20) as ckpt:
        ckpt.save(1, STATE)
        ckpt.wait()
        assert ckpt.stats.pool_bytes == 3 << 20


def test_saving_goes_on_without_the_settler_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ckpt = make(keep=0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for step in range(1, 6):  # more than may be in flight
            ckpt.save(step, STATE)
        ckpt.wait(timeout=60)
        assert ckpt.steps() == [1, 2, 3, 4, 5]
        ckpt.save(6, STATE)
        ckpt.close(timeout=60)
    assert caplog.text.count("thread slackwater-settle cannot be started") == 1


def test_dropped_checkpointer_waits_with_a_time_limit(make: Make) -> None:
    assert make()._finalizer.peek()[2] == (lifecycle.EXIT_SECONDS,)


def test_settling_may_be_entered_again(make: Make) -> None:
    """As when a garbage collection inside of it closes a session."""
    ckpt = make()
    snapshot = ckpt.save(1, STATE)
    assert snapshot is not None
    with snapshot._settling:
        snapshot._core.wait_released(60)
        snapshot._settle()
    snapshot.wait(timeout=60)


def torn_step(ckpt: sw.Checkpointer, step: int) -> None:
    tensor = torch.zeros(2_000_000)
    with unsettled():
        snapshot = ckpt.save(step, {"w": tensor})
        tensor.add_(1)
    assert snapshot is not None
    with contextlib.suppress(sw.TornError):
        snapshot.wait(timeout=60)
    assert isinstance(snapshot.error, sw.TornError)


def test_a_run_whose_newest_step_is_committed_ends_well(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sw.Checkpointer(path, slab="1MiB", pool="2MiB") as ckpt:
        torn_step(ckpt, 1)
        for step in range(2, 6):
            ckpt.save(step, {"n": step})
    assert [failure.step for failure in ckpt.failures] == [1]
    assert isinstance(ckpt.failures[0].error, sw.TornError)
    assert "closed with step 5 committed; not checkpointed: step 1" in caplog.text
    assert sw.load(path)["n"] == 5


def test_a_run_whose_newest_step_is_not_committed_raises(path: Path) -> None:
    with pytest.raises(sw.TornError), sw.Checkpointer(path, slab="1MiB", pool="2MiB") as ckpt:
        ckpt.save(1, {"n": 1})
        torn_step(ckpt, 2)
    assert [failure.step for failure in ckpt.failures] == [2]


def test_missing_parents_are_made_and_the_home_directory_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with sw.Checkpointer("~/runs/today/gpt") as ckpt:
        ckpt.save(1, {"n": 1})
    assert ckpt.path == str(tmp_path / "runs/today/gpt")
    assert sw.load("~/runs/today/gpt")["n"] == 1
