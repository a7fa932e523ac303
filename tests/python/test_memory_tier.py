"""memory=True: a trainer that is killed, or that crashes, goes on from the memory of its keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Arrays of NumPy: importing torch takes longer than all the rest.
TRAINER = """
import os, signal, sys
import numpy as np
import slackwater as sw

path, action = sys.argv[1:3]
weights = np.zeros(1 << 18)
ckpt = sw.Checkpointer(path, memory=True, memory_timeout=60, pool="32MiB", slab="1MiB")
step = ckpt.restore({"weights": weights}) or 0
print("restored", step, flush=True)
print("sum", weights.sum(), flush=True)
for step in range(step + 1, step + 4):
    ckpt.fence()
    weights += np.arange(weights.size) * step
    ckpt.save(step, {"weights": weights}).wait("staged")
    print("staged", step, weights.sum(), flush=True)
if action == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if action == "crash":
    raise RuntimeError("crash")
ckpt.close()
print("closed", flush=True)
"""


def keepers(path: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"keeper" in words and os.fsencode(path) in words:
            found.append(int(entry.name))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    for process in keepers(tmp_path / "run"):
        os.kill(process, signal.SIGKILL)


def train(path: Path, action: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRAINER, str(path), action], capture_output=True, text=True, timeout=300, check=False
    )


def word(text: str, name: str) -> str:
    """What follows the last line that begins with this word."""
    return [line for line in text.splitlines() if line.startswith(name + " ")][-1].removeprefix(name + " ")


def test_a_killed_trainer_goes_on_from_the_last_staged_step(path: Path) -> None:
    killed = train(path, "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    step, total = word(killed.stdout, "staged").split()
    assert keepers(path)
    after = train(path, "close")
    assert after.returncode == 0, after.stderr
    assert word(after.stdout, "restored") == step
    assert word(after.stdout, "sum") == total
    assert "there is no memory tier" not in after.stderr
    released = time.monotonic() + 60
    while keepers(path) and time.monotonic() < released:
        os.sched_yield()
    assert not keepers(path), "a clean end releases the memory"


def test_a_crash_leaves_the_keeper_and_its_memory(path: Path) -> None:
    crashed = train(path, "crash")
    assert crashed.returncode == 1
    assert keepers(path), crashed.stderr
    after = train(path, "close")
    assert word(after.stdout, "restored") == word(crashed.stdout, "staged").split()[0]


def test_without_a_keeper_training_goes_on_with_one_warning(path: Path) -> None:
    program = TRAINER.replace("memory=True,", "memory=True, keeper='/nonexistent/slackwater',")
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path), "close"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("there is no memory tier") == 1
