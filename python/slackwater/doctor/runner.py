"""Runs the table of checks, on one rank or on several. A line is printed as soon as its check has ended.

Under torchrun all ranks make the checks of ranks together. One process per node, its local rank 0, makes the others.
Only rank 0 prints: the other ranks give it their WARN and FAIL lines through the job's store.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from . import thresholds
from .checks import SHARED, TABLE, Check, Phase
from .children import Child, Children, ChildTimeout
from .context import Context
from .lines import Line, Outcome, sentence
from .ranks import Ranks

Report = Callable[[Line], None]

_END = "end"  # the name under which ranks give their last lines


def run(scratch: Path | None, children: Children, quick: bool, only: str, report: Report, place: Any = None) -> None:
    """``place``: rank and local rank under torchrun. ``scratch``: None where no check of one rank alone runs."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about forks beside threads
    torch.set_num_threads(1)  # threads that spin would make figures of a busy machine worthless
    rank, local_rank = place or (0, 0)
    kept: list[Line] = []
    say = report if rank == 0 else kept.append
    gpu = cuda_device(local_rank)
    ranks = None if place is None else _join(say, rank)
    runner = Runner(Context(scratch or Path(), quick, children=children), say, rank, gpu, only, alone=place is None)
    if ranks is not None:
        runner.run_together(ranks, Path(ranks.share("scratch", str(scratch))))
    if scratch is not None:
        runner.start_children()
        runner.run_here("here")
        runner.join_children()
        runner.run_here("timed")
    if ranks is not None:
        _gather(ranks, kept, report)


def cuda_device(local_rank: int) -> str | None:
    """The GPU of this process; None if it has none that Slackwater can use."""
    if torch.version.hip is not None or not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        return None
    return f"cuda:{local_rank}"


def _join(say: Report, rank: int) -> Ranks | None:
    """None, and a FAIL line, if the ranks do not find each other. What one rank can do is done all the same."""
    try:
        return Ranks.join()
    except Exception as error:
        traceback.print_exc()
        remedy = "MASTER_ADDR and MASTER_PORT must name a port that all ranks reach; torchrun sets them"
        say(Line("ranks", Outcome("FAIL", f"they do not find each other: {sentence(error)}", "all", remedy), rank))
        return None


def _gather(ranks: Ranks, kept: list[Line], report: Report) -> None:
    """The lines of other nodes. Ranks other than 0 may end at once."""
    ranks.give(_END, [line for line in kept if line.outcome.status in ("WARN", "FAIL")])
    if ranks.rank != 0:
        return
    for rank, lines in ranks.collect(_END).items():
        for line in [silent(rank)] if lines is None else lines:
            report(line)


def silent(rank: int, check: str = "ranks") -> Line:
    figure = f"rank {rank} did not report within {thresholds.RANKS_SECONDS:g} s"
    return Line(check, Outcome("FAIL", figure, "all ranks", f"look at the log of rank {rank}"), rank)


def attempt(check: Check, run: Callable[..., Outcome], *arguments: Any) -> Outcome:
    """An exception becomes a FAIL line: no check may end the doctor."""
    try:
        found = run(*arguments)
    except Exception as error:
        traceback.print_exc()
        found = Outcome("FAIL", sentence(error))
    if found.status in ("WARN", "FAIL") and not found.remedy:
        found = dataclasses.replace(found, remedy=check.remedy)
    return _beside_load(found) if check.phase == "timed" else found


class Runner:
    """The checks of one process, by phase."""

    def __init__(self, context: Context, say: Report, rank: int, gpu: str | None, only: str, alone: bool) -> None:
        self._context = context
        self._say = say
        self._rank = rank
        self._gpu = gpu
        self._only = only
        self._alone = alone
        self._started: list[tuple[str, Check, Child | Outcome]] = []

    def run_here(self, phase: Phase) -> None:
        for name, check, context in self._planned(phase):
            if isinstance(context, Outcome):
                self._line(name, context)
            else:
                self._line(name, attempt(check, check.run, context))

    def start_children(self) -> None:
        """Compilers work beside the checks of this process."""
        for name, check, context in self._planned("child"):
            if isinstance(context, Outcome):
                self._started.append((name, check, context))
                continue
            assert context.children is not None
            child = context.children.take()
            where = {"directory": str(context.directory), "quick": context.quick, "device": context.device}
            child.start("check", check=check.name, **where)
            self._started.append((name, check, child))

    def join_children(self) -> None:
        for name, check, started in self._started:
            skipped = isinstance(started, Outcome)
            self._line(name, started if skipped else attempt(check, _joined, started))

    def run_together(self, ranks: Ranks, shared: Path) -> None:
        """What all ranks do together. ``shared`` is the scratch directory of rank 0, which reports for all."""
        in_step = self._together(ranks, SHARED, SHARED.run, shared)
        for check in TABLE:
            if check.together is None or self._only not in ("", check.name):
                continue
            if in_step:
                in_step = self._together(ranks, check, check.together, shared)
            elif ranks.rank == 0:
                self._line(check.name, Outcome("SKIP", "not run: the ranks are out of step after the failure above"))

    def _together(self, ranks: Ranks, check: Check, run: Callable[[Context], Outcome], shared: Path) -> bool:
        """Whether all ranks are well afterwards."""
        name = check.name
        context = dataclasses.replace(self._context, directory=shared, device=ranks.device)
        mine = Line(name, attempt(check, run, context), ranks.rank)
        ranks.give(name, [mine])
        well = True
        for rank, lines in ranks.collect(name).items():
            for line in [silent(rank, name)] if lines is None else lines:
                status = line.outcome.status
                well = well and status != "FAIL"
                if ranks.rank == 0 and (rank == 0 or status in ("WARN", "FAIL")):
                    self._say(line)
        return well

    def _line(self, name: str, outcome: Outcome) -> None:
        self._say(Line(name, outcome, self._rank))

    def _planned(self, phase: Phase) -> Iterator[tuple[str, Check, Context | Outcome]]:
        """The lines of a phase, each with what it runs on, or why it is skipped."""
        for check in TABLE:
            if check.phase != phase or (check.together is not None and not self._alone):
                continue
            devices = {} if check.where == "cuda" else {check.name: "cpu"}
            if check.where == "both" and self._gpu is not None:
                devices[f"{check.name} (CUDA)"] = self._gpu
            elif check.where == "cuda":
                devices[check.name] = self._gpu or ""
            for name, device in devices.items():
                if self._only not in ("", name):
                    continue
                if not device:
                    yield name, check, Outcome("SKIP", "no CUDA device")
                elif self._context.quick and not check.quick:
                    yield name, check, Outcome("SKIP", "left out by --quick")
                else:
                    yield name, check, dataclasses.replace(self._context, device=device)


def _beside_load(found: Outcome) -> Outcome:
    """Figures of a machine that has more to do than it can are no reason to worry about Slackwater."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if found.status != "WARN" or load <= cores + 1:
        return found
    remedy = "other programs keep this machine busy: run the doctor again when it is idle"
    return dataclasses.replace(found, figure=f"{found.figure} (load {load:.0f} on {cores} cores)", remedy=remedy)


def _joined(child: Child) -> Outcome:
    try:
        ended = child.join(thresholds.COMPILE_SECONDS)
    except ChildTimeout:
        remedy = "run the doctor again when the machine is idle"
        return Outcome("SKIP", f"the compiler took longer than {thresholds.COMPILE_SECONDS:g} s", "", remedy)
    if ended.result is None:
        return Outcome("FAIL", f"the process of this check ended with status {ended.exit_code}")
    return Outcome(**ended.result)
