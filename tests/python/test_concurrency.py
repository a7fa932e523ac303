"""Threads, forks, signals and errors with snapshots in flight: what test_processes.py and test_fence.py leave out."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from support import python, start

Make = Callable[..., sw.Checkpointer]
MIB = 1 << 20


FORKS = """
import gc, os, sys, time, numpy as np, slackwater as sw

def kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

def fork_ms(times=15):
    # The median: CPU time of fork() alone, which copies page tables itself, and what the child has mapped.
    took, mapped = [], 0
    for _ in range(times):
        read_end, write_end = os.pipe()
        begin = time.thread_time()
        pid = os.fork()
        if pid == 0:
            os.write(write_end, str(kib("VmSize")).encode())
            os._exit(0)
        took.append((time.thread_time() - begin) * 1000)
        os.close(write_end)
        mapped = int(os.read(read_end, 100))
        os.close(read_end)
        assert os.waitpid(pid, 0)[1] == 0
    return sorted(took)[times // 2], mapped

gc.disable()
before_ms, _ = fork_ms()
ckpt = sw.Checkpointer(sys.argv[1], pool="1GiB", slab="8MiB", keep=0)
array = np.ones(32 << 20, dtype=np.uint8)
resident = kib("VmRSS")
ckpt.save(0, {"a": array})
ckpt.wait()
while kib("VmRSS") - resident < (1 << 20) * 0.97:   # the engine's own thread touches every page of the pool
    time.sleep(0.01)
ckpt.save(1, {"a": array})
ckpt.save(2, {"a": array})       # in flight while the children come and go
with_ms, mapped = fork_ms()
ckpt.wait()
print(f"{before_ms:.2f} ms of CPU time without, {with_ms:.2f} ms with a pool of 1 GiB")
print(kib("VmSize") - mapped, ckpt.steps())
"""


def test_fork_does_not_copy_the_page_tables_of_the_pool(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = python(FORKS, path)
    times, rest = result.stdout.splitlines()
    without_ms, with_ms = map(float, re.findall(r"([\d.]+) ms", times))
    hidden_kib, steps = rest.split(" ", 1)
    with capfd.disabled():
        print(f"\n  fork: {times}; {int(hidden_kib) >> 10} MiB are not mapped in the child")
    assert int(hidden_kib) >= 1 << 20, "the child maps the pool"
    assert steps == "[0, 1, 2]"
    assert with_ms < without_ms + 30, "that is what copying the page tables of 1 GiB takes"


def test_child_that_forked_in_a_save_neither_hangs_nor_writes(make: Make, path: Path) -> None:
    """A fork at any moment: another thread saves without end, the main thread forks children that use torch."""
    ckpt = make(pool="2MiB", keep=2)
    tensor = torch.zeros(MIB)
    done = threading.Event()
    saved = []

    def train() -> None:
        step = 0
        while not done.is_set():
            step += 1
            ckpt.save(step, {"t": tensor})
            ckpt.fence()
            tensor.fill_(step)
        saved.append(step)

    trainer = threading.Thread(target=train)
    trainer.start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.ones(1000).sum().item()
                ckpt.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    done.set()
    trainer.join()
    ckpt.wait()
    assert ckpt.latest_step() == saved[0]
    assert (sw.load(path)["t"] == saved[0] - 1).all()


def test_end_of_the_program_with_a_thread_that_waits(path: Path) -> None:
    python(
        """
        import sys, threading, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", in_flight=3)
        for step in (1, 2, 3):
            ckpt.save(step, {"a": np.full(2 << 20, step, dtype=np.uint8)})
        threading.Thread(target=ckpt.wait, daemon=True).start()
        """,
        path,
    )
    assert (sw.load(path)["a"] == 3).all()


def test_end_of_the_program_by_an_exception_in_a_thread_of_its_own(path: Path) -> None:
    result = python(
        """
        import sys, threading, numpy as np, slackwater as sw
        def train():
            ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
            ckpt.save(1, {"a": np.ones(4 << 20, dtype=np.uint8)})
            raise SystemExit(3)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
        path,
    )
    assert result.returncode == 0
    assert sw.open(path).step == 1


PREEMPTED = """
import signal, sys, numpy as np, slackwater as sw
ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
array = np.zeros(1 << 20, dtype=np.uint8)

def stop(number, frame):
    ckpt.close()        # in the midst of whatever the trainer was doing
    sys.exit(17)

signal.signal(signal.SIGTERM, stop)
for step in range(1, 1_000_000):
    array[:] = step % 251
    ckpt.save(step, {"a": array, "step": step})
    ckpt.fence()
    if step == 5:
        print("running", flush=True)
"""


