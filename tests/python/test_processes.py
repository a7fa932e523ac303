"""Forks, signals, kills and the end of the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import slackwater as sw
import torch
from support import python, start

Make = Callable[..., sw.Checkpointer]


def in_child(work: Callable[[], None]) -> int:
    """Fork, run ``work`` in the child; its exit code, 1 if an exception came out."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_child_can_do_nothing_with_the_parents_checkpointer(make: Make) -> None:
    ckpt = make(pool="2MiB")
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshot = ckpt.save(1, {"t": torch.ones(8_000_000), "m": model})

    def child() -> None:
        for call in (
            lambda: ckpt.save(2, {}),
            lambda: ckpt.restore({}),
            ckpt.fence,
            ckpt.wait,
            ckpt.steps,
            snapshot.wait,
            snapshot.fence,
        ):
            with pytest.raises(sw.ClosedError, match="parent process"):
                call()
        optim.step()  # the hook does nothing here
        ckpt.close()
        ckpt.__exit__(None, None, None)

    assert in_child(child) == 0
    assert snapshot is not None
    snapshot.wait(timeout=60)
    assert ckpt.steps() == [1]


def test_child_may_drop_everything(make: Make) -> None:
    ckpt = make(pool="2MiB")
    boxes = [ckpt, ckpt.save(1, {"t": torch.ones(8_000_000)})]

    def child() -> None:
        import gc

        ckpt._finalizer()
        boxes.clear()
        gc.collect()

    assert in_child(child) == 0
    ckpt.wait()
    assert ckpt.steps() == [1]


def test_child_may_use_a_checkpointer_of_its_own(make: Make, tmp_path: Path) -> None:
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})

    def child() -> None:
        with sw.Checkpointer(tmp_path / "child", pool="4MiB", slab="1MiB") as own:
            own.save(1, {"t": torch.ones(3)})

    assert in_child(child) == 0
    assert sw.open(tmp_path / "child").step == 1


def test_many_forks_with_snapshots_in_flight(make: Make, path: Path) -> None:
    ckpt = make(pool="2MiB")
    tensor = torch.zeros(500_000)
    for step in range(1, 11):
        ckpt.save(step, {"t": tensor})
        assert in_child(lambda: None) == 0
        ckpt.fence()
        tensor.fill_(step)
    ckpt.wait()
    assert sw.load(path)["t"][0].item() == 9


def test_forking_data_loader(make: Make) -> None:
    ckpt = make()
    tensor = torch.zeros(100_000)
    loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, batch_size=2)
    for step, _ in enumerate(loader, 1):
        ckpt.save(step, {"t": tensor})
        ckpt.fence()
        tensor.add_(1)
    ckpt.wait()
    assert ckpt.latest_step() == 4


def test_child_that_exits_normally_writes_nothing(path: Path) -> None:
    result = python(
        """
        import os, sys, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
        ckpt.save(1, {"a": np.ones(1 << 20)})
        pid = os.fork()
        if pid == 0:
            sys.exit(7)   # runs atexit handlers and destructors
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        path,
    )
    assert result.stdout == "7\n"
    assert sw.open(path).step == 1


def test_end_of_the_program_commits_what_is_in_flight(path: Path) -> None:
    python(
        """
        import logging, sys, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
        ckpt.save(1, {"a": np.ones(4 << 20)})
        """,
        path,
    )
    assert sw.load(path)["a"].sum() == 4 << 20


def test_exception_at_the_end_of_the_program_commits_too(path: Path) -> None:
    result = python(
        """
        import sys, numpy as np, slackwater as sw
        ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
        ckpt.save(1, {"a": np.ones(4 << 20)})
        raise ZeroDivisionError
        """,
        path,
        check=False,
    )
    assert "ZeroDivisionError" in result.stderr
    assert sw.open(path).step == 1


ENDLESS = """
import sys, numpy as np, slackwater as sw
from slackwater.in_flight import InFlight
settle, sw.Snapshot._settle = sw.Snapshot._settle, lambda self: None  # unsealed, it never commits
wait = InFlight.wait
def announced(*arguments):  # the signal may come from here on, not before
    InFlight.wait = wait
    print("waiting", flush=True)
    return wait(*arguments)
ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB")
snapshot = ckpt.save(1, {"a": np.ones(1 << 16)})
InFlight.wait = announced
try:
    getattr(ckpt, sys.argv[2])()
except KeyboardInterrupt:
    print("interrupted", snapshot.progress.failed, flush=True)
settle(snapshot)
ckpt.close()
"""


@pytest.mark.parametrize(
    ("call", "outcome"), [("wait", "interrupted False"), ("close", "interrupted True")], ids=["wait", "close"]
)
def test_ctrl_c_ends_waiting_promptly(call: str, outcome: str, path: Path) -> None:
    """wait() leaves the snapshot alone, close() gives it up."""
    process = start(ENDLESS, path, call)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert out == outcome + "\n", err
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()


TRAINER = """
import os, sys, time, numpy as np, slackwater as sw
ckpt = sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB", keep=0)
array = np.zeros(1 << 18)
if os.fork() == 0:          # a data loader's worker, which outlives the trainer
    os.setsid()
    print("worker", os.getpid(), flush=True)
    time.sleep(300)
    os._exit(0)
for step in range(1, 100000):
    array[:] = step
    ckpt.save(step, {"a": array, "step": step})
    ckpt.fence()
    if step == 5:
        print("running", flush=True)
"""


def test_killed_trainer_whose_worker_lives_on_does_not_block_the_restart(path: Path) -> None:
    process = start(TRAINER, path)
    worker = None
    try:
        assert process.stdout is not None
        running = False
        while worker is None or not running:
            line = process.stdout.readline()
            if not line:
                pytest.fail("the trainer died")
            running = running or line.startswith("running")
            if line.startswith("worker"):
                worker = int(line.split()[1])
        process.kill()
        process.wait(timeout=60)
        os.kill(worker, 0)  # still there
        state = {"a": np.zeros(1 << 18), "step": 0}
        with sw.Checkpointer(path, pool="2MiB", slab="1MiB") as ckpt:
            step = ckpt.restore(state)
            assert step is not None
            assert (state["a"] == step).all()
            assert state["step"] == step
            ckpt.save(step + 1, state)
        assert sw.open(path).step == step + 1
    finally:
        process.kill()
        if worker is not None:
            os.kill(worker, signal.SIGKILL)
        process.communicate()


def test_importing_takes_neither_torch_nor_numpy() -> None:
    result = python(
        "import sys, slackwater; print(sorted({'torch', 'numpy'} & set(sys.modules)), slackwater.__version__)"
    )
    assert result.stdout.startswith("[] 0.")
