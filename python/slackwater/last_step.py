"""StateFingerprint: tells whether a state has changed since a ``save()`` that ``every`` skipped (``save_last=True``).

At the end of a run, the state can be saved under the number of the last ``save()`` if it has not changed since. This
must be certain. Otherwise the step would hold later weights, or a later state of a loader or of the random numbers, and
a resume would silently go wrong. So each skipped ``save()`` walks the state as a real one would, but copies nothing
large. The end of the run walks it again. What cannot be compared is treated as changed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from .integrations import arrays, torch_adapter
from .ranks.sharding import RankInfo
from .state import codec
from .state.memory import HOST
from .state.tree import Flattener

_COMPARED_BYTES = 1 << 20  # at most, of an array, or of a tensor that is another object than before


class StateFingerprint:
    """A state as it was at one moment. Holds its tensors, so that their memory cannot be reused for others."""

    def __init__(self, state: Any, allow_pickle: bool, optimizer_steps: int) -> None:
        flat = Flattener(allow_pickle, None, RankInfo())
        self._tree = codec.dump_tree(flat.flatten(state))
        self._optimizer_steps = optimizer_steps
        self._thread = threading.get_ident()
        self.has_torch = bool(flat.torch_tensors)
        self._names = flat.torch_names
        self._tensors = flat.torch_tensors
        self._places = [_place(tensor) for tensor in flat.torch_tensors]
        self._array_names = flat.array_names
        self._arrays = [_bytes_of(memory.owner, memory) for memory in flat.array_memories]

    def changed(self, now: StateFingerprint) -> str | None:
        """A sentence about what has changed, or may have; None if the state is certainly the same."""
        if self._thread != now._thread:
            return "another thread has taken over, and may not look at the state"
        if self._optimizer_steps != now._optimizer_steps:
            return "an optimizer has made a step"
        if self._names != now._names or self._array_names != now._array_names or self._tree != now._tree:
            return "plain values, or the state of an object or of random numbers, have changed"
        for name, one, other, was, place in zip(
            self._names, self._tensors, now._tensors, self._places, now._places, strict=True
        ):
            if was != place and not _same_bytes(one, other):
                return f"tensor '{name}' has changed, or cannot be compared"
        for name, kept, found in zip(self._array_names, self._arrays, now._arrays, strict=True):
            if kept is None or kept != found:
                return f"array '{name}' has changed, or is too large to be compared"
        return None


class SkippedStep(NamedTuple):
    """A step that ``every`` skipped."""

    step: int
    state: Mapping[Any, Any]
    texts: dict[str, str]
    metrics: dict[str, float]
    fingerprint: StateFingerprint


def _place(tensor: Any) -> tuple[Any, ...]:
    version = torch_adapter().versions([tensor])[0]
    unknown = version < 0  # inference tensors have no version counter
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), object() if unknown else version


def _same_bytes(one: Any, other: Any) -> bool:
    """Compares tensors that are new objects, such as torch's random state, or what some state_dict() methods return."""
    if one.data_ptr() == other.data_ptr() or one.dtype != other.dtype or one.shape != other.shape:
        return one.numel() == 0 and one.dtype == other.dtype and one.shape == other.shape
    if one.device.type != "cpu" or other.device.type != "cpu" or one.numel() * one.itemsize > _COMPARED_BYTES:
        return False
    import torch

    same: bool = torch.equal(*(part.detach().contiguous().reshape(-1).view(torch.uint8) for part in (one, other)))
    return same


def _bytes_of(owner: Any, memory: Any) -> bytes | None:
    if memory.device != HOST or memory.size_bytes > _COMPARED_BYTES or not arrays.is_array(owner):
        return None
    taken: bytes = owner.tobytes()
    return taken
