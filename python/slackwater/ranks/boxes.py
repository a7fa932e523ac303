"""Which boxes of a global tensor a local one holds. Pure arithmetic: nothing here knows torch.

A tensor lies on a mesh of ranks. Each mesh dimension either cuts one tensor dimension into chunks (as ``torch.chunk``
does: all of the same size but the last ones, which may be smaller or empty) or repeats the tensor. Several mesh
dimensions may cut the same tensor dimension: the one to the left first, unless it is strided. A strided one with a
split factor of n is applied after the later mesh dimensions that make n chunks: so FSDP2 cuts what tensor parallelism
has cut already. Where no later dimensions make n chunks, each of n equal pieces is cut, and the local tensor holds a
chunk of every piece.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable
from typing import NamedTuple


class Cut(NamedTuple):
    """What one mesh dimension does to a tensor; in its place None stands for a dimension that repeats it."""

    dim: int
    split_factor: int = 1


class Box(NamedTuple):
    """``shape`` elements from ``start`` on in the local tensor are those from ``offset`` on in the global one."""

    start: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape


Ranges = list[tuple[int, int]]  # (first, end) in the global tensor, in the order in which the local one holds them


@functools.lru_cache(maxsize=10_000)
def local_boxes(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], cuts: tuple[Cut | None, ...]
) -> tuple[Box, ...]:
    """The boxes of the rank at ``coordinate``, in the order of its local tensor; an empty one if it holds nothing.

    >>> local_boxes((7,), (3, 2), (2, 1), (Cut(0, 2), Cut(0)))
    (Box(start=(0,), offset=(6,), shape=(1,)),)
    """
    dimensions = [
        [(0, size)] if not found else _held(size, found)
        for size, found in zip(shape, _cuts_by_dimension(len(shape), mesh_shape, coordinate, cuts), strict=True)
    ]
    boxes = tuple(_boxes(dimensions))
    return boxes[:1] if boxes[0].is_empty else boxes


def whole(shape: tuple[int, ...]) -> Box:
    nowhere = (0,) * len(shape)
    return Box(nowhere, nowhere, shape)


class _Applied(NamedTuple):
    chunks: int
    mine: int
    pieces: int  # what is there is taken apart into so many pieces first


def _cuts_by_dimension(
    dims: int, mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], cuts: tuple[Cut | None, ...]
) -> list[list[_Applied]]:
    """For each tensor dimension what cuts it, in the order in which it is done."""
    orders: list[list[_Applied]] = [[] for _ in range(dims)]
    for chunks, mine, cut in reversed(list(zip(mesh_shape, coordinate, cuts, strict=True))):
        if cut is None:
            continue
        if not -dims <= cut.dim < dims:
            raise ValueError(f"dimension {cut.dim} is cut, of {dims}")
        order = orders[cut.dim]
        made = list(itertools.accumulate((later.chunks for later in order), operator.mul, initial=1))
        if cut.split_factor in made:
            order.insert(made.index(cut.split_factor), _Applied(chunks, mine, 1))
        else:
            order.insert(0, _Applied(chunks, mine, cut.split_factor))
    return orders


def _held(size: int, order: list[_Applied]) -> Ranges:
    ranges = [(0, size)]
    for chunks, mine, pieces in order:
        ranges = _merged(r for piece in range(pieces) for r in _chunk(_chunk(ranges, pieces, piece), chunks, mine))
    return ranges


def _chunk(ranges: Ranges, chunks: int, mine: int) -> Ranges:
    """One chunk of the elements that the ranges hold one after the other."""
    total = sum(end - first for first, end in ranges)
    size = -(-total // chunks)
    begin, end = min(mine * size, total), min((mine + 1) * size, total)
    if begin == end:  # nothing, at the place where it would be
        place = _place(ranges, begin)
        return [(place, place)]
    taken = []
    passed = 0
    for first, last in ranges:
        low, high = max(begin - passed, 0), min(end - passed, last - first)
        if low < high:
            taken.append((first + low, first + high))
        passed += last - first
    return taken


def _place(ranges: Ranges, position: int) -> int:
    for first, end in ranges:
        if position < end - first:
            return first + position
        position -= end - first
    return ranges[-1][1]


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found = list(ranges)
    result: Ranges = []
    for first, end in found:
        if result and result[-1][1] == first:
            result[-1] = (result[-1][0], end)
        elif first < end:
            result.append((first, end))
    return result or found[:1]


def _boxes(dimensions: list[Ranges]) -> Iterable[Box]:
    rows = []
    for ranges in dimensions:
        starts = itertools.accumulate((end - first for first, end in ranges), initial=0)
        rows.append([(start, first, end - first) for start, (first, end) in zip(starts, ranges, strict=False)])
    for parts in itertools.product(*rows):
        yield Box(*zip(*parts, strict=True)) if parts else whole(())


def fit(boxes: Iterable[Box], shape: tuple[int, ...]) -> bool:
    """Whether the boxes fill a local tensor of this shape."""
    found = list(boxes)
    ends = [tuple(map(operator.add, box.start, box.shape)) for box in found]
    elements = sum(math.prod(box.shape) for box in found)
    return tuple(map(max, zip(*ends, strict=True))) == shape and elements == math.prod(shape)
