"""InFlight: the snapshots that the engine has accepted and that are not committed yet, and those that failed.

A snapshot leaves in two steps, in either order. It is *settled* once its tensors are no longer read, by a fence or by
the settler thread. It is *finished* when it is committed or has failed; the next save then forgets it.

Thread rule: ``forget_finished`` belongs to the saving thread, and so does ``add``, except that close() may call it too.
The others may be called from any thread, and by a signal handler in the middle of any call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from .errors import Error
from .snapshot import Level, Snapshot

_FAILURES_KEPT = 1_000
_TIDY_SECONDS = 1.0


class Failure(NamedTuple):
    """A step that ``save`` accepted but that was not checkpointed, and why."""

    step: int
    error: Error


class InFlight:
    def __init__(self) -> None:
        self.newest: Snapshot | None = None  # the last one that the engine accepted, even if it is forgotten by now
        self._snapshots: list[Snapshot] = []  # oldest first; belongs to the saving thread
        self._unsettled: dict[Snapshot, None] = {}  # not settled yet; every change is one atomic operation
        self._failures: list[Failure] = []  # of snapshots that were forgotten

    def add(self, snapshot: Snapshot) -> None:
        """May be interrupted at any point and called again, and may run on two threads at the same time."""
        if snapshot not in self._snapshots:
            self._snapshots.append(snapshot)
        self.newest = snapshot
        self._unsettled[snapshot] = None

    # Until each is finished

    def forget_finished(self) -> Error | None:
        """Returns what the first of them failed with. Each failure is returned once, and stays in ``failures``."""
        failed = None
        remaining = []
        for snapshot in self._snapshots:
            if not snapshot._finished:
                remaining.append(snapshot)
                continue
            if (error := snapshot.error) is not None:
                self._failures = [*self._failures, Failure(snapshot.step, error)][-_FAILURES_KEPT:]
                failed = failed or error
        self._snapshots = remaining
        return failed

    @property
    def failures(self) -> list[Failure]:
        in_flight = [(snapshot.step, snapshot.error) for snapshot in self._snapshots]
        return self._failures + [Failure(step, error) for step, error in in_flight if error is not None]

    def wait(self, level: Level, timeout: float | None) -> float | None:
        """Waits until each has reached the level or failed. A TimeoutError names what is missing.

        Returns the time left for the engine to clean up, which is never quite 0.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for snapshot in list(self._snapshots):
            try:
                snapshot.wait(level, None if deadline is None else max(0.0, deadline - time.monotonic()))
            except Error:
                if not snapshot._core.progress().failed:
                    raise
        return None if deadline is None else max(_TIDY_SECONDS, deadline - time.monotonic())

    # Until each is settled

    @property
    def all_settled(self) -> bool:
        return not self._unsettled

    def fence_each(self, fence: Callable[[Snapshot], None]) -> None:
        """Calls ``fence`` for each that is not settled. Where that leaves nothing to fence, it was settled as well."""
        for snapshot in list(self._unsettled):
            fence(snapshot)
            if not snapshot._to_fence:
                self._unsettled.pop(snapshot, None)

    def settle_all(self) -> None:
        for snapshot in list(self._unsettled):
            snapshot._core.wait_released()
            snapshot._settle()
            self._unsettled.pop(snapshot, None)
