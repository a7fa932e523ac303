"""Exact resume: a run that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from support import same
from torch import nn

Make = Callable[..., sw.Checkpointer]


class Data:
    """A shuffling loader with state_dict(), as StatefulDataLoader."""

    def __init__(self) -> None:
        self.position = 0
        self.rng = np.random.default_rng(3)
        self.order = self.rng.permutation(64)

    def __next__(self) -> torch.Tensor:
        if self.position == len(self.order):
            self.order, self.position = self.rng.permutation(64), 0
        index = self.order[self.position]
        self.position += 1
        return torch.sin(torch.arange(8) * float(index))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": self.order, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.order, self.rng.bit_generator.state = state["position"], state["order"], state["rng"]


class Run:
    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 8))
        parameters = self.model.parameters()
        self.optim = (
            torch.optim.AdamW(parameters, lr=0.01)
            if kind == "adamw"
            else torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)
        )
        self.sched = torch.optim.lr_scheduler.SequentialLR(
            self.optim,
            [
                torch.optim.lr_scheduler.LinearLR(self.optim, 0.1, total_iters=3),
                torch.optim.lr_scheduler.CosineAnnealingLR(self.optim, 10),
            ],
            milestones=[3],
        )
        self.data = Data()
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: list[float] = []
        self.state = {
            "model": self.model,
            "optim": self.optim,
            "sched": self.sched,
            "data": self.data,
            "rng": sw.Rng(noise=self.generator),
            "losses": self.losses,
        }

    def step(self) -> None:
        batch = torch.stack([next(self.data) for _ in range(6)])
        batch = batch + 0.1 * torch.randn(batch.shape, generator=self.generator) + random.random() + np.random.rand()
        loss = self.model(batch).square().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.sched.step()
        self.losses.append(loss.item())

    def bits(self) -> Any:
        return [
            dict(self.model.state_dict()),
            self.optim.state_dict(),
            self.sched.state_dict(),
            self.losses,
            torch.get_rng_state(),
        ]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_interrupted_run_ends_with_the_same_bits(kind: str, make: Make) -> None:
    straight = Run(kind, 1)
    for _ in range(10):
        straight.step()

    with make(keep=0) as ckpt:
        first = Run(kind, 1)
        assert ckpt.restore(first.state) is None
        for step in range(1, 8):
            first.step()
            ckpt.save(step, first.state)
    with make() as ckpt:
        second = Run(kind, 2)
        assert ckpt.restore(second.state, step=5) == 5
        for step in range(6, 11):
            second.step()
            ckpt.save(step, second.state)
    assert same(second.bits(), straight.bits())


def test_rng_continues_where_it_was(make: Make) -> None:
    mine, shuffle = random.Random(5), np.random.default_rng(5)
    rng = sw.Rng(mine=mine, shuffle=shuffle, legacy=np.random.RandomState(5), torch=torch.Generator().manual_seed(5))

    def draw() -> list[Any]:
        return [random.gauss(0, 1), np.random.randn(), torch.randn(3).tolist(), mine.random(), shuffle.random()]

    draw()
    with make() as ckpt:
        ckpt.save(1, {"rng": rng})
        expected = draw()
        draw()
        ckpt.restore({"rng": rng})
        assert draw() == expected


def test_rng_refuses_what_is_no_generator() -> None:
    with pytest.raises(sw.UsageError, match="Rng"):
        sw.Rng(odd=5)


def test_first_run_returns_none_and_second_the_step(make: Make, path: Path) -> None:
    state = {"epoch": 0}
    with make() as ckpt:
        assert ckpt.restore(state) is None
        ckpt.save(3, {"epoch": 7})
    with make() as ckpt:
        assert ckpt.restore(state) == 3
    assert state == {"epoch": 7}


def test_second_half_of_a_gaussian_pair_is_kept() -> None:
    """random.gauss() makes two numbers at a time and keeps the second for the next call."""
    for calls in (1, 2):
        own = random.Random(3)
        rng = sw.Rng(own=own)
        for _ in range(calls):
            random.gauss(0, 1)
            own.gauss(0, 1)
        state = rng.state_dict()
        expected = [random.gauss(0, 1), random.gauss(0, 1), own.gauss(0, 1), own.gauss(0, 1)]
        random.gauss(0, 1)
        rng.load_state_dict(state)
        assert [random.gauss(0, 1), random.gauss(0, 1), own.gauss(0, 1), own.gauss(0, 1)] == expected
