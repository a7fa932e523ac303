"""Four ways to train side by side: no checkpoints, Slackwater, torch.save, DCP's async_save; one at every iteration.

One process, one model. The ways take turns, in another order each round, a few steps at a time; between turns the disk
is synced, so that nobody pays for what another left behind. The stall is timed here, from outside, in the same way for
all: everything that holds up the training thread because of checkpoints, before the update and after it.
"""

import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import slackwater as sw
import torch
import torch.distributed.checkpoint as dcp
from demo_trainer import make_deterministic, new_state

ROUNDS = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1))
STEPS_A_TURN = 6


class NoCheckpoints:
    name = "no checkpoints"

    def __init__(self, folder: Path, state: dict):
        pass

    def before_update(self) -> None:
        """Waits until the state may be changed."""

    def after_update(self, step: int) -> None:
        """Saves the state."""

    def finish(self) -> None:
        """Waits until everything is saved."""

    def close(self) -> None:
        """Lets go of what it holds."""


class Slackwater(NoCheckpoints):
    name = "Slackwater"

    def __init__(self, folder: Path, state: dict):
        self._ckpt, self._state = sw.Checkpointer(folder), state

    def before_update(self) -> None:
        self._ckpt.fence()

    def after_update(self, step: int) -> None:
        self._ckpt.save(step, self._state)

    def finish(self) -> None:
        self._ckpt.wait()

    def close(self) -> None:
        self._ckpt.close()


class TorchSave(NoCheckpoints):
    name = "torch.save"

    def __init__(self, folder: Path, state: dict):
        folder.mkdir()
        self._folder, self._state = folder, state

    def after_update(self, step: int) -> None:
        target = self._folder / f"{step % 2}.pt"
        torch.save({name: part.state_dict() for name, part in self._state.items()}, target.with_suffix(".new"))
        os.replace(target.with_suffix(".new"), target)


class AsyncSave(NoCheckpoints):
    name = "dcp.async_save"

    def __init__(self, folder: Path, state: dict):
        self._folder, self._state, self._previous = folder, state, None

    def after_update(self, step: int) -> None:
        self.finish()  # one at a time, as its documentation asks for
        state = {name: part.state_dict() for name, part in self._state.items()}
        self._previous = dcp.async_save(state, checkpoint_id=self._folder / str(step % 2), no_dist=True)

    def finish(self) -> None:
        if self._previous:
            self._previous.result()


@dataclass
class Measured:
    stalls: list[float] = field(default_factory=list)  # of each step
    turns: list[float] = field(default_factory=list)  # seconds from the first step until everything was saved


def compare(folder: Path, show: Callable[[str], None]) -> dict[str, Measured]:
    warnings.filterwarnings("ignore", module="torch.distributed")
    make_deterministic()
    state = new_state()
    saved = {"model": state["model"], "optim": state["optim"]}
    ways = [way(folder / way.__name__, saved) for way in (NoCheckpoints, Slackwater, TorchSave, AsyncSave)]
    measured = {way.name: Measured() for way in ways}

    step = 0
    for way in ways:  # the first checkpoint of each allocates its buffers and imports its modules: not counted
        show(f"warming up: {way.name}")
        step = take_turn(way, state, step, 2, Measured())
    for number, order in enumerate(ROUNDS, 1):
        for way in (ways[i] for i in order):
            show(f"round {number} of {len(ROUNDS)}: {way.name}")
            step = take_turn(way, state, step, STEPS_A_TURN, measured[way.name])
    for way in ways:
        way.close()
    return measured


def take_turn(way: NoCheckpoints, state: dict, step: int, steps: int, measured: Measured) -> int:
    """Trains some steps; returns the last one."""
    os.sync()
    began = time.perf_counter()
    last = step + steps
    while step < last:
        step += 1
        state["model"](*next(state["batches"])).backward()
        stall = timed(way.before_update)
        state["optim"].step()
        state["optim"].zero_grad()
        stall += timed(way.after_update, step)
        measured.stalls.append(stall)
    way.finish()
    measured.turns.append(time.perf_counter() - began)
    return step


def timed(call: Callable, *args: object) -> float:
    began = time.perf_counter()
    call(*args)
    return time.perf_counter() - began


def table(measured: dict[str, Measured]) -> str:
    bare = statistics.median(measured[NoCheckpoints.name].turns)
    lines = [
        f"{'':16}{'stall per checkpoint':^24}{f'{STEPS_A_TURN} steps, all saved':^26}",
        f"{'':16}{'median':>10}{'longest':>12}{'median':>12}{'to none':>12}",
    ]
    for name, figures in measured.items():
        turn = statistics.median(figures.turns)
        if name == NoCheckpoints.name:
            lines.append(f"{name:16}{'-':>10}{'-':>12}{turn:>10.2f} s{'1.00':>12}")
        else:
            median, longest = (f"{1e3 * pick(figures.stalls):.1f} ms" for pick in (statistics.median, max))
            lines.append(f"{name:16}{median:>10}{longest:>12}{turn:>10.2f} s{turn / bare:>12.2f}")
    return "\n".join(lines)
