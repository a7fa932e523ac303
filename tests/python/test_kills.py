"""A trainer on PyTorch that is killed with SIGKILL at random moments ends as one that was left alone, bit by bit."""

from __future__ import annotations

import random
import time
from pathlib import Path

from support import start

KILLS = 3
STEPS = 40

TRAINER = """
import sys, torch, slackwater as sw
torch.set_num_threads(1)
path, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 64))
optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = {"model": model, "optim": optim, "rng": sw.Rng()}
with sw.Checkpointer(path, pool="4MiB", slab="1MiB", keep=3) as ckpt:
    start = ckpt.restore(state) or 0
    print("from", start, flush=True)
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
"""


def finish(path: Path) -> list[str]:
    out, err = start(TRAINER, path, STEPS).communicate(timeout=300)
    assert "\nend" in out, err
    return out.splitlines()


def test_trainer_killed_at_random_moments_ends_as_if_it_had_been_left_alone(tmp_path: Path) -> None:
    chance = random.Random(20261116)
    expected = finish(tmp_path / "undisturbed")[-1]
    promised = 0
    for _ in range(KILLS):
        process = start(TRAINER, tmp_path / "killed", STEPS)
        assert process.stdout is not None
        begun = process.stdout.readline().split()
        assert begun[0] == "from", process.stderr and process.stderr.read()
        assert int(begun[1]) >= promised, "it went back behind a step that was reported committed"
        time.sleep(chance.uniform(0, 0.4))
        process.kill()
        for line in process.communicate()[0].splitlines():
            if line.startswith("committed"):
                promised = int(line.split()[1])
    lines = finish(tmp_path / "killed")
    assert int(lines[0].split()[1]) >= promised
    assert lines[-1] == expected
