"""The end of a process, and forks, while copies are under way."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from . import thresholds
from .context import Context, open_checkpointer, save
from .lines import Outcome

_EXIT_CODE = 7
_held: list[Any] = []  # a program's checkpointer lives as long as the program


def _filled(step: int, device: str) -> torch.Tensor:
    return torch.full((thresholds.LARGE_BYTES // 4,), float(step), device=device)


def save_and_exit(directory: str, device: str, how: str) -> None:
    """The child: step 1 is committed, step 2 is under way when the process ends."""
    ckpt = open_checkpointer(directory, rank=0, world=1)
    _held.append(ckpt)
    save(ckpt, 1, {"w": _filled(1, device)}).wait(timeout=thresholds.WAIT_SECONDS)
    _held.append(save(ckpt, 2, {"w": _filled(2, device)}))
    if how == "os._exit":
        os._exit(_EXIT_CODE)
    sys.exit(_EXIT_CODE)


def hard_exit(context: Context) -> Outcome:
    """``os._exit``: nothing of the program runs any more. What was committed must be there."""
    return _exit(context, "os._exit", least=1)


def soft_exit(context: Context) -> Outcome:
    """``sys.exit``: Slackwater's exit handler commits what is in flight."""
    return _exit(context, "sys.exit", least=2)


def _exit(context: Context, how: str, least: int) -> Outcome:
    assert context.children is not None
    folder = context.new_folder()
    child = context.children.take()
    child.start("save_and_exit", directory=str(folder), device=context.device, how=how)
    ended = child.join(thresholds.CHILD_SECONDS)
    threshold = f"status {_EXIT_CODE}, step {least} or newer"
    try:
        if ended.exit_code != _EXIT_CODE:
            return Outcome("FAIL", f"the process ended with status {ended.exit_code}", threshold)
        return _restored(folder, least, threshold)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _restored(folder: Path, least: int, threshold: str) -> Outcome:
    state = {"w": _filled(0, "cpu")}
    with open_checkpointer(folder, rank=0, world=1) as ckpt:
        step = ckpt.restore(state)
    if step is None or step < least:
        return Outcome("FAIL", f"restores step {step}", threshold)
    if not torch.equal(state["w"], _filled(step, "cpu")):
        return Outcome("FAIL", f"step {step} has other bytes than were saved", threshold)
    return Outcome("PASS", f"status {_EXIT_CODE}, step {step} verified", threshold)


def _nothing() -> None:
    pass


def fork_during_a_save(context: Context) -> Outcome:
    """As the workers of a data loader: they must be able to end, and the parent must commit."""
    tensor = _filled(1, context.device)
    with context.checkpointer() as ckpt:
        snapshot = save(ckpt, 1, {"w": tensor})
        worker = multiprocessing.get_context("fork").Process(target=_nothing)
        worker.start()
        worker.join(thresholds.CHILD_SECONDS)
        if worker.exitcode is None:
            worker.kill()
            worker.join()
            return Outcome("FAIL", "the forked process did not end", "status 0, committed")
        snapshot.wait(timeout=thresholds.WAIT_SECONDS)
        state = {"w": torch.zeros_like(tensor)}
        ckpt.restore(state, step=1)
        if worker.exitcode != 0 or not torch.equal(state["w"], tensor):
            what = f"the forked process ended with status {worker.exitcode}" if worker.exitcode else "other bytes"
            return Outcome("FAIL", what, "status 0, committed")
    return Outcome("PASS", "status 0, committed", "status 0, committed")
