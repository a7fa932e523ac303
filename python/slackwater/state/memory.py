"""Memory: where a tensor's bytes lie, in the words of the engine."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .. import _core
from ..errors import UnsupportedError

SIZES: dict[str, int] = _core.dtypes()  # bytes of one element, by dtype name
HOST = -1


def unknown_dtype(dtype: Any, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"'{name}' has dtype {dtype}, which checkpoints cannot hold; convert it to one of: {', '.join(sorted(SIZES))}"
    )


Place = tuple[tuple[int, ...], tuple[int, ...]]  # of a box: the shape of the global tensor, and the offset there
Target = tuple[Any, ...]  # for the engine: name, dtype, shape, strides, address, device; of a box its Place, too


class Memory(NamedTuple):
    """``owner`` keeps the bytes alive; strides count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int
    device: int
    owner: Any

    def target(self, name: str, place: Place | None = None) -> Target:
        target = (name, self.dtype, self.shape, self.strides, self.address, self.device)
        return target if place is None else (*target, place)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements share an address (an expanded tensor): such memory can be read, not restored into."""
        if self.strides is None or 0 in self.shape:
            return False
        reach = 0
        for stride, size in sorted(
            (abs(stride), size) for stride, size in zip(self.strides, self.shape, strict=True) if size > 1
        ):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
        return False
