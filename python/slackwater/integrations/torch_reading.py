"""Tensors of PyTorch that look as they did at the save before: what is read of them, and what is looked at again when
the bytes have left. Import it only when torch is loaded already.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core

Tensor = torch.Tensor

PLAIN_TYPES: frozenset[type] = frozenset(
    {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter)},
)


def _make_reader() -> _core.TensorReader | None:
    """None: this PyTorch has no table of DLPack functions, and every save looks at its tensors the general way."""
    try:
        examples = [torch.empty((1,) * dimensions, device="cpu") for dimensions in range(6) for _ in range(2)]
        return _core.TensorReader(Tensor, list(PLAIN_TYPES), examples)
    except (AttributeError, TypeError):
        return None


_READER = _make_reader()


def read_again(structure: _core.Structure, tensors: list[Tensor]) -> _core.Reading | None:
    """Of tensors that are as the structure says. None if one of them is not, or needs more than a look."""
    return None if _READER is None else _READER.read(structure, tensors)


def reads_the_same(tensors: list[Tensor], reading: _core.Reading) -> bool:
    """Whether tensors that ``read_again`` has read are as they were. False also if that cannot be told quickly.

    ``reading.storages`` hold the bytes, even if a parameter is given others (``p.data = x``) meanwhile. Its
    ``identities`` tell apart the objects behind the tensors: ``torch.utils.swap_tensors`` puts another one there, with
    its own version.
    """
    return _READER is not None and _READER.same(tensors, reading)


def local_tensors_again(
    tensors: list[Tensor], facts: list[Any], dtensor: type
) -> tuple[list[Tensor], list[Tensor]] | None:
    """For a table whose DTensors are laid out as the facts of ``tables.local_rows`` say: the tensors of this rank, and
    the DTensors. None if one is laid out differently, or if this cannot be told quickly. Shapes of local tensors are
    not compared here: ``read_again`` does that, or else ``TableWalk.has_local_shapes``."""
    return None if _READER is None else _READER.local_tensors(tensors, facts, dtensor)


def step_counters_again(state: dict[Any, Any], dtensor: type, is_on_all: Callable[[Any], bool]) -> list[Tensor] | None:
    return None if _READER is None else _READER.step_counters(state, dtensor, is_on_all)


def version_bytes(tensors: list[Tensor]) -> bytes:
    """``versions`` in a form that is quick to compare."""
    found = None
    if _READER is not None:
        with torch._C.DisableTorchFunctionSubclass():  # which DTensors have none of, and which takes long to find out
            found = _READER.versions(tensors)
    return array.array("q", versions(tensors)).tobytes() if found is None else found


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """``_version`` of each; -1 where autograd keeps none (inference tensors)."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:
        return [-1 if t.is_inference() else t._version for t in tensors]


def identities(tensors: Sequence[Tensor]) -> list[int]:
    """Numbers of the objects behind them."""
    return [t._cdata for t in tensors]


def addresses_now(tensors: Sequence[Tensor]) -> list[int]:
    """Of tensors that a save took; 0 where one has none any more."""
    try:
        return [t.data_ptr() for t in tensors]
    except RuntimeError:
        return [address_of(t) for t in tensors]


def address_of(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of layouts and kinds that have none
        return 0


def storage_sizes(held: Sequence[Any]) -> list[int]:
    """Bytes of each storage, of what a save holds: storages, or tensors."""
    return [(one if isinstance(one, torch.UntypedStorage) else one.untyped_storage()).nbytes() for one in held]


def still_holds(holder: Any, address: int, size_bytes: int) -> bool:
    """Whether the bytes of a save are where they were, in the storage that is held for them. Where a tensor of our own
    holds them, its address has changed, and that is the answer."""
    if not isinstance(holder, torch.UntypedStorage):
        return False
    start = holder.data_ptr()
    return start <= address and address + size_bytes <= start + holder.nbytes()
