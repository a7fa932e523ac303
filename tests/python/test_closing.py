"""close() beside everything else: other threads, signal handlers, the end of the program.

The rule (docs/threading.md): every snapshot that save() returned is committed or named by close(). A save() that comes
too late raises ClosedError. Nothing crashes. tests/unit/engine/close_test.cpp forces the schedules inside the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from support import python

Make = Callable[..., sw.Checkpointer]

# What the scripts below share. Paranoid: the engine looks at every byte inside save(), without the GIL, so that close()
# nearly always comes in the midst of a capture.
ACCOUNT = """
import atexit, os, signal, sys, threading, time, numpy as np, slackwater as sw
from pathlib import Path

class Run:
    def __init__(self, path):
        self.path = Path(path)
        self.ckpt = sw.Checkpointer(path, pool="2MiB", slab="1MiB", keep=0, in_flight=3, paranoid=True)
        self.array = np.ones(1 << 18)
        self.accepted = []
        self.errors = []        # of close()
        self.refused = None     # of save()
        self.saved = threading.Semaphore(0)

    def train(self):
        step = 0
        try:
            while True:
                step += 1
                snapshot = self.ckpt.save(step, {"a": self.array, "step": step})
                self.accepted.append(snapshot)
                self.saved.release()
        except sw.ClosedError as error:
            self.refused = str(error)
            self.saved.release()

    def close(self, timeout=None):
        try:
            self.ckpt.close(timeout)
        except sw.Error as error:
            self.errors.append(str(error))

    def committed(self):
        on_disk = {int(found.parent.name[5:15]) for found in self.path.glob("step-*/manifest.json")}
        told = {snapshot.step for snapshot in self.accepted if snapshot.progress.level == "committed"}
        return on_disk, told

    def check(self):
        # A close() that gave up while storage was slow lets a commit go its way: it ends a moment later.
        deadline = time.monotonic() + 60
        while len(set(map(frozenset, self.committed()))) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        on_disk, _ = self.committed()
        for snapshot in self.accepted:
            level, step = snapshot.progress.level, snapshot.step
            assert (level == "committed") == (step in on_disk), (step, level, on_disk)
            if step not in on_disk:
                assert any(f"{step}" in error for error in self.errors), (step, level, self.errors)
                assert snapshot.error is not None
        return on_disk
"""


@pytest.mark.parametrize("timeout", [None, 0.0], ids=["waits", "gives-up"])
def test_each_step_that_was_accepted_is_committed_or_named(timeout: float | None, tmp_path: Path) -> None:
    """Another thread saves without end; both closes, of two threads, come in the midst of it."""
    result = python(
        ACCOUNT
        + """
timeout = None if sys.argv[2] == "None" else float(sys.argv[2])
for number in range(10):
    run = Run(f"{sys.argv[1]}/{number}")
    trainer = threading.Thread(target=run.train)
    trainer.start()
    for _ in range(number % 4):
        run.saved.acquire()
    other = threading.Thread(target=run.close, args=(timeout,))
    other.start()
    run.close(timeout)
    other.join()
    trainer.join()
    assert run.refused, "the trainer was never told"
    on_disk = run.check()
    if timeout is None:
        assert not run.errors, run.errors
        assert len(on_disk) == len(run.accepted)
print("good")
        """,
        tmp_path,
        timeout,
    )
    assert result.stdout == "good\n", result.stderr
    assert "Traceback" not in result.stderr


def test_signal_handler_that_closes_while_a_thread_saves(tmp_path: Path) -> None:
    """As schedulers announce the end of a job, to a program that trains beside its main thread."""
    result = python(
        ACCOUNT
        + """
class Terminated(Exception): pass
def stop(number, frame):
    run.close()
    raise Terminated
signal.signal(signal.SIGTERM, stop)
for number in range(8):
    run = Run(f"{sys.argv[1]}/{number}")
    trainer = threading.Thread(target=run.train)
    trainer.start()
    for _ in range(1 + number % 3):
        run.saved.acquire()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        trainer.join()
        while True: pass     # the signal may be a moment late
    except Terminated:
        pass
    trainer.join()
    assert run.refused and not run.errors, (run.refused, run.errors)
    assert len(run.check()) == len(run.accepted)
print("good")
        """,
        tmp_path,
    )
    assert result.stdout == "good\n", result.stderr
    assert "Traceback" not in result.stderr


AT_EXIT = (
    ACCOUNT
    + """
run = Run(sys.argv[1])
@atexit.register      # registered last, runs first: what save() had returned by then is promised
def promise():
    for snapshot in list(run.accepted):
        os.write(1, f"{snapshot.step}\\n".encode())
