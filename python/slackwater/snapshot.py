"""Snapshot: one state on its way to storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from . import _core
from .errors import ClosedError, Error
from .integrations import torch_adapter
from .integrations.streams import Pair, current_streams, stream_pairs
from .lifecycle import Ownership
from .state.capture import Capture

Level = Literal["fenced", "staged", "durable", "committed"]


@dataclass(frozen=True)
class Progress:
    """How far a snapshot has come. ``level`` is the last one reached: captured, fenced, staged, durable, committed."""

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
    host_fences: int  # fences that waited until the bytes had left
    device_fences: int  # fences that only ordered the device's streams behind the copies
    fenced_seconds: float
    staged_seconds: float
    durable_seconds: float
    committed_seconds: float


class Snapshot:
    """One state on its way. Made by ``Checkpointer.save``; may outlive the checkpointer. Thread-safe."""

    def __init__(
        self,
        arrived: list[_core.Snapshot],
        capture: Capture,
        ownership: Ownership,
        flatten_seconds: float,
    ) -> None:
        self._arrived = arrived  # filled by the engine's save(), in C, so that no signal can come between
        self._capture: Capture | None = capture  # until settled
        self._devices = capture.devices
        self._lent = bool(capture.lent)  # whether arrays of libraries other than torch are on a device
        self._to_fence = True  # until a fence has waited for the bytes to leave, or there is nothing left to save
        self._ownership = ownership
        self._save_seconds = 0.0
        self._flatten_seconds = flatten_seconds
        self._state_dict_seconds = capture.user_seconds
        self._fence_seconds = 0.0
        self._settling = threading.RLock()  # a garbage collection in here may close a session, on this thread

    @property
    def _core(self) -> _core.Snapshot:
        return self._arrived[0]

    @property
    def step(self) -> int:
        return self._core.step

    def fence(self, streams: Iterable[Any] | None = None, *, host: bool = False) -> None:
        """Return when the tensors may be written again, whether the snapshot is well or failed (see ``error``).

        Tensors on a CUDA device: by work queued from now on on ``streams``, by default torch's current stream of each
        device; the CPU waits only while copies could not be queued yet. ``host=True``, or no stream for one of the
        devices, or no ``streams`` for arrays of other libraries: the CPU waits until the bytes have left.
        """
        self._check_owner()
        # Nobody knows on which stream another library will write to the arrays that it lent.
        self._fence(list if host or (streams is None and self._lent) else lambda: self._chosen(streams))

    def _fence_step(self) -> None:
        """Before a step of torch, which runs on its current streams."""
        self._check_owner()
        self._fence(lambda: self._chosen(None))

    def _chosen(self, streams: Iterable[Any] | None) -> list[Pair]:
        if not self._devices:
            return []
        return current_streams(self._devices) if streams is None else stream_pairs(streams)

    def _fence(self, choose: Callable[[], list[Pair]]) -> None:
        if not self._to_fence or (self._capture is None and self._core.wait_released(0.0)):
            return
        start = time.perf_counter()
        chosen = choose()
        # Ctrl-C may end this wait, but not the one below, which gives the snapshot up if storage makes no progress.
        if chosen:
            self._core.wait_fenced(self._ownership.stall_timeout)
        else:
            if self._devices:
                self._core.queue_all()  # what is held back for the trainer's own copies would only make it wait longer
            self._core.wait_released(self._ownership.stall_timeout)
        well = self._core.fence(chosen)
        self._settle()
        took = time.perf_counter() - start
        # While copies run, the next fence may come for another stream, for the graph whose capture got no wait, or for
        # the host, which is about to unmap the memory. That holds for a snapshot that failed, too. Only if a device
        # hangs, training is not held up again.
        gave_up = not well and took >= self._ownership.stall_timeout
        self._to_fence = bool(chosen) and not gave_up and not self._core.wait_released(0.0)
        self._fence_seconds += took

    def wait(self, level: Level = "committed", timeout: float | None = None) -> None:
        """Wait until ``level`` is reached. Raises what the snapshot failed with; TimeoutError after ``timeout`` s."""
        self._check_owner()
        start = time.monotonic()
        if level != "fenced" and self._capture is not None and self._core.wait_released(timeout):
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
            host_fences=core.host_fences,
            device_fences=core.device_fences,
            fenced_seconds=core.fenced_seconds,
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
        """Called once no source is read any more. Checks whether they were left unchanged, tells the engine, and lets
        go of them.

        Whoever comes first does it: a fence (before it returns, so that the update that follows is not taken for an
        early write), wait(), or the settler thread.
        """
        with self._settling:
            capture = self._capture
            if capture is None:
                return
            torn, freed = self._changed(capture)
            if self._capture is None:  # already settled, by this very thread
                return
            self._core.seal(torn, freed)
            self._capture = None

    def _changed(self, capture: Capture) -> tuple[list[str], list[str]]:
        """Tensors that were written to, and tensors whose memory was freed.

        storage.resize_() allocates new memory, so in most cases the address shows it. Freed memory may be allocated
        again at the same address. Then the size shows it. If the size is the same too, it cannot be noticed. A tensor
        that was given other memory (p.data = x) has another address too, but the storage it had before is held and has
        the bytes. A tensor that has another object behind it (torch.utils.swap_tensors) is treated as written to,
        because nothing shows what became of the old one.
        """
        if not capture.watched:
            return [], []
        torch = torch_adapter()
        written = self._written_dtensors(capture)
        if not written and capture.reading is not None and torch.reads_the_same(capture.watched, capture.reading):
            return [], []
        before, versions_before, identities_before, sizes_before = capture.watched_facts()
        versions, addresses = torch.versions(capture.watched), torch.addresses_now(capture.watched)
        identities = torch.identities(capture.watched)
        sizes = torch.storage_sizes(capture.held[: len(addresses)])
        if (
            not written
            and versions == versions_before
            and addresses == before
            and identities == identities_before
            and sizes == sizes_before
        ):
            return [], []
        late = self._late(capture)
        size_bytes = capture.structure.size_bytes

        def is_freed(index: int) -> bool:
            if sizes[index] != sizes_before[index]:
                return True
            moved = addresses[index] != before[index]
            return moved and not torch.still_holds(capture.held[index], before[index], size_bytes(index))

        freed = [capture.names[index] for index in late if is_freed(index)]
        torn = [
            capture.names[index]
            for index in late
            if versions[index] != versions_before[index]
            or identities[index] != identities_before[index]
            or capture.names[index] in written
        ]
        return torn, freed

    @staticmethod
    def _written_dtensors(capture: Capture) -> set[str]:
        """DTensors that were written to through the wrapper, as an optimizer of one's own would. That counts in its own
        version, which it shares with what ``detach()`` makes of it (``state_dict()`` of a model under FSDP2)."""
        if not capture.dtensors:
            return set()
        now = torch_adapter().version_bytes(capture.dtensors)
        if now == capture.dtensor_versions:
            return set()
        versions, before = (memoryview(found).cast("q") for found in (now, capture.dtensor_versions))
        found = zip(capture.dtensor_names, versions, before, strict=True)
        return {name for name, version, earlier in found if version != earlier}

    def _late(self, capture: Capture) -> list[int]:
        """Of the compared tensors, those that the engine did not copy inside save(). The others may be written to.

        The capture itself is not changed: this may run on two threads at the same time, or again in a signal handler.
        """
        early = set(self._core.at_once_tensors())
        return [index for index in range(len(capture.names)) if index not in early]

    def _check_owner(self) -> None:
        if self._ownership.disowned:
            raise ClosedError("this snapshot belongs to the parent process")
