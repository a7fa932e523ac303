"""The negative control: an update that passes the fence by must be noticed, or a checkpoint mixes two steps.

Whether the update came in time is read from the snapshot. One that came too late proves nothing, and is tried again.
So the verdict does not depend on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import torch

import slackwater as sw

from . import thresholds
from .context import Context, save
from .lines import Outcome

_ELEMENT = -12_345  # near the end, which is copied last


def counted_update(context: Context) -> Outcome:
    """One element, written in place. Samples may miss it, torch's count of writes (``_version``) does not."""
    return _control(context, lambda tensor: tensor[_ELEMENT : _ELEMENT + 1].add_(1))


def uncounted_update(context: Context) -> Outcome:
    """Through ``.data``, which torch does not count. The samples of a tensor's bytes have to notice it."""
    return _control(context, lambda tensor: tensor.data.add_(1))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The engine logs each torn snapshot as the error that it is. Here it is what was wanted."""
    logger = logging.getLogger("slackwater")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _control(context: Context, update: Callable[[torch.Tensor], object]) -> Outcome:
    tensor = torch.zeros(thresholds.LARGE_BYTES // 4, device=context.device)
    with _quiet(), context.checkpointer() as ckpt:
        for step in range(1, thresholds.TRIES + 1):
            snapshot = save(ckpt, step, {"w": tensor})
            update(tensor)
            if context.kind == "cuda":
                torch.cuda.synchronize(context.device)
            progress = snapshot.progress
            in_time = progress.staged_bytes <= progress.total_bytes // 2
            try:
                snapshot.wait(timeout=thresholds.WAIT_SECONDS)
            except sw.TornError:
                if step in ckpt.steps():
                    return Outcome("FAIL", "noticed, and committed all the same", "caught")
                return Outcome("PASS", "caught", "caught")
            if in_time:
                return Outcome("FAIL", "committed, with bytes of two steps", "caught")
    return Outcome("WARN", f"all {thresholds.TRIES} updates came after the copies: not tried", "caught")
