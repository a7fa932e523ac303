"""Staging: what happens to a state dict between ``dcp.async_save`` and the fence.

DCP plans a save only when its state is staged, so a stager that copies everything first cannot overlap with planning
or writing. ``stage()`` returns a future instead whose ``result()`` gives the live state dict at once, so that DCP plans
and calls ``write_data`` immediately. The future is *done* when the engine has copied the last byte: that completes
``AsyncSaveResponse.staging_completion``, the fence that trainers wait for before ``optimizer.step()``.
"""

from __future__ import annotations

import copy
import logging
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from ...errors import UnsupportedError
from .. import torch_state
from ..streams import Pair, current_streams
from ..torch_ranks import is_dtensor

if TYPE_CHECKING:
    from .parts import PartEngine

logger = logging.getLogger("slackwater")

_SMALL_BYTES = 64 << 10  # tensors up to this size are copied by stage() itself
_SMALL_IN_ALL = 64 << 20
_ATOMS = (type(None), bool, int, float, str, bytes, complex)

REFUSED = (
    "Slackwater's writer copies tensors of this process, so it cannot save from another one: use "
    "async_checkpointer_type=AsyncCheckpointerType.THREAD, which blocks training no longer than the fence"
)


class Staging(Future):  # type: ignore[type-arg]
    """One state dict whose tensors are still to be copied."""

    def __init__(self, state_dict: dict[str, Any], engine: PartEngine) -> None:
        super().__init__()
        self._engine = engine
        self._watched: list[tuple[str, torch.Tensor]] = []
        self._room = _SMALL_IN_ALL
        self._state_dict = self._take(state_dict, "")
        self._versions = torch_state.versions([tensor for _, tensor in self._watched])
        self.streams = self._streams()
        self._staged = threading.Event()
        self._saver: threading.Thread | None = None

    # For DCP

    def result(self, timeout: float | None = None) -> Any:
        """The live state dict, at once. Whoever asks before it is staged is the thread that saves it."""
        if self.done():
            return super().result(timeout)
        thread = threading.current_thread()
        if self._saver is None and thread is not threading.main_thread():
            self._saver = thread
            threading.Thread(target=self._watch, name="slackwater-dcp-watch", args=(thread,), daemon=True).start()
        _stagings.current = self
        return self._state_dict

    # For the writer and the engine

    def finish(self) -> None:
        """No tensor is read any more, whether the save is well or not: DCP's other future tells that."""
        self._engine.settled(self)
        self._staged.set()
        if not self.done():
            self.set_result(self._state_dict)

    def wait(self, timeout: float | None = None) -> bool:
        return self._staged.wait(timeout)

    def changed(self) -> list[str]:
        """Tensors that were written to since they were staged, although the fence had not come."""
        now = torch_state.versions([tensor for _, tensor in self._watched])
        return [
            name for (name, _), before, after in zip(self._watched, self._versions, now, strict=True) if before != after
        ]

    def _watch(self, saver: threading.Thread) -> None:
        """A save that fails early never calls write_data. Then the end of its thread opens the fence."""
        saver.join()
        if not self.done():
            logger.warning("a save in the background ended before its state was staged; its upload_completion says why")
            self.finish()

    # What is copied right now

    def _take(self, value: Any, name: str) -> Any:
        if isinstance(value, _ATOMS):
            return value
        if isinstance(value, torch.Tensor):
            return self._take_tensor(value, name)
        if isinstance(value, Mapping):
            taken = {key: self._take(below, f"{name}.{key}" if name else str(key)) for key, below in value.items()}
            return _like(value, taken)
        if type(value) is list:
            return [self._take(below, f"{name}.{index}") for index, below in enumerate(value)]
        try:
            return copy.deepcopy(value)  # DCP looks at it later, on another thread
        except Exception:
            return value

    def _take_tensor(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if isinstance(tensor, ShardedTensor):
            self._watched += [(name, shard.tensor) for shard in tensor.local_shards()]
            return tensor
        local = tensor._local_tensor if is_dtensor(tensor) else tensor
        size = local.numel() * local.itemsize
        # Buffers and step counters may change in the next forward pass already, long before the fence.
        if name in self._engine.torn or (size <= _SMALL_BYTES and size <= self._room):
            self._room -= size
            with torch.no_grad():
                return tensor.detach().clone(memory_format=torch.preserve_format)
        self._watched.append((name, local))
        return tensor

    def _streams(self) -> list[Pair] | None:
        """Those of the trainer's thread, which produces the tensors. None: no tensor is on a device."""
        devices = sorted({tensor.get_device() for _, tensor in self._watched if tensor.is_cuda})
        return current_streams(devices) or None


_stagings = threading.local()


def staging_of_this_save() -> Staging | None:
    """The one that the saving thread took its state dict from; once."""
    staging: Staging | None = getattr(_stagings, "current", None)
    _stagings.current = None
    return staging


def _like(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """The same kind of mapping, where DCP or a planner could tell the difference."""
    if type(mapping) is dict:
        return items
    try:
        same = copy.copy(mapping)
        for key, value in items.items():
            same[key] = value  # type: ignore[index]
        return same
    except Exception:
        return items


def refuse_other_process() -> None:
    """async_save() stages before it starts its process. This finds the choice in its call, and spares that process."""
    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return
        if frame.f_code.co_name == "async_save":
            if frame.f_locals.get("async_checkpointer_type") is AsyncCheckpointerType.PROCESS:
                raise UnsupportedError(REFUSED)
            return
        frame = frame.f_back  # type: ignore[assignment]


class SlackwaterStager(AsyncStager):
    """``async_stager`` for ``dcp.async_save``, if it is to be given apart from the writer. A writer is one itself."""

    _synchronize_after_execute = True

    def __init__(self, writer: Any) -> None:
        self._engine: PartEngine = writer.engine
        self._newest: Staging | None = None

    def stage(self, state_dict: dict[str, Any]) -> Staging:  # type: ignore[override]
        refuse_other_process()
        return self._stage(state_dict)

    def _stage(self, state_dict: dict[str, Any]) -> Staging:
        staging = self._newest = Staging(state_dict, self._engine)
        self._engine.expect(staging)
        return staging

    def synchronize_staging(self) -> None:
        """Wait at the fence of the newest state that was staged."""
        newest = self._newest
        if newest is not None:
            newest.wait()

    def close(self) -> None:
        self.synchronize_staging()
        self._newest = None
