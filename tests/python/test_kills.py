"""A trainer on PyTorch that is killed with SIGKILL at random moments ends as one that was left alone, bit by bit."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import start

KILLS = 3
STEPS = 40

TRAINERS = """
import ctypes, gc, os, signal, sys
import torch, torch._dynamo, slackwater as sw

def train(path, steps):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 64))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optim": optim, "rng": sw.Rng()}
    with sw.Checkpointer(path, pool="4MiB", slab="1MiB", keep=3) as ckpt:
        start = ckpt.restore(state) or 0
        print("from", start, os.getpid(), flush=True)
        for step in range(start + 1, steps + 1):
            loss = (model(torch.randn(32, 64)) ** 2).mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            snapshot = ckpt.save(step, state)
            if step % 5 == 0:
                snapshot.wait("committed")
                print("committed", step, flush=True)
    print("end", *[t.double().sum().item().hex() for t in model.state_dict().values()], flush=True)

torch.set_num_threads(1)
gc.freeze()  # no run looks through torch for garbage
pid = None
for path in sys.stdin:  # each run is forked, with the libraries loaded
    if pid is not None:
        os.waitpid(pid, 0)
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        train(path.strip(), int(sys.argv[1]))
        sys.exit()
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its number stays its own until the next run
    print("over", ended.si_status, flush=True)
"""


class Trainers:
    """One run after the other."""

    def __init__(self) -> None:
        self.process = start(TRAINERS, STEPS)

    def begin(self, path: Path) -> tuple[int, int]:
        """The step that it goes on from, and its process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        word, step, pid = self._line().split()
        assert word == "from"
        return int(step), int(pid)

    def hear_out(self) -> tuple[int, list[str]]:
        """Its exit code or signal, and what it said until then."""
        lines = [self._line()]
        while not lines[-1].startswith("over"):
            lines.append(self._line())
        return int(lines.pop().split()[1]), lines

    def _line(self) -> str:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.rstrip("\n")


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    made = Trainers()
    yield made
    made.process.kill()
    made.process.communicate()


def test_trainer_killed_at_random_moments_ends_as_if_it_had_been_left_alone(trainers: Trainers, tmp_path: Path) -> None:
    def finish(path: Path) -> tuple[int, str]:
        begun, _ = trainers.begin(path)
        code, lines = trainers.hear_out()
        assert code == 0
        assert lines[-1].startswith("end")
        return begun, lines[-1]

    chance = random.Random(20261116)
    _, expected = finish(tmp_path / "undisturbed")
    promised = 0
    for _ in range(KILLS):
        begun, pid = trainers.begin(tmp_path / "killed")
        assert begun >= promised, "it went back behind a step that was reported committed"
        time.sleep(chance.uniform(0, 0.4))  # the moment is what is random here: nothing is waited for
        os.kill(pid, signal.SIGKILL)
        _, lines = trainers.hear_out()
        for line in lines:
            if line.startswith("committed"):
                promised = int(line.split()[1])
    begun, end = finish(tmp_path / "killed")
    assert begun >= promised
    assert end == expected
