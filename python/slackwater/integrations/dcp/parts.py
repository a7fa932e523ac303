"""The engine that writes parts: this process's share of checkpoints that DCP coordinates.

One engine, with one pool, serves every writer of the process that has the same options, whatever directory it writes
to: trainers make a new writer, or name a new directory, for each checkpoint.

Thread rule: thread-safe. DCP saves on the caller's thread (``dcp.save``) or on a thread per save (``dcp.async_save``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import _core, lifecycle
from ...errors import ClosedError, Error
from ...ranks.sharding import RankInfo
from ...snapshot import Snapshot
from ...state.capture import Capture
from .. import torch_state
from ..fence_hooks import register_step_hook
from ..streams import Pair, producers

logger = logging.getLogger("slackwater")

Shard = tuple[tuple[int, ...], tuple[int, ...], str, int, int]  # as _core.Structure takes it


def whole(shape: Sequence[int]) -> Shard:
    """A tensor that is one box."""
    return tuple(shape), (0,) * len(shape), "", 0, 1


def box(shape: Sequence[int], offset: Sequence[int]) -> Shard:
    return tuple(shape), tuple(offset), "", 0, 1


class _PartSnapshot(Snapshot):
    """Also compares what was noted when the state was staged, which was before the engine saw it."""

    def __init__(self, arrived: list[Any], capture: Capture, ownership: Any, changed: Callable[[], list[str]]) -> None:
        super().__init__(arrived, capture, ownership, 0.0)
        self._changed_before = changed

    def _changed(self, capture: Capture) -> tuple[list[str], list[str]]:
        torn, freed = super()._changed(capture)
        return list(dict.fromkeys([*torn, *self._changed_before()])), freed


class PartEngine:
    """Writes parts. ``fence`` waits for states that were staged, but not copied yet."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.stall_timeout = float(settings.get("stall_timeout", 60.0))
        self.ownership = lifecycle.Ownership(self.stall_timeout)
        self.path = ""  # none: a part says where it goes
        self.made_at = lifecycle.caller()
        self.optimizer_steps = 0
        self.mailbox = _core.Mailbox()
        self.torn: set[str] = set()  # names of tensors that changed too early: copied when they are staged, from now on
        self._engine = _core.Engine.open(list(settings.items()), "", self.mailbox, None)
        self._saving = threading.Lock()  # the engine's save() takes one caller at a time
        self._pending: dict[Any, None] = {}  # staged, not copied yet; every change is one atomic operation
        self._remove_hook: Callable[[], None] | None = None
        self._closed = False
        lifecycle.register(self)

    @property
    def rank_info(self) -> RankInfo:
        return RankInfo(0, 1)

    # Saving

    def write(
        self,
        place: _core.PartPlace,
        names: list[str],
        tensors: list[torch.Tensor],
        shards: list[Shard | None],
        *,
        tree: bytes = b"",
        streams: list[Pair] | None = None,
        changed: Callable[[], list[str]] = list,
        on_staged: Callable[[], None] | None = None,
    ) -> str:
        """Write one part, and return what the coordinator wants of it. ``on_staged`` is called when no tensor is read
        any more, whether the part is well or not. ``changed`` then names tensors that the caller found changed."""
        if self._closed or self.ownership.disowned:
            raise ClosedError("the engine behind this writer is closed; make a new writer")
        capture = self._capture(names, tensors, shards)
        after = producers(capture.devices, []) if streams is None else streams
        arrived: list[Any] = []
        snapshot = _PartSnapshot(arrived, capture, self.ownership, changed)
        try:
            with self._saving:
                self._engine.save(
                    place.step,
                    capture.structure,
                    capture.addresses,
                    tree,
                    {},
                    capture.held,
                    arrived,
                    after,
                    never_skip=True,
                    part=place,
                )
            snapshot.fence(host=True)
        finally:
            if on_staged is not None:
                on_staged()
            self.drain_log()
        try:
            snapshot.wait("committed")  # of a part: durable, and sealed
        except Error:
            self.torn.update(snapshot._core.torn_tensors())
            raise
        finally:
            self.drain_log()
        part: str = snapshot._core.part()
        return part

    @staticmethod
    def _capture(names: list[str], tensors: list[torch.Tensor], shards: list[Shard | None]) -> Capture:
        capture = Capture()
        held, dtypes, shapes, strides, devices, capture.addresses = torch_state.capture(tensors, names)
        capture.has_torch = True
        capture.held, capture.watched, capture.names = held, list(held), names
        capture.versions, capture.identities = torch_state.versions(held), torch_state.identities(held)
        capture.sizes = torch_state.storage_sizes(held)
        capture.devices = sorted({device for device in devices if device >= 0})
        capture.structure = _core.Structure(
            names,
            [torch_state.dtype_name(dtype, name) for dtype, name in zip(dtypes, names, strict=True)],
            shapes,
            strides,
            [_core.Updates.BEHIND_FENCE] * len(names),
            devices,
            len(names),
            [],
            shards,
        )
        return capture

    # Fences

    def expect(self, staging: Any) -> None:
        """A state was staged and its tensors will be read: optimizer steps wait for that."""
        self._pending[staging] = None
        if self._remove_hook is None:
            self._remove_hook = register_step_hook(self)

    def settled(self, staging: Any) -> None:
        self._pending.pop(staging, None)

    def fence(self) -> None:
        for staging in list(self._pending):
            if not staging.wait(self.stall_timeout):
                logger.warning(
                    "a checkpoint that DCP saves in the background was not copied within %.0f s; training goes on, and "
                    "the checkpoint fails if its tensors change",
                    self.stall_timeout,
                )
                self.settled(staging)

    def fence_quietly(self) -> None:
        if self._pending and not self.ownership.disowned:
            self.fence()

    # The end

    def close_quietly(self, timeout: float | None) -> None:
        if self._closed or self.ownership.disowned:
            return
        self._closed = True
        lifecycle.forget(self)
        remove, self._remove_hook = self._remove_hook, None
        if remove is not None:
            remove()
        # Failed saves were raised where they happened. The engine would report them once more.
        with contextlib.suppress(Error):
            self._engine.close(timeout)
        self.drain_log()

    def take_over(self, by: str) -> None:
        self.close_quietly(None)

    def drain_log(self) -> None:
        while lines := self.mailbox.collect():
            for level, line in lines:
                logger.log(level, "%s", line)


_engines: dict[tuple[tuple[str, str], ...], PartEngine] = {}
_making = threading.Lock()


def engine_for(settings: dict[str, str]) -> PartEngine:
    key = tuple(sorted(settings.items()))
    with _making:
        engine = _engines.get(key)
        if engine is None or engine._closed or engine.ownership.disowned:
            engine = _engines[key] = PartEngine(settings)
        return engine


def release_pool() -> None:
    """Frees the memory that writers share. Saves in flight end first. The next save makes it again."""
    with _making:
        for engine in list(_engines.values()):
            engine.close_quietly(None)
        _engines.clear()
