"""What training feels of a snapshot that is being saved, and what save() itself costs.

An operation is timed alone and beside saves, in blocks that alternate, because a busy machine changes from second to
second. The calls of save() between the operations are not part of the figures; they have a check of their own.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

import slackwater as sw

from . import thresholds
from .context import Context, save
from .lines import Outcome

_QUEUED = 64  # operations; a full queue of the device would make each launch wait

# From which level on a snapshot disturbs nobody. What follows the copies from a GPU does not touch the GPU any more.
_COPIED = ("staged", "durable", "committed")
_WRITTEN = ("committed",)

Operation = Callable[[], object]


class Timings(NamedTuple):
    idle: list[float]
    busy: list[float]  # while a snapshot is under way


class Load:
    """A snapshot that is always under way: when one has ended, ``keep_busy`` saves the next."""

    def __init__(self, ckpt: sw.Checkpointer, device: str) -> None:
        self._ckpt = ckpt
        kind = device.partition(":")[0]
        self._state = {"w": torch.zeros(thresholds.LOAD_BYTES[kind] // 4, device=device)}
        self._over = _COPIED if kind == "cuda" else _WRITTEN
        self._steps = itertools.count(1)
        self._snapshot: sw.Snapshot | None = None

    def keep_busy(self) -> None:
        if self._snapshot is not None and self._snapshot.progress.level in self._over:
            self.rest()
        if self._snapshot is None:
            self._snapshot = save(self._ckpt, next(self._steps), self._state)

    def rest(self) -> None:
        if self._snapshot is not None:
            self._snapshot.wait(timeout=thresholds.WAIT_SECONDS)
            self._snapshot = None


def beside_saves(context: Context, operation: Operation, repeat: Callable[[], Iterator[object]]) -> Timings:
    """``repeat`` says how often: one block runs the operation once for each item."""
    timings = Timings([], [])
    with context.checkpointer(pool=thresholds.LOAD_POOL[context.kind]) as ckpt:
        load = Load(ckpt, context.device)
        load.keep_busy()  # the first save makes the pool
        load.rest()
        operation()
        for _ in range(thresholds.BLOCKS):
            timings.idle.extend(_timed(operation) for _ in repeat())
            for _ in repeat():
                load.keep_busy()
                timings.busy.append(_timed(operation))
            load.rest()
    return timings


def _timed(operation: Operation) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def _for_a_while(context: Context) -> Callable[[], Iterator[object]]:
    def repeat() -> Iterator[object]:
        deadline = time.perf_counter() + context.block_seconds
        for number in itertools.count(1):
            yield None
            if context.kind == "cuda" and number % _QUEUED == 0:
                torch.cuda.synchronize(context.device)
            if time.perf_counter() >= deadline and number >= thresholds.LEAST_OPERATIONS:
                return

    return repeat


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def latency(timings: Timings, kind: str) -> Outcome:
    ratio, floor = thresholds.LATENCY_RATIO[kind], thresholds.LATENCY_FLOOR_MS[kind]
    idle, busy = ([1e3 * _percentile(values, percent) for percent in (50, 99)] for values in timings)
    figure = f"p50 {idle[0]:.3f} -> {busy[0]:.3f} ms, p99 {idle[1]:.3f} -> {busy[1]:.3f} ms"
    slow = busy[1] > max(ratio * idle[1], floor)
    return Outcome("WARN" if slow else "PASS", figure, f"p99 up to {ratio:g} x idle, or {floor:g} ms")


def rate(timings: Timings, kind: str, work: float, unit: str) -> Outcome:
    """``work``: how many of the unit's things one operation does."""
    share = thresholds.RATE_SHARE[kind]
    idle, busy = (work / statistics.median(values) for values in timings)
    slow = busy < share * idle
    return Outcome("WARN" if slow else "PASS", f"{idle:.3g} -> {busy:.3g} {unit}", f"{share:.0%} of idle or more")


def item(context: Context) -> Outcome:
    """``loss.item()``: on a GPU it waits for a small copy, which must not wait behind the snapshot's."""
    loss = torch.zeros((), device=context.device)
    return latency(beside_saves(context, loss.item, _for_a_while(context)), context.kind)


def launch(context: Context) -> Outcome:
    """How long the CPU is busy with one small operation."""
    tensor = torch.zeros(64, device=context.device)
    return latency(beside_saves(context, lambda: tensor.add_(1), _for_a_while(context)), context.kind)


def matmul(context: Context) -> Outcome:
    size = 4096 if context.kind == "cuda" else 384
    matrix = torch.randn(size, size, device=context.device)

    def multiply() -> None:
        torch.mm(matrix, matrix)
        if context.kind == "cuda":
            torch.cuda.synchronize(context.device)

    timings = beside_saves(context, multiply, _for_a_while(context))
    return rate(timings, context.kind, 2 * size**3 / 1e9, "GFLOP/s")


def save_cost(context: Context) -> Outcome:
    """Milliseconds inside save(), for a state of many tensors whose structure does not change.

    The fastest of several, because whatever else the machine does only adds to it.
    """
    state = {"w": [torch.zeros(2048, device=context.device) for _ in range(thresholds.SAVE_COUNT)]}
    found = []
    with context.checkpointer(pool="16MiB") as ckpt:
        for step in range(1, thresholds.SAVE_TRIES + 1):
            snapshot = save(ckpt, step, state)
            ckpt.fence()
            snapshot.wait(timeout=thresholds.WAIT_SECONDS)
            found.append(1e3 * snapshot.stats.save_seconds)
    cost = min(found)
    figure = f"{cost:.1f} ms per save(), the fastest of {len(found)}"
    return Outcome("WARN" if cost > thresholds.SAVE_MS else "PASS", figure, f"{thresholds.SAVE_MS:g} ms")
