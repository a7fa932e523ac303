"""The first hour: a cell that runs twice, metadata, pins, the best checkpoints, errors that help, the last step."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from support import start, unsettled

Make = Callable[..., sw.Checkpointer]
SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


def state_of(value: float = 1.0) -> dict[str, Any]:
    return {"t": torch.full((8,), float(value))}


def commit(ckpt: sw.Checkpointer, step: int, **options: Any) -> None:
    snapshot = ckpt.save(step, state_of(step), **options)
    assert snapshot is not None
    snapshot.wait()


# A cell that runs twice


def test_a_directory_this_process_has_open_is_named_with_the_line_that_opened_it(make: Make, path: Path) -> None:
    first = make()
    with pytest.raises(sw.BusyError, match="this process already has it open") as raised:
        make()
    assert "conftest.py, line" in str(raised.value)
    assert "take_over=True" in str(raised.value)
    assert raised.value.path == str(path)
    commit(first, 1)  # goes on


def test_taking_over_commits_what_is_in_flight_and_closes_the_earlier_one(make: Make) -> None:
    first = make(keep=0)
    first.save(1, state_of())
    second = make(take_over=True, keep=0)
    assert second.steps() == [1]
    with pytest.raises(sw.ClosedError, match=r"was taken over .* by the one made in .*conftest.py, line"):
        first.save(2, state_of())
    first.close()  # has nothing to do, and nothing to say
    state = state_of(0)
    assert second.restore(state) == 1
    commit(second, 2)


def test_taking_over_through_a_link_finds_the_same_directory(make: Make, path: Path) -> None:
    first = make()
    link = path.parent / "link"
    link.symlink_to(path)
    with pytest.raises(sw.BusyError, match="this process already has it open"):
        make(link)
    make(link, take_over=True)
    with pytest.raises(sw.ClosedError, match="taken over"):
        first.steps()


def test_taking_over_with_nothing_to_take_over_is_no_error(make: Make) -> None:
    commit(make(take_over=True), 1)


def test_an_earlier_one_that_only_refers_to_itself_is_closed(make: Make, path: Path) -> None:
    class Trainer:
        pass

    gc.disable()
    try:
        trainer: Any = Trainer()
        trainer.itself = trainer
        trainer.ckpt = sw.Checkpointer(path, **SMALL)
        trainer.ckpt.save(1, state_of())
        del trainer
        assert make().steps() == [1]
    finally:
        gc.enable()


def test_the_lock_of_another_process_is_never_taken_over(make: Make, path: Path) -> None:
    other = start(
        """
        import signal, sys, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB")
        print("open", flush=True)
        signal.pause()
        """,
        path,
    )
    assert other.stdout is not None and other.stdout.readline() == "open\n"
    with pytest.raises(sw.BusyError, match="another run") as raised:
        make(take_over=True)
    assert f"process {other.pid}" in str(raised.value)
    assert "never from another one" in raised.value.__notes__[0]
    other.kill()
    other.communicate()
    make(take_over=True)


# force, pin


def test_force_saves_a_step_that_every_would_skip(make: Make) -> None:
    ckpt = make(every=10, keep=0)
    assert ckpt.save(3, state_of()) is None
    commit(ckpt, 3, force=True)
    commit(ckpt, 10)
    assert ckpt.steps() == [3, 10]


def test_force_waits_where_a_busy_engine_would_skip(make: Make) -> None:
    ckpt = make(in_flight=1, on_busy="skip", keep=0)
    for step in range(1, 30):
        assert ckpt.save(step, state_of(), force=True) is not None
    ckpt.wait()
    assert ckpt.steps() == list(range(1, 30))


def test_pin_keeps_a_step_whatever_every_and_keep_say(make: Make, path: Path) -> None:
    with make(every=10, keep=1) as ckpt:
        ckpt.save(3, state_of(), pin=True)
        for step in (10, 20, 30):
            commit(ckpt, step)
    with make(keep=1) as ckpt:
        assert ckpt.steps() == [3, 30]


def test_a_step_in_flight_can_be_pinned(make: Make) -> None:
    ckpt = make(keep=1, in_flight=8)
    for step in range(1, 9):
        ckpt.save(step, state_of())
        if step in (2, 5):
            ckpt.pin(step)
    ckpt.wait()
    assert ckpt.steps() == [2, 5, 8]


def test_a_step_that_was_never_saved_cannot_be_pinned(make: Make) -> None:
    ckpt = make()
    commit(ckpt, 1)
    with pytest.raises(sw.NotFoundError, match="no checkpoint of step 2"):
        ckpt.pin(2)


def test_a_pinned_step_that_fails_is_reported(make: Make) -> None:
    ckpt = make()
    state = {"t": torch.zeros(100_000)}
    with unsettled():
        ckpt.save(1, state, pin=True)
        state["t"] += 1  # before the fence
    with pytest.raises(sw.TornError, match="step 1 was not checkpointed"):
        ckpt.wait()
    with pytest.raises(sw.Error):
        ckpt.pin(1)


# Numbers in metadata


NUMBERS = {
    "loss": 0.1,
    "tiny": 5e-324,
    "nan": math.nan,
    "low": -math.inf,
    "whole": 7,
    "huge": 10**400,
    "negative": -3,
    "round": 2.0,
    "yes": True,
    "no": False,
    "text": "0.1",
    "word": "true",
    "ü": "✓",
}


def test_numbers_in_metadata_come_back_as_they_were(make: Make, path: Path) -> None:
    with make() as ckpt:
        ckpt.save(1, state_of(), metadata=NUMBERS)
    with sw.open(path) as reader:
        found = reader.metadata
    assert list(found) == sorted(NUMBERS, key=lambda name: name.encode())
    for name, value in NUMBERS.items():
        assert type(found[name]) is type(value), name
        assert found[name] == value or (name == "nan" and math.isnan(found[name])), name


def test_metadata_is_text_in_the_file_for_other_readers(make: Make, path: Path) -> None:
    import json

    from safetensors import safe_open
    from support import data_file

    with make() as ckpt:
        ckpt.save(1, state_of(), metadata={"loss": 0.1, "whole": 7, "yes": True, "text": "0.1"})
    with safe_open(data_file(path, 1), "pt") as file:
        words = json.loads(file.metadata()["metadata"])
    assert words == {"loss": "0.1", "whole": "7", "yes": "true", "text": "0.1"}


def test_numbers_of_numpy_are_numbers(make: Make, path: Path) -> None:
    with make() as ckpt:
        numbers = {"a": np.float64(0.5), "b": np.int32(3), "c": np.bool_(True), "d": np.float32(0.5)}
        ckpt.save(1, state_of(), metadata=numbers)  # type: ignore[arg-type]
    with sw.open(path) as reader:
        assert reader.metadata == {"a": 0.5, "b": 3, "c": True, "d": 0.5}
        assert [type(value) for value in reader.metadata.values()] == [float, int, bool, float]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"loss": torch.tensor(0.5)}, r"metadata\['loss'\] is a Tensor; .*\.item\(\)"),
        ({"losses": [1.0]}, r"metadata\['losses'\] is a list; .* put it into the state"),
        ({"half": Fraction(1, 2)}, r"metadata\['half'\] is a Fraction"),
        ({1: "one"}, "its keys are texts"),
        ("loss", "metadata maps texts"),
        ({"many": 10**5000}, "too many digits"),
        ({str(i): i for i in range(1001)}, "at most 1000"),
    ],
)
def test_what_metadata_cannot_be_is_said(make: Make, metadata: Any, words: str) -> None:
    with pytest.raises(sw.UsageError, match=words):
        make().save(1, state_of(), metadata=metadata)


# The best


def test_the_best_are_kept_besides_the_newest_and_after_a_restart(make: Make, path: Path) -> None:
    losses = {1: 0.5, 2: 0.2, 3: 0.9, 4: 0.3, 5: math.nan}
    with make(keep=1, keep_best=("loss", 2)) as ckpt:
        for step, loss in losses.items():
            commit(ckpt, step, metadata={"loss": loss, "note": "x"})
        commit(ckpt, 6)  # no metric: it goes when its time has come
    with make(keep=1, keep_best=sw.Best("loss", 2)) as ckpt:
        assert ckpt.steps() == [2, 4, 6]
        assert ckpt.restore(state_of()) == 6
        commit(ckpt, 7, metadata={"loss": 0.25})
        commit(ckpt, 8, metadata={"loss": 1})
    with make(keep=1) as ckpt:
        assert ckpt.steps() == [2, 7, 8]
    with sw.open(path, 2) as reader:
        assert reader.metadata == {"loss": 0.2, "note": "x"}


def test_the_best_may_be_the_highest(make: Make) -> None:
    with make(keep=1, keep_best=sw.Best("accuracy", mode="max")) as ckpt:
        for step, accuracy in enumerate([0.1, 0.8, 0.3, 0.2], 1):
            commit(ckpt, step, metadata={"accuracy": accuracy})
    assert make(keep=1).steps() == [2, 4]


@pytest.mark.parametrize(
    "given", ["loss", ("loss",), ("loss", 0), ("loss", 1.5), ("", 1), ("loss", 1, "low"), (1, 2), 3]
)
def test_a_wrong_keep_best_is_refused(make: Make, given: Any) -> None:
    with pytest.raises(sw.UsageError, match="keep_best is"):
        make(keep_best=given)


def test_a_text_where_the_metric_should_be_is_refused(make: Make) -> None:
    with pytest.raises(sw.UsageError, match=r"metadata\['loss'\] is a text; keep_best needs a number"):
        make(keep_best=("loss", 1)).save(1, state_of(), metadata={"loss": "0.5"})


def test_a_metric_that_no_step_had_is_pointed_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with make(keep_best=("loss", 1)) as ckpt:
        ckpt.save(1, state_of(), metadata={"lose": 0.5})
    assert "no step that was saved has 'loss' in its metadata" in caplog.text


# Errors that help


@pytest.mark.parametrize(
    "generator", [torch.Generator(), np.random.default_rng(), np.random.RandomState(), random.Random()], ids=type
)
def test_a_generator_in_the_state_points_to_rng(make: Make, generator: Any) -> None:
    with pytest.raises(sw.UnsupportedError, match=r"'shuffle' is a .*sw\.Rng\(shuffle=generator\)"):
        make().save(1, {"shuffle": generator})


def test_generators_in_rng_come_back(make: Make) -> None:
    generator = torch.Generator().manual_seed(3)
    state = {"rng": sw.Rng(shuffle=generator)}
    with make() as ckpt:
        ckpt.save(1, state)
    drawn = torch.rand(4, generator=generator)
    generator.manual_seed(9)
    assert make().restore(state) == 1
    assert torch.equal(torch.rand(4, generator=generator), drawn)


def test_a_zero_redundancy_optimizer_is_refused_with_what_to_use(make: Make, tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2)
        optim = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        with pytest.raises(sw.UnsupportedError, match="'optim' is a ZeroRedundancyOptimizer.*FSDP2"):
            make().save(1, {"model": model, "optim": optim})
    finally:
        dist.destroy_process_group()


# Progress that never changes; gradient accumulation


def test_progress_that_never_changes_is_pointed_out_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = make(in_flight=8, on_busy="wait")
    state = {**state_of(), "step": 0, "epoch": 0, "tokens": 5, "flag": True}
    for step in range(1, 120):
        ckpt.save(step, state)
        if step == 49:
            assert "still" not in caplog.text
    [line] = [record.getMessage() for record in caplog.records if "still" in record.getMessage()]
    assert line.startswith("state['step'] is still 0 after 50 saves") and "state['step']" in line.partition(";")[2]


def test_progress_that_changes_is_not_pointed_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = make(in_flight=8)
    state: dict[str, Any] = {**state_of(), "step": 0, "epoch": 0}
    for step in range(1, 120):
        state["step"] = step // 40
        ckpt.save(step, state)
    assert "still" not in caplog.text


def accumulate(ckpt: sw.Checkpointer, every: int, steps: int) -> None:
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        model(torch.ones(1, 4)).sum().backward()
        if step % every == 0:
            optim.step()
        ckpt.save(step, {"model": model, "optim": optim})
        if step % every == 0:
            optim.zero_grad()


def test_saves_amid_gradient_accumulation_are_pointed_out_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    accumulate(make(), 4, 60)
    lines = [record.getMessage() for record in caplog.records if "gradients" in record.getMessage()]
    assert len(lines) == 1 and "save right after optimizer.step()" in lines[0]


def test_saves_after_each_step_are_not_pointed_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    accumulate(make(), 1, 60)
    assert "gradients" not in caplog.text


# The last step


@contextlib.contextmanager
def training(make: Make, **options: Any) -> Iterator[tuple[sw.Checkpointer, dict[str, Any], Callable[[], None]]]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    np.random.rand()
    state = {"model": model, "optim": optim, "rng": sw.Rng(), "a": np.zeros(3), "step": 0, "n": {"x": 1}}

    def train() -> None:
        optim.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optim.step()
        state["step"] += 1

    with make(every=10, keep=0, **options) as ckpt:
        yield ckpt, state, train


def weights(path: Path, step: int | None = None) -> Any:
    return sw.load(path, step)["model"]["0.weight"]


def test_the_last_step_is_saved_at_a_clean_end(make: Make, path: Path) -> None:
    with training(make, save_last=True) as (ckpt, state, train):
        for step in range(1, 14):
            train()
            ckpt.save(step, state, metadata={"loss": step / 2})
    with sw.open(path) as reader:
        assert (reader.step, reader.metadata) == (13, {"loss": 6.5})
    assert torch.equal(weights(path), state["model"][0].weight)
    assert sw.load(path)["step"] == 13
    assert make().steps() == [10, 13]


def test_the_last_step_is_saved_by_close_even_if_it_is_the_only_one(make: Make) -> None:
    ckpt = make(every=10, save_last=True)
    assert ckpt.save(3, state_of()) is None
    ckpt.close()
    ckpt.close()
    assert make().steps() == [3]


CHANGES: dict[str, Callable[[dict[str, Any], Callable[[], None]], Any]] = {
    "an optimizer has made a step": lambda state, train: train(),
    "tensor 'model.0.weight' has changed": lambda state, train: state["model"][0].weight.detach().add_(1),
    "plain values": lambda state, train: state["n"].update(x=2),
    "array 'a' has changed": lambda state, train: state["a"].__setitem__(1, 5.0),
    "tensor 'rng.torch' has changed": lambda state, train: torch.rand(1),
    "plain values, or the state": lambda state, train: random.random(),
    "array 'rng.numpy.state.key' has changed|plain values": lambda state, train: np.random.rand(700),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_state_that_has_changed_is_not_saved_as_the_last_step(
    words: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    import re

    with training(make, save_last=True) as (ckpt, state, train):
        for step in range(1, 14):
            train()
            ckpt.save(step, state)
        CHANGES[words](state, train)
    assert make().steps() == [10]
    said = rf"step 13, which every=10 skipped, is not saved at the end \(save_last\): since then ({words})"
    assert re.search(said, caplog.text)


def test_without_save_last_the_log_says_what_is_missing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slackwater")
    with training(make) as (ckpt, state, train):
        for step in range(1, 14):
            train()
            ckpt.save(step, state)
    assert make().steps() == [10]
    assert "the run ends with step 13, which is not saved (every=10)" in caplog.text


def test_an_earlier_failure_does_not_cost_the_last_step(make: Make) -> None:
    ckpt = make(every=10, save_last=True, on_error="raise", keep=0)
    state = {"t": torch.zeros(100_000)}
    with unsettled():
        snapshot = ckpt.save(10, state)
        state["t"] += 1  # before the fence
    assert snapshot is not None
    with pytest.raises(sw.TornError):
        snapshot.wait()
    ckpt.save(11, state)
    ckpt.close()
    assert make().steps() == [11]


def test_an_exception_saves_no_last_step(make: Make) -> None:
    with pytest.raises(KeyError), training(make, save_last=True) as (ckpt, state, train):
        for step in range(1, 14):
            train()
            ckpt.save(step, state)
        raise KeyError
    assert make().steps() == [10]


def test_a_last_step_that_every_did_not_skip_is_not_saved_twice(make: Make) -> None:
    with training(make, save_last=True) as (ckpt, state, train):
        for step in range(1, 11):
            train()
            ckpt.save(step, state)
    assert make().steps() == [10]


def test_save_last_is_for_one_rank(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="force=True"):
        make(save_last=True, rank=0, world=2)