def test_sigterm_that_closes_in_the_midst_of_training_leaves_a_good_checkpoint(path: Path) -> None:
    """As schedulers announce the end of a job."""
    process = start(PREEMPTED, path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 17, err
    finally:
        process.kill()
        process.communicate()
    state = sw.load(path)
    assert state["step"] >= 4
    assert (state["a"] == state["step"] % 251).all()


class Interrupting:
    """An engine whose save() is followed at once by a signal handler, before Python sees what it returned."""

    def __init__(self, engine: Any, handler: Callable[[], None]) -> None:
        self._engine, self._handler = engine, handler

    def save(self, *arguments: Any, **others: Any) -> None:
        self._engine.save(*arguments, **others)
        self._handler()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_ctrl_c_just_behind_the_engines_save_loses_no_snapshot(make: Make, path: Path) -> None:
    """It would never be sealed, and hold up every later one, close() included."""

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    ckpt = make()
    engine = ckpt._session.engine
    ckpt._session.engine = Interrupting(engine, ctrl_c)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        ckpt.save(1, {"t": torch.ones(3)})
    ckpt._session.engine = engine
    ckpt.save(2, {"t": torch.ones(3)})
    ckpt.close(timeout=60)
    assert [sw.open(path, step).step for step in (1, 2)] == [1, 2]


def test_handler_that_closes_just_behind_the_engines_save_commits_it(make: Make, path: Path) -> None:
    ckpt = make()

    def stop() -> None:
        ckpt.close(timeout=60)
        raise SystemExit

    ckpt._session.engine = Interrupting(ckpt._session.engine, stop)  # type: ignore[assignment]
    with pytest.raises(SystemExit):
        ckpt.save(1, {"t": torch.ones(3)})
    assert sw.open(path).step == 1


BUSY = """
import sys, numpy as np, slackwater as sw
step = 0
def save():
    global step
    step += 1
    return ckpt.save(step, {"a": np.ones(1 << 16)})
def save_until_well():  # with so short a stall_timeout a busy machine may cost a step
    while True:
        try:
            save().wait()
            return
        except sw.TimeoutError:
            pass
ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", in_flight=1, keep=0, stall_timeout=1.0)
save_until_well()
settle = sw.Snapshot._settle
sw.Snapshot._settle = lambda self: None  # unsealed, it never commits
try:
    ckpt.wait()
except sw.TimeoutError:
    pass   # of one that was lost
first = save()
try:
    print("saving", flush=True)
    while True:
        save()  # finds no room after stall_timeout: then the signal is late, and the next one waits for it
except KeyboardInterrupt:
    print("interrupted", flush=True)
sw.Snapshot._settle = settle
settle(first)
try:
    ckpt.wait()
except sw.TimeoutError:
    pass   # those that found no room, if the signal let it come that far
ckpt.wait()
save_until_well()
print(first.step in ckpt.steps(), ckpt.steps()[-1] == step, flush=True)
ckpt.close()
"""


def test_ctrl_c_in_a_save_that_waits_for_its_turn_leaves_nothing_behind(path: Path) -> None:
    """It is heard when the engine returns, after stall_timeout at the latest."""
    process = start(BUSY, path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert out == "interrupted\nTrue True\n", err
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()


def test_close_in_another_thread_while_saving(make: Make, path: Path) -> None:
    """Against the rule of one thread, and still no crash: the saver hears that the checkpointer is closed."""
    ckpt = make(pool="2MiB", keep=0)
    started, ended = threading.Event(), []

    def train() -> None:
        tensor = torch.zeros(MIB)
        try:
            for step in range(1, 100_000):
                ckpt.save(step, {"t": tensor})
                started.set()
                ckpt.fence()
                tensor.fill_(step)
        except sw.Error as error:
            ended.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    started.wait()
    try:
        ckpt.close(timeout=60)
    except sw.Error as error:
        ended.append(error)
    trainer.join(timeout=60)
    assert not trainer.is_alive()
    assert any(isinstance(error, sw.ClosedError) for error in ended), ended
    step = sw.open(path).step
    assert (sw.load(path)["t"] == step - 1).all()


def test_pool_full_while_many_fence(make: Make, path: Path) -> None:
    """Three snapshots of many times the pool in line, fenced by four threads and a step at once."""
    ckpt = make(pool="2MiB", in_flight=3, keep=0)
    model = torch.nn.Linear(1024, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    blocker = np.zeros(24 * MIB, dtype=np.uint8)
    ckpt.save(1, {"b": blocker})
    ckpt.save(2, {"b": blocker})
    before = model.weight.detach().clone()
    ckpt.save(3, {"m": model})
    threads = [threading.Thread(target=ckpt.fence) for _ in range(4)]
    for thread in threads:
        thread.start()
    optimizer.step()
    for thread in threads:
        thread.join()
    ckpt.wait()
    assert ckpt.steps() == [1, 2, 3]
    assert torch.equal(sw.load(path)["m"]["weight"], before)
    assert not torch.equal(model.weight, before)


def test_error_while_several_are_in_flight_fails_the_right_one(path: Path) -> None:
    """The second of three meets a limit on the size of files: the others are committed, the error names it."""
    result = python(
        """
        import resource, signal, sys, numpy as np, slackwater as sw
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", in_flight=3, keep=0)
        ckpt.save(1, {"a": np.ones(10)}); ckpt.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        snapshots = [ckpt.save(step, {"a": np.ones(size, dtype=np.uint8)})
                     for step, size in ((2, 3 << 20), (3, 16 << 20), (4, 3 << 20))]
        ckpt.fence()
        for snapshot in snapshots:
            try:
                snapshot.wait(timeout=60)
                print(snapshot.step, "committed")
            except sw.StorageError as error:
                print(snapshot.step, "failed", "step 3" in str(error) or "0000000003" in str(error))
        ckpt.close()
        print("not checkpointed:", [failure.step for failure in ckpt.failures])
        """,
        path,
    )
    assert result.stdout.splitlines() == [
        "2 committed",
        "3 failed True",
        "4 committed",
        "not checkpointed: [3]",
    ]
    assert sw.open(path).step == 4
    with pytest.raises(sw.NotFoundError):
        sw.open(path, 3)


def test_snapshots_waited_for_by_many_threads(make: Make) -> None:
    ckpt = make(pool="2MiB")
    snapshot = ckpt.save(1, {"t": torch.zeros(8 * MIB)})
    assert snapshot is not None
    results: list[object] = []

    def wait(level: str) -> None:
        snapshot.wait(level, timeout=60)  # type: ignore[arg-type]
        results.append(snapshot.progress)

    threads = [threading.Thread(target=wait, args=(level,)) for level in ("staged", "durable", "committed") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9
