"""Context: what every check is given."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import slackwater as sw

from . import thresholds
from .children import Children

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Context:
    directory: Path  # the scratch directory
    quick: bool = False
    device: str = "cpu"  # or "cuda:0", as torch writes it
    children: Children | None = None

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def rounds(self) -> int:
        return thresholds.QUICK_ROUNDS if self.quick else thresholds.ROUNDS

    @property
    def block_seconds(self) -> float:
        return thresholds.QUICK_BLOCK_SECONDS if self.quick else thresholds.BLOCK_SECONDS

    def new_folder(self) -> Path:
        return self.directory / f"{os.getpid()}-{next(_numbers)}"  # children write to the same directory

    @contextlib.contextmanager
    def checkpointer(self, folder: Path | None = None, **options: Any) -> Iterator[sw.Checkpointer]:
        """One of one rank, whatever the environment says, with a pool that is smaller than the state.

        Its folder is removed afterwards. Errors of the end are not the check's: what it waited for has ended.
        """
        where = self.new_folder() if folder is None else folder
        ckpt = open_checkpointer(where, rank=0, world=1, **options)
        try:
            yield ckpt
        finally:
            with contextlib.suppress(sw.Error):
                ckpt.close(timeout=thresholds.CLOSE_SECONDS)
            shutil.rmtree(where, ignore_errors=True)


def open_checkpointer(folder: Path | str, **options: Any) -> sw.Checkpointer:
    """With the doctor's small pool."""
    return sw.Checkpointer(folder, **{"pool": thresholds.POOL, "slab": thresholds.SLAB, "keep": 1, **options})


def save(ckpt: sw.Checkpointer, step: int, state: dict[str, Any]) -> sw.Snapshot:
    snapshot = ckpt.save(step, state)
    assert snapshot is not None, "a checkpointer with on_busy='wait' skipped a step"
    return snapshot
