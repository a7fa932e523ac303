"""Tables: dicts of tensors that are taken over from the save before.

Most of a large state is dicts of tensors whose keys never change. What follows from the keys alone, names and the text
of the tree, is kept from save to save, and used again wherever the keys are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import codec, parameters


class Table(NamedTuple):
    """A dict of tensors, or of dicts of tensors, as it was found at an earlier save: all that follows from its keys."""

    keys: Hashable
    names: list[str]
    node: codec.Rendered
    places: parameters.Places = ()  # of parameters whose shapes are in the node
    shapes: Sequence[Any] = ()
    by_memory: parameters.Places = ()  # of parameters that no module holds
    memory_names: Sequence[str | None] = ()  # and what they are called after
    facts: Any = None  # of DTensors among the tensors: all that their boxes follow from
    shards: Mapping[int, Any] = {}  # their boxes, by the number of the tensor in the state
    first: int = 0  # number of the first tensor

    def shards_from(self, first: int) -> Mapping[int, Any]:
        """As ``shards``, for a table that begins with another number."""
        if first == self.first:
            return self.shards
        return {index - self.first + first: shard for index, shard in self.shards.items()}


_TABLE_KEYS = frozenset({str, int})  # of these types exactly: equal keys then are the same keys


def local_rows(
    tensors: Iterable[Any], dtensor: type, plain_tensors: frozenset[type]
) -> tuple[list[Any], list[Any]] | None:
    """Facts and local tensors of a table with DTensors; None if one of them is more than a part of a plain tensor.

    Equal facts mean the same boxes. Almost always they are the same objects, too, so that comparing them is quick.
    """
    facts: list[Any] = []
    parts: list[Any] = []
    for tensor in tensors:
        if type(tensor) is not dtensor:
            facts.append(None)
            parts.append(tensor)
            continue
        local, spec = tensor._local_tensor, tensor._spec
        if type(local) not in plain_tensors or spec.tensor_meta is None:
            return None
        facts.append((spec.mesh, spec.placements, spec.tensor_meta, local.shape))
        parts.append(local)
    return facts, parts


def rows_of(mapping: dict[Any, Any], plain_tensors: frozenset[type]) -> tuple[Hashable, list[Any]] | None:
    """Keys and tensors of a dict of tensors, or of dicts of tensors; None for any other."""
    values = list(mapping.values())
    kinds = set(map(type, values))
    if not kinds or not set(map(type, mapping)) <= _TABLE_KEYS:
        return None
    if kinds <= plain_tensors:
        return tuple(mapping), values
    if kinds != {dict}:
        return None
    tensors = [tensor for row in values for tensor in row.values()]
    columns = [*map(tuple, values)]
    if not set(map(type, tensors)) <= plain_tensors:
        return None
    if not set(map(type, itertools.chain.from_iterable(columns))) <= _TABLE_KEYS:
        return None
    return (tuple(mapping), tuple(columns)), tensors
