"""Where tensors sit among ranks: what a caller says (``Shard``, ``Replicated``), and what the engine is told."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import UsageError
from ..state.names import an
from . import boxes
from .boxes import Box

WORLD = "world"


class Replicated:
    """Says that ``value`` (a tensor, module, optimizer, or anything that holds such) is the same on all ranks.

    Its tensors are then written once, each rank writing a share, and are found again by any number of ranks. The first
    save compares them between the ranks. Plain values need no such word: they are compared at every save.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"sw.Replicated({self.value!r})"


class Shard:
    """Says that ``tensor`` (of torch or NumPy) is the box at ``offset`` of a global tensor of ``global_shape``.

    The boxes of all ranks must tile it exactly. A rank that holds several gives a list of them.
    """

    __slots__ = ("global_shape", "offset", "tensor")

    def __init__(self, tensor: Any, global_shape: Sequence[int], offset: Sequence[int]) -> None:
        shape = getattr(tensor, "shape", None)
        if shape is None:
            raise UsageError(f"sw.Shard() is given {an(type(tensor).__name__)}; it takes a tensor or an array")
        self.tensor = tensor
        self.global_shape = _sizes("global_shape", global_shape)
        self.offset = _sizes("offset", offset)
        if not len(shape) == len(self.global_shape) == len(self.offset):
            raise UsageError(
                f"sw.Shard() is given a tensor of {len(shape)} dimensions, global_shape={self.global_shape} and "
                f"offset={self.offset}; these have the same length"
            )
        if any(map(operator.gt, map(operator.add, self.offset, shape), self.global_shape)):
            raise UsageError(
                f"a box of {tuple(shape)} at {self.offset} does not lie within the global shape {self.global_shape}"
            )

    def __repr__(self) -> str:
        return f"<sw.Shard {tuple(self.tensor.shape)} at {self.offset} of {self.global_shape}>"


def _sizes(what: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, values))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise UsageError(f"{what} is {values!r}; it is a sequence of whole numbers, 0 or more")
    return sizes


def shards_in(value: Any) -> list[Shard] | None:
    """The boxes a value stands for: a Shard, or a list of nothing else; None for any other."""
    if type(value) is Shard:
        return [value]
    if type(value) is list and value and all(type(item) is Shard for item in value):
        return value
    return None


class Replicas(NamedTuple):
    """Ranks that hold the same boxes, and which of them this one is."""

    group: str = ""
    replica: int = 0
    replicas: int = 1


# What _core.Structure takes: (global_shape, offset, replica_group, replica, replicas).
EngineShard = tuple[tuple[int, ...], tuple[int, ...], str, int, int]


class TensorLocation(NamedTuple):
    """Where a local tensor sits: its boxes, and who else holds them."""

    global_shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    replicas: Replicas

    def shard(self, box: Box) -> EngineShard:
        return (self.global_shape, box.offset, *self.replicas)


class RankInfo:
    """Which of how many ranks this process is, and where its tensors sit: worked out once. One thread at a time."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self.on_all = Replicas(WORLD, rank, world)
        self._meshes: Any = None
        self._layers: Any = None
        self._whole: dict[Sequence[int], EngineShard] = {}  # by shape, as the following
        self._alone: dict[Sequence[int], EngineShard] = {}

    def locate(self, tensor: Any, name: str, replicated: bool) -> TensorLocation:
        """Of a DTensor."""
        if self._meshes is None:
            from ..integrations.torch_ranks import Meshes

            self._meshes = Meshes(self.rank, self.world)
        return self._meshes.locate(tensor, name, replicated)

    def ddp_layers(self, parameters: Iterable[Any]) -> list[Any]:
        """DistributedDataParallel layers over all ranks, anywhere in this process, that may hold these parameters."""
        if self._layers is None:
            from ..integrations.torch_ranks import LiveLayers

            self._layers = LiveLayers(self.world)
        found: list[Any] = self._layers.find(parameters)
        return found

    def whole(self, shape: Sequence[int]) -> EngineShard:
        """A tensor that all ranks hold. A shape is a tuple, or torch's own kind of tuple."""
        return self._whole.get(shape) or self._all_of(shape, self.on_all, self._whole)

    def alone(self, shape: Sequence[int]) -> EngineShard:
        """A tensor that this rank hands over for all."""
        return self._alone.get(shape) or self._all_of(shape, Replicas(), self._alone)

    @staticmethod
    def _all_of(shape: Sequence[int], replicas: Replicas, known: dict[Sequence[int], EngineShard]) -> EngineShard:
        own = tuple(shape)
        known[own] = found = TensorLocation(own, (), replicas).shard(boxes.whole(own))
        return found


def group_text(ranks: Iterable[int], world: int) -> str:
    """The same text on all ranks of a group, in any order; short for the groups of a mesh."""
    members = sorted(ranks)
    if len(members) == world:
        return WORLD
    stride = members[1] - members[0] if len(members) > 1 else 1
    if members == list(range(members[0], members[-1] + 1, stride)):
        return f"ranks {members[0]}-{members[-1]} by {stride}"
    return f"ranks {','.join(map(str, members))}"
