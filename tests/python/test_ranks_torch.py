"""Ranks of torch.distributed: found by themselves, talking through the job's store, and never in the trainer's way."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import slackwater as sw
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from slackwater import _core
from slackwater.ranks import transport
from slackwater.ranks.transport import StoreThread, find_ranks
from slackwater.session import Session
from support import wait_until

SAVE_AND_RESTORE = """
import time

def keys_left(store, expected):
    # A rank may still be removing some, in the background.
    deadline = time.monotonic() + 60
    while len(ours(store)) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(ours(store))

def main(rank):
    store = join(rank)
    state = {"w": torch.zeros(1000), "rank": -1}
    with sw.Checkpointer(path, keep=3, **SMALL) as ckpt:
        assert ckpt.restore(state) is None
        counts = []
        for step in range(1, 7):
            state["w"].fill_(100 * step + rank)
            state["rank"] = rank
            ckpt.save(step, state)
            ckpt.fence()
            # The trainer's own talk goes on meanwhile, through its process group and its store.
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == world
            dist.distributed_c10d._get_default_store().set(f"mine/{rank}", str(step))
            if step in (3, 6):
                ckpt.wait()
                dist.barrier()
                # Five of the session; of each rank two for the restore, and one that says how far it is.
                counts.append(keys_left(store, 5 + 3 * world))
                dist.barrier()
        assert counts[0] == counts[1] == 5 + 3 * world, counts  # they do not grow
        # Rank 0 may not have removed the older ones yet when the others look.
        assert ckpt.steps()[-3:] == [4, 5, 6], ckpt.steps()
    dist.barrier()
    assert keys_left(store, 0) == 0
    dist.barrier()
    # Opened again in the same job, everybody finds everybody.
    state = {"w": torch.zeros(1000), "rank": -1}
    with sw.Checkpointer(path, coordinator="torch", **SMALL) as ckpt:
        assert ckpt.restore(state) == 6
        assert (state["w"] == 600 + rank).all() and state["rank"] == rank
        ckpt.save(7, state)
    print(f"rank {rank} good", flush=True)