threading.Thread(target=run.train, daemon=True).start()
for _ in range(int(sys.argv[2])):
    run.saved.acquire()
"""
)


def test_end_of_the_program_beside_a_daemon_thread_that_saves(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / str(number)
        result = python(AT_EXIT, path, 1 + number % 3, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        promised = {int(line) for line in result.stdout.splitlines()}
        assert promised
        assert promised <= {int(found.parent.name[5:15]) for found in path.glob("step-*/manifest.json")}


@pytest.mark.parametrize(
    "call",
    ["ckpt.stats", "snapshot.wait('committed')", "ckpt.fence()", "sw.open(sys.argv[1])", "sw.load(sys.argv[1])"],
)
def test_end_of_the_program_while_daemon_threads_are_in_the_engine(call: str, path: Path) -> None:
    """CPython ends such threads when they ask for the GIL, and that must not end the process by abort()."""
    result = python(
        f"""
        import sys, threading, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
        snapshot = ckpt.save(1, {{"a": np.ones(1 << 16)}})
        ckpt.wait()
        inside = threading.Semaphore(0)
        def look():
            while True:
                inside.release()
                try:
                    {call}
                except sw.ClosedError:
                    pass
        for _ in range(3):
            threading.Thread(target=look, daemon=True).start()
        for _ in range(30):
            inside.acquire()
        """,
        path,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_end_of_the_program_while_a_daemon_thread_closes(path: Path) -> None:
    """The end waits for that close(), instead of ending the process under it."""
    result = python(
        """
        import sys, threading, numpy as np, slackwater as sw
        from slackwater.session import Session
        shut_down, inside = Session._shut_down, threading.Event()
        def announced(self, timeout):
            inside.set()
            shut_down(self, timeout)
        Session._shut_down = announced
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", in_flight=4)
        for step in (1, 2, 3, 4):
            ckpt.save(step, {"a": np.full(4 << 20, step, dtype=np.uint8)})
        threading.Thread(target=ckpt.close, daemon=True).start()
        inside.wait()
        """,
        path,
    )
    assert result.stderr == ""
    assert (sw.load(path)["a"] == 4).all()


class Gate:
    """Part of a state whose state_dict() calls back."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def state_dict(self) -> dict[str, Any]:
        self._call()
        return {"t": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._call()


def test_close_in_the_midst_of_looking_at_the_state(make: Make, path: Path) -> None:
    """A handler that closes and lets the trainer go on: the save raises, and leaves no hook behind."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    before = dict(hooks)
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})
    with pytest.raises(sw.ClosedError, match="closed"):
        ckpt.save(2, {"gate": Gate(ckpt.close)})
    with pytest.raises(sw.ClosedError):
        ckpt.save(3, {"t": torch.ones(3)})
    assert sw.open(path).step == 1
    assert dict(hooks) == before

    first = make()
    assert first.restore({"t": torch.zeros(3)}) == 1
    first.close()
    late = make(path.parent / "other")
    with pytest.raises(sw.ClosedError):
        late.save(1, {"gate": Gate(late.close)})
    assert dict(hooks) == before, "the hook of a first save that came too late"


def test_close_in_the_midst_of_a_restore(make: Make, path: Path) -> None:
    """It may end well or not, but the next one opens the directory and finds everything."""
    ckpt = make()
    ckpt.save(1, {"gate": Gate(lambda: None), "t": torch.arange(400_000)})
    ckpt.wait()
    state = {"gate": Gate(ckpt.close), "t": torch.zeros(400_000, dtype=torch.int64)}
    try:
        ckpt.restore(state)
    except sw.ClosedError:
        pass
    else:
        assert torch.equal(state["t"], torch.arange(400_000))
    again = make()
    assert again.restore({"gate": Gate(lambda: None), "t": torch.zeros(400_000, dtype=torch.int64)}) == 1


def test_plan_of_a_restore_that_closes(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that closes between the plan and the reading, which goes on into the engine's memory."""
    from slackwater import checkpointer

    ckpt = make(pool="4MiB")
    tensor = torch.arange(1_000_000)
    ckpt.save(1, {"t": tensor})
    ckpt.wait()
    targets = checkpointer.RestorePlan.targets

    def closing(self: Any) -> list[Any]:
        ckpt.close()
        return targets(self)

    monkeypatch.setattr(checkpointer.RestorePlan, "targets", closing)
    state = {"t": torch.zeros(1_000_000, dtype=torch.int64)}
    try:
        assert ckpt.restore(state) == 1
        assert torch.equal(state["t"], tensor)
    except sw.ClosedError:
        pass


def test_second_close_ends_with_the_first(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = make()
    settle = sw.Snapshot._settle
    monkeypatch.setattr(sw.Snapshot, "_settle", lambda self: None)  # unsealed, it never commits
    snapshot = ckpt.save(1, {"t": torch.ones(3)})
    assert snapshot is not None
    wait, begun = ckpt._session._in_flight.wait, threading.Event()

    def announced(*arguments: Any) -> float | None:
        begun.set()
        return wait(*arguments)

    monkeypatch.setattr(ckpt._session._in_flight, "wait", announced)
    closer = threading.Thread(target=ckpt.close)
    closer.start()
    begun.wait()
    with pytest.raises(sw.TimeoutError, match="another thread"):
        ckpt.close(timeout=0.01)
    sealer = threading.Thread(target=settle, args=(snapshot,))
    sealer.start()
    ckpt.close()
    with sw.Checkpointer(path) as again:  # the lock is free
        assert again.steps() == [1]
    sealer.join()
    closer.join()


def test_ctrl_c_in_close_gives_up_and_a_second_close_has_nothing_to_do(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})
    ckpt.wait()
    monkeypatch.setattr(sw.Snapshot, "_settle", lambda self: None)
    snapshot = ckpt.save(2, {"t": torch.ones(3)})
    assert snapshot is not None

    def ctrl_c(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ckpt._session._in_flight, "wait", ctrl_c)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        ckpt.close()
    assert "given up: step 2" in "".join(interrupt.value.__notes__)
    assert isinstance(snapshot.error, sw.ClosedError)
    ckpt.close()
    assert sw.open(path).step == 1


def test_handler_that_closes_in_the_midst_of_close(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two SIGTERMs: the second must not wait for the first, which it interrupts."""
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})
    wait = ckpt._session._in_flight.wait
    calls = []

    def interrupted(*arguments: Any) -> float | None:
        calls.append(1)
        if len(calls) == 1:
            ckpt.close(timeout=60)
        return wait(*arguments)

    monkeypatch.setattr(ckpt._session._in_flight, "wait", interrupted)
    ckpt.close(timeout=60)
    assert len(calls) == 2
    assert sw.open(path).step == 1


def test_handles_of_snapshots_after_close(make: Make) -> None:
    ckpt = make()
    snapshot = ckpt.save(1, {"t": torch.ones(3)})
    assert snapshot is not None
    ckpt.close()
    snapshot.fence()
    snapshot.wait()
    assert snapshot.error is None
    assert (snapshot.step, snapshot.progress.level) == (1, "committed")
    assert snapshot.stats.committed_seconds > 0
    assert "committed" in repr(snapshot)
    assert ckpt.stats.snapshots_committed == 1
    for call in (
        ckpt.fence,
        ckpt.wait,
        ckpt.steps,
        lambda: ckpt.pin(1),
        lambda: ckpt.delete(1),
        lambda: ckpt.restore({}),
    ):
        with pytest.raises(sw.ClosedError):
            call()


def test_close_names_every_step_that_failed(path: Path) -> None:
    result = python(
        """
        import resource, signal, sys, numpy as np, slackwater as sw
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", keep=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        for step in (1, 2, 3, 4, 5, 6):
            ckpt.save(step, {"a": np.ones((1 if step % 2 else 16) << 20, dtype=np.uint8)})
        try:
            ckpt.close()
        except sw.StorageError as error:
            print("step 2 was not checkpointed" in str(error), "not checkpointed either: steps 4, 6" in str(error))
        """,
        path,
    )
    assert result.stdout == "True True\n"


@pytest.mark.parametrize("in_flight", [False, True], ids=["idle", "in-flight"])
def test_forked_child_that_ends_normally_says_nothing(in_flight: bool, path: Path) -> None:
    result = python(
        """
        import os, sys, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", in_flight=3)
        for step in (1, 2, 3):
            snapshot = ckpt.save(step, {"a": np.ones(1 << 20)})
        reader = None
        if sys.argv[2] == "False":
            ckpt.wait()
            reader = sw.open(sys.argv[1])
        pid = os.fork()
        if pid == 0:
            sys.exit(0)   # runs atexit handlers and destructors
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        ckpt.close()
        """,
        path,
        in_flight,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")
    assert sw.open(path).step == 3


def test_program_that_ends_with_everything_alive_says_nothing(path: Path) -> None:
    result = python(
        """
        import sys, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
        snapshot = ckpt.save(1, {"a": np.ones(1 << 20)})
        ckpt.wait()
        reader = sw.open(sys.argv[1])
        loop = [ckpt, snapshot, reader]
        loop.append(loop)
        sys.modules["kept"] = loop
        """,
        path,
    )
    assert result.stderr == ""
