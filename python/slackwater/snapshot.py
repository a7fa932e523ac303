"""Snapshot: one state on its way to storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from . import _core
from .errors import ClosedError, Error
from .lifecycle import Ownership
from .tree import Capture, torch_adapter

Level = Literal["staged", "durable", "committed"]


@dataclass(frozen=True)
class Progress:
    """How far a snapshot has come. ``level`` is the last one reached: captured, staged, durable or committed."""

    level: str
    failed: bool
    total_bytes: int
    staged_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class SnapshotStats:
    """What a snapshot has cost, in seconds; levels count from the start of the engine's save, 0 while not reached."""

    tensor_count: int
    total_bytes: int
    at_once_bytes: int  # volatile tensors, copied inside save()
    save_seconds: float  # inside save(), all of the following three included
    flatten_seconds: float  # looking at the state
    state_dict_seconds: float  # in state_dict() of the caller's own objects
    busy_seconds: float  # waiting for an earlier snapshot
    fence_seconds: float  # training held up at the fence
    staged_seconds: float
    durable_seconds: float
    committed_seconds: float


class Snapshot:
    """One state on its way. Made by ``Checkpointer.save``; may outlive the checkpointer. Thread-safe."""

    def __init__(
        self,
        core: _core.Snapshot,
        capture: Capture,
        ownership: Ownership,
        on_torn: Callable[[str], None],
        save_seconds: float,
        flatten_seconds: float,
    ) -> None:
        self._core = core
        self._capture: Capture | None = capture  # until settled
        self._ownership = ownership
        self._on_torn = on_torn
        self._save_seconds = save_seconds
        self._flatten_seconds = flatten_seconds
        self._state_dict_seconds = capture.user_seconds
        self._fence_seconds = 0.0
        self._settling = threading.RLock()  # a garbage collection in here may close a session, on this thread

    @property
    def step(self) -> int:
        return self._core.step

    def fence(self) -> None:
        """Return when the tensors may be written again, whether the snapshot is well or failed (see ``error``)."""
        self._check_owner()
        if self._capture is None:
            return
        start = time.perf_counter()
        # Ctrl-C may end this wait, but not the one below, which gives the snapshot up if storage makes no progress.
        if not self._core.wait_released(self._ownership.stall_timeout):
            self._core.fence()
        self._settle()
        self._fence_seconds += time.perf_counter() - start

    def wait(self, level: Level = "committed", timeout: float | None = None) -> None:
        """Wait until ``level`` is reached. Raises what the snapshot failed with; TimeoutError after ``timeout`` s."""
        self._check_owner()
        start = time.monotonic()
        if self._capture is not None and self._core.wait_released(timeout):
            self._settle()
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
        self._core.wait(level, left)

    @property
    def error(self) -> Error | None:
        """What it failed with; None while it is under way or when it is committed."""
        return cast("Error | None", self._core.error())

    @property
    def progress(self) -> Progress:
        core = self._core.progress()
        return Progress(core.level, core.failed, core.total_bytes, core.staged_bytes, core.written_bytes)

    @property
    def stats(self) -> SnapshotStats:
        core = self._core.stats()
        return SnapshotStats(
            tensor_count=core.tensor_count,
            total_bytes=core.total_bytes,
            at_once_bytes=core.at_once_bytes,
            save_seconds=self._save_seconds,
            flatten_seconds=self._flatten_seconds,
            state_dict_seconds=self._state_dict_seconds,
            busy_seconds=core.busy_seconds,
            fence_seconds=self._fence_seconds,
            staged_seconds=core.staged_seconds,
            durable_seconds=core.durable_seconds,
            committed_seconds=core.committed_seconds,
        )

    def __repr__(self) -> str:
        progress = self._core.progress()
        return f"<slackwater.Snapshot step={self.step} {'failed' if progress.failed else progress.level}>"

    # For the checkpointer

    @property
    def _finished(self) -> bool:
        progress = self._core.progress()
        return progress.failed or progress.level == "committed"

    def _settle(self) -> None:
        """Once, when no source is read any more: were they left alone? Then tell the engine, and let go of them.

        Whoever comes first does it: a fence (before it returns, so that the update that follows is not taken for a
        disturbance), wait(), or the keeper thread.
        """
        with self._settling:
            capture = self._capture
            if capture is None:
                return
            torn = self._changed(capture)
            if self._capture is None:  # settled meanwhile, by this very thread
                return
            if torn is not None:
                self._on_torn(torn)
            self._core.seal(torn)
            self._capture = None

    @staticmethod
    def _changed(capture: Capture) -> str | None:
        if not capture.lazy:
            return None
        now = torch_adapter().versions(capture.lazy)
        if now == capture.versions:
            return None
        return next(
            name for name, before, after in zip(capture.names, capture.versions, now, strict=True) if before != after
        )

    def _check_owner(self) -> None:
        if self._ownership.disowned:
            raise ClosedError("this snapshot belongs to the parent process")
