"""Unlocked: restores the checkpoint of a directory that is only read.

A Checkpointer takes the lock of its directory and claims an attempt in it. So it cannot restore from a directory that
is read-only, or that several jobs start from at the same time. This can, for one rank. It has of a Checkpointer what
``LateRandom`` uses.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

from .. import _core
from ..ranks.sharding import RankInfo
from ..restore.converted import read_copies
from ..restore.rank_local import RankLocal
from ..restore.report import RestoreReport
from ..restore.restore_plan import RestorePlan
from ..state.names import Pattern
from .loaders import RandomStates


class Unlocked:
    """For one restore."""

    def __init__(self, path: str, *, allow_pickle: bool) -> None:
        self.path = path
        self.restored: RestoreReport | None = None
        self._allow_pickle = allow_pickle
        self._random = RandomStates()

    @contextlib.contextmanager
    def resume(
        self,
        state: MutableMapping[Any, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        cast: bool = False,
        exclude: Any = None,
        rank_local: Any = "random",
    ) -> Iterator[int]:
        """As ``Checkpointer.resume``. There is always something to restore, or it raises."""
        start = time.perf_counter()
        checkpoint = _core.Checkpoint.open(self.path, step)
        contents = checkpoint.contents()
        plan = RestorePlan(
            state,
            contents,
            strict=strict,
            cast=cast,
            selected=Pattern(None, exclude),
            allow_pickle=self._allow_pickle,
            rank_info=RankInfo(0, 1),
            rank_local=RankLocal(rank_local),
        )
        targets = plan.targets()
        try:
            _wait_for_devices()
            if targets:
                checkpoint.read(targets)
            read_copies(self.path, contents.version.step, plan.writes.copies, lambda: None)
        except BaseException as error:
            error.add_note("slackwater: the state was partly overwritten and is undefined")
            raise
        plan.finish()
        self._random = plan.random
        self.restored = plan.report.build(time.perf_counter() - start, [])
        self.restored.log()
        yield contents.version.step
        self._random.apply()


def _wait_for_devices() -> None:
    """Work that is queued may still use the tensors that are written now."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