"""


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_save_and_restore_through_the_jobs_store(world: int, tmp_path: Path) -> None:
    result = run_ranks(SAVE_AND_RESTORE, world, tmp_path / "run")
    assert result["codes"] == [0] * world, result["errors"]
    assert result["lines"] == [f"rank {rank} good" for rank in range(world)]
    assert result["left"] == []
    assert sorted(name.name for name in (tmp_path / "run" / ".slackwater").glob("session-*")) == []
    with sw.open(tmp_path / "run") as checkpoint:
        assert checkpoint.step == 7
        assert (checkpoint["rank-00001/w"] == 601).all()


# With so short a commit_timeout a busy machine may cost a step, or have a rank named that is only slow. All ranks then
# try the next step together.
KILLED = """
def main(rank):
    join(rank)
    survivors = dist.new_group([0, 2])
    ckpt = sw.Checkpointer(path, commit_timeout=4, **SMALL)
    state = {"w": torch.full((1000,), float(rank))}
    step = 0

    def save():
        nonlocal step
        step += 1
        try:
            ckpt.save(step, state).wait(timeout=300)
        except (sw.AbortedError, sw.TimeoutError) as error:
            return str(error)
        return ""

    def agreed(well, group=None):
        votes = torch.tensor([int(well)])
        dist.all_reduce(votes, dist.ReduceOp.MIN, group=group)
        return bool(votes)

    while not agreed(not save()):
        pass
    print(f"committed {step}", flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while not agreed("ranks: rank 1: did not report" in (error := save()), survivors):
        assert error, "committed without rank 1"
    print(f"rank {rank}: {error}", flush=True)
    print(f"aborted {step}", flush=True)
    try:
        ckpt.close(timeout=300)
    except sw.AbortedError:
        print(f"rank {rank} closed", flush=True)
"""


def test_killed_rank_is_named_and_the_others_go_on_to_close(tmp_path: Path) -> None:
    result = run_ranks(KILLED, 3, tmp_path / "run", severed=True)
    assert result["codes"] == [0, -9, 0], result["errors"]
    [committed] = {int(line.split()[1]) for line in result["lines"] if line.startswith("committed")}
    [aborted] = {int(line.split()[1]) for line in result["lines"] if line.startswith("aborted")}
    assert aborted > committed
    said = [line for line in result["lines"] if line.startswith("rank") and "closed" not in line]
    assert len(said) == 2, result
    for line in said:
        assert f"step {aborted} was aborted on all ranks: rank 1: did not report" in line
    assert "rank 0 closed" in result["lines"] and "rank 2 closed" in result["lines"]
    assert [version.step for version in _core.list_versions(str(tmp_path / "run"))][-1] == committed


LEFT_OPEN = """
def main(rank):
    join(rank)
    ckpt = sw.Checkpointer(path, **SMALL)
    ckpt.save(1, {"w": torch.full((1000,), float(rank))})
    globals()["kept"] = ckpt
"""


def test_end_of_the_program_commits_what_is_in_flight(tmp_path: Path) -> None:
    result = run_ranks(LEFT_OPEN, 2, tmp_path / "run")
    assert result["codes"] == [0, 0], result["errors"]
    assert sw.open(tmp_path / "run").step == 1
    assert result["left"] == []


DESTROYED = """
def main(rank):
    store = join(rank)
    ckpt = sw.Checkpointer(path, **SMALL)
    ckpt.save(1, {"w": torch.full((1000,), float(rank))}).wait()
    dist.barrier()
    dist.destroy_process_group()  # the store of this job lives on in another process
    ckpt.save(2, {"w": torch.full((1000,), float(rank))}).wait()
    ckpt.close()
"""


def test_process_group_may_be_destroyed_first(tmp_path: Path) -> None:
    result = run_ranks(DESTROYED, 2, tmp_path / "run")
    assert result["codes"] == [0, 0], result["errors"]
    assert sw.open(tmp_path / "run").step == 2


# The relay, with stores of our own making


class DictStore:
    """What a c10d store offers and the relay uses, in memory; it can fail or hang."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.trouble: Exception | None = None
        self.hang: threading.Event | None = None
        self.hanging = 0  # calls that have not come back

    def _before(self) -> None:
        if self.trouble is not None:
            raise self.trouble
        if self.hang is not None:
            self.hanging += 1
            self.hang.wait()
            self.hanging -= 1

    def set(self, key: str, value: bytes) -> None:
        self._before()
        self.values[key] = value

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._before()
        return self.values.get(key, expected.encode())

    def check(self, keys: list[str]) -> bool:
        self._before()
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._before()
        return [self.values[key] for key in keys]

    def delete_key(self, key: str) -> bool:
        self._before()
        return self.values.pop(key, None) is not None


Open = Callable[..., list[Session]]


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def pair(store: DictStore, path: Path) -> Iterator[Open]:
    """Two ranks in this process that share the store."""
    made: list[Session] = []

    def build(**options: str) -> list[Session]:
        for rank in range(2):
            settings = {"pool": "4MiB", "slab": "1MiB", "world": "2", "rank": str(rank), **options}
            made.append(
                Session(str(path), settings, allow_pickle=False, raise_errors=False, stall_timeout=60, store=store)
            )
        return made[-2:]

    yield build
    for session in made:
        session.close_quietly(10)


def save(sessions: list[Session], step: int) -> list[sw.Snapshot]:
    snapshots = [session.save(step, {"t": torch.full((100,), float(step))}, {}) for session in sessions]
    assert None not in snapshots
    return snapshots  # type: ignore[return-value]


def save_until_well(sessions: list[Session]) -> int:
    """The step that was committed: with so short a commit_timeout a busy machine may cost a few."""
    for step in itertools.count(1):
        outcomes = []
        for snapshot in save(sessions, step):
            with contextlib.suppress(sw.Error):
                snapshot.wait(timeout=60)
            outcomes.append(snapshot.error)
        if outcomes == [None, None]:
            return step
    raise AssertionError


def test_exception_of_the_store_is_an_error_of_the_step(pair: Open, store: DictStore) -> None:
    sessions = pair()
    for snapshot in save(sessions, 1):
        snapshot.wait(timeout=60)
    store.trouble = ConnectionResetError("the job is going down\nand here is how")
    for snapshot in save(sessions, 2):
        with pytest.raises(
            sw.Error, match="the job's store failed; the process that holds it may have ended: the job is going down"
        ):
            snapshot.wait(timeout=60)
    store.trouble = None
    for snapshot in save(sessions, 3):
        snapshot.wait(timeout=60)
    assert [version.step for version in sessions[1].engine.versions()] == [1, 3]


def test_store_that_hangs_holds_nobody_up(pair: Open, store: DictStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_STORE_SECONDS", 0.2)
    monkeypatch.setattr(transport, "_JOIN_SECONDS", 0.1)
    sessions = pair(commit_timeout="1")
    step = save_until_well(sessions)
    store.hang = threading.Event()
    try:
        for snapshot in save(sessions, step + 1):
            with pytest.raises(sw.Error):
                snapshot.wait(timeout=60)
            assert snapshot.error is not None, "it is over, not only waited for long enough"
        for session in sessions:
            session.close_quietly(60)
        assert store.hanging > 0, "all of this has ended while calls of the store have not"
    finally:
        store.hang.set()


def test_thread_ends_with_the_session(pair: Open) -> None:
    sessions = pair()
    for snapshot in save(sessions, 1):
        snapshot.wait(timeout=60)
    named = [thread for thread in threading.enumerate() if thread.name == "slackwater-store"]
    assert len(named) == 2
    for session in sessions:
        session.close(60)
    for thread in named:
        thread.join(60)
    assert not any(thread.is_alive() for thread in named)


def test_forked_child_leaves_the_store_alone(pair: Open, store: DictStore) -> None:
    sessions = pair()
    snapshots = save(sessions, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for session in sessions:
                session.close(None)
            sessions.clear()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for snapshot in snapshots:
        snapshot.wait(timeout=60)
    for session in sessions:
        session.close(60)
    wait_until(lambda: store.values == {}, "everything is removed from the store")


def test_relay_hands_calls_to_whoever_answers() -> None:
    relay = _core.StoreRelay(5)
    relay.close()
    assert relay.next() is None
    store = DictStore()
    thread = StoreThread(store)
    thread.close()  # never started
    assert thread.relay.next() is None


# Who finds what


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def define(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return define


def job(store: Any, rank: int = 1, world: int = 4) -> Any:
    """torch.distributed as it looks in an initialised job with this store."""
    kinds = {name: getattr(dist, name) for name in ("HashStore", "FileStore", "PrefixStore", "DistError")}
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world,
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
        **kinds,
    )


def test_alone_without_any_sign_of_others(environment: Callable[..., None]) -> None:
    assert find_ranks("auto", None, None) == transport.Ranks(None, None, None)


def test_environment_of_torchrun(environment: Callable[..., None]) -> None:
    environment(RANK="3", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
    assert find_ranks("auto", None, None) == transport.Ranks(3, 8, 4)
    assert find_ranks("auto", 0, 2, 1) == transport.Ranks(0, 2, 1)
    environment(RANK="eight")
    assert find_ranks("auto", None, None) == transport.Ranks(None, None, 4)
    environment(RANK="8")
    assert find_ranks("auto", None, None) == transport.Ranks(None, None, 4)


def test_torch_wins_over_the_environment_and_the_caller_over_both(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(RANK="0", WORLD_SIZE="2")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(transport, "distributed", lambda: job(dist.PrefixStore("job", server)))
    found = find_ranks("auto", None, None)
    assert (found.rank, found.world) == (1, 4)
    found.store.set("ours", b"1")
    assert server.get("job/ours") == b"1"
    assert found.store.timeout < server.timeout  # a client of its own
    assert find_ranks("auto", 0, 2).store is None
    assert find_ranks("torch", 0, 2).store is not None
    assert find_ranks("directory", None, None) == transport.Ranks(1, 4, None)


def test_stores_without_a_second_client_give_way_to_the_directory(
    environment: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for store in (dist.HashStore(), dist.PrefixStore("p", dist.FileStore(str(tmp_path / "f"), 1)), object()):
        caplog.clear()
        monkeypatch.setattr(transport, "distributed", lambda store=store: job(store))
        with caplog.at_level(logging.WARNING, "slackwater"):
            assert find_ranks("auto", None, None) == transport.Ranks(1, 4, None)
        assert len(caplog.records) == 1
        with pytest.raises(sw.UsageError, match="does not support a second client"):
            find_ranks("torch", None, None)


def test_misuse_is_named(environment: Callable[..., None], path: Path) -> None:
    with pytest.raises(sw.UsageError, match="'auto', 'torch' or 'directory'"):
        sw.Checkpointer(path, coordinator="carrier pigeon")  # type: ignore[arg-type]
    with pytest.raises(sw.UsageError, match="init_process_group"):
        sw.Checkpointer(path, coordinator="torch")
    with pytest.raises(sw.UsageError, match="local_ranks"):
        sw.Checkpointer(path, local_ranks=0)


def test_keys_that_are_not_there_yet_are_not_waited_for() -> None:
    """Many keys are asked for at once, but only once all are there: the store would wait for the others."""
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(milliseconds=200))
    keys = [f"key-{number}" for number in range(transport._MANY_KEYS)]
    for key in keys[:-1]:
        store.set(key, b"here")
    assert transport._call(store, "get", keys, b"") == [b"here"] * (len(keys) - 1) + [None]
    store.set(keys[-1], b"late")
    assert transport._call(store, "get", keys, b"")[-1] == b"late"
