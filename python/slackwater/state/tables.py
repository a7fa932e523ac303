"""Tables: dicts of tensors that are taken over from the save before.

Most of a large state is dicts of tensors whose keys never change. What follows from the keys alone, names and the text
of the tree, is kept from save to save, and used again wherever the keys are the same.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from . import codec, names, parameters

if TYPE_CHECKING:
    from .._core import Updates
    from .tree import Flattener


class Layers(NamedTuple):
    """Everything about a module that decides which tensors it has, and how they are named."""

    shape: tuple[Any, ...]  # what _core.module_tensors() compares
    any_ddp: bool  # whether there are DistributedDataParallel layers
    updates: list[Updates]


class Numbers(NamedTuple):
    """The parameters of an optimizer, numbered as in its state_dict()."""

    ids: tuple[bytes, ...]  # of the parameters of each group, and of the keys of its state
    groups: list[codec.Rendered]  # the numbers in each group
    state_keys: Hashable  # of the table of its state


class Table(NamedTuple):
    """A dict of tensors, or of dicts of tensors, as it was found at an earlier save: all that follows from its keys."""

    keys: Hashable
    names: list[str]
    node: codec.Rendered
    places: parameters.Places = ()  # of parameters whose shapes are in the node
    shapes: Sequence[Any] = ()
    by_memory: parameters.Places = ()  # of parameters that no module holds
    memory_names: Sequence[str | None] = ()  # and what they are called after
    facts: Any = None  # of DTensors among the tensors: all that their boxes follow from; and whether below Replicated
    shards: Mapping[int, Any] = {}  # their boxes, by the number of the tensor in the state
    first: int = 0  # number of the first tensor
    dtensor_names: Sequence[str] = ()  # of the DTensors among the tensors
    layers: Layers | None = None  # of a module
    numbers: Numbers | None = None  # of an optimizer

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
    known: dict[Any, Any] = {}
    parts: list[Any] = []
    for tensor in tensors:
        if type(tensor) is not dtensor:
            facts.append(None)
            parts.append(tensor)
            continue
        local, spec = tensor._local_tensor, tensor._spec
        if type(local) not in plain_tensors or spec.tensor_meta is None:
            return None
        fact = (spec.mesh, spec.placements, spec.tensor_meta, local.shape)
        facts.append(known.setdefault((*map(id, fact[:3]), local.shape), fact))
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


def _is_usual(optimizer: Any) -> bool:
    lists = all(type(group["params"]) is list for group in optimizer.param_groups)
    return lists and type(optimizer.state) in (dict, collections.defaultdict)


def _ids_of(optimizer: Any) -> tuple[bytes, ...]:
    """All these objects live at the time of a save, so that an address that is used again does no harm."""
    groups = [_core.object_ids(group["params"]) for group in optimizer.param_groups]
    return (*groups, _core.object_ids(optimizer.state))


class TableWalk:
    """Finds the tables of one state. Belongs to the Flattener that walks it, and adds to its lists."""

    def __init__(self, flat: Flattener, known: dict[str, Table]) -> None:
        self._flat = flat
        self.known = known
        self._plain = tuple(flat.plain_tensors)
        self._with_dtensors = (*self._plain, flat.dtensor) if flat.dtensor else self._plain
        self.kinds = frozenset(self._with_dtensors)
        self._not_compared: list[tuple[list[Any], list[Any]]] = []  # facts and local tensors of tables taken over
        self._taken_shards: list[tuple[Table, int]] = []  # tables taken over, and the numbers they begin with

    def mapping(self, mapping: dict[Any, Any], name: str, encode: Callable[[], Any]) -> Any:
        """The node of a dict, if it is a table; else None."""
        table = self.known.get(name)
        if table is not None:
            tensors = _core.table_tensors(mapping, table.keys, self.classes_of(table))
            if tensors is not None and self.again(name, table, tensors, [self._flat.updates] * len(tensors)):
                return table.node
        rows = rows_of(mapping, self.kinds)
        if rows is None:
            return None
        keys, tensors = rows
        return self.table(name, keys, tensors, [self._flat.updates] * len(tensors), encode)

    def table(
        self,
        name: str,
        keys: Hashable,
        tensors: list[Any],
        updates: list[Updates],
        encode: Callable[[], Any],
        layers: Layers | None = None,
    ) -> Any:
        """The node of these tensors: that of the save before, if it would be the same."""
        table, facts, parts = self.known.get(name), None, tensors
        wrappers: list[Any] = []
        if self._flat.dtensor in set(map(type, tensors)):
            rows = local_rows(tensors, self._flat.dtensor, self._flat.plain_tensors)
            if rows is None:
                return encode()
            facts, parts = (rows[0], self._flat.replicates), rows[1]
            wrappers = [tensor for tensor in tensors if type(tensor) is self._flat.dtensor]
        if table is None or table.keys != keys or table.facts != facts:
            return self._new(name, keys, facts, parts, encode, layers)
        self._take(name, table._replace(layers=layers), parts, updates, wrappers)
        return table.node

    def again(self, name: str, table: Table, tensors: list[Any], updates: list[Updates]) -> bool:
        """Takes over a table whose keys are still the same. False: its DTensors lie in another way."""
        parts, wrappers = tensors, []
        if table.facts is not None:
            facts, replicated = table.facts
            assert self._flat.dtensor is not None
            found = self._flat.torch.local_tensors_again(tensors, facts, self._flat.dtensor)
            if found is None or replicated != self._flat.replicates:
                return False
            parts, wrappers = found
            self._not_compared.append((facts, parts))
        self._take(name, table, parts, updates, wrappers)
        return True

    def add_shards(self) -> None:
        """Adds the boxes of tables that were taken over. As late as possible: often all are known, in one dict."""
        for table, first in self._taken_shards:
            self._flat.torch_shards.update(table.shards_from(first))
        self._taken_shards.clear()

    def has_local_shapes(self) -> bool:
        """Whether the local tensors of DTensors that were taken over have the shapes that they had."""
        return all(
            fact is None or fact[3] == part.shape
            for facts, parts in self._not_compared
            for fact, part in zip(facts, parts, strict=True)
        )

    # Optimizers

    def optimizer_again(self, optimizer: Any, name: str) -> tuple[Any, list[dict[str, Any]]] | None:
        """What torch_state.optimizer_state() gives, with nodes for the state and for the numbers of the parameters.
        None, unless the optimizer's parameters and state keys are those of the save before, in the same order."""
        memo, table = self.known.get(f"{name}\0numbers"), self.known.get(f"{name}.state")
        if memo is None or memo.numbers is None or table is None or table.keys is not memo.numbers.state_keys:
            return None
        if not _is_usual(optimizer) or memo.numbers.ids != _ids_of(optimizer):
            return None
        assert isinstance(table.keys, tuple)
        tensors = _core.row_tensors(optimizer.state, table.keys[1], self.classes_of(table))
        if tensors is None:
            return None
        updates = [self._flat.updates] * len(tensors)
        if not self.again(f"{name}.state", table, tensors, updates):
            return None
        self._flat.tables[f"{name}\0numbers"] = memo
        return table.node, [
            {**{key: value for key, value in group.items() if key != "params"}, "params": numbers}
            for group, numbers in zip(optimizer.param_groups, memo.numbers.groups, strict=True)
        ]

    def remember_optimizer(self, optimizer: Any, name: str, groups: list[dict[str, Any]]) -> None:
        """Called after the optimizer's state was encoded. Keeps it for the next save, unless something is unusual."""
        table = self._flat.tables.get(f"{name}.state")
        if (
            table is not None
            and _is_usual(optimizer)
            and all(isinstance(key, self._flat.torch.Tensor) for key in optimizer.state)
            and all(type(row) is dict for row in optimizer.state.values())  # and not, say, a tensor for each
            and all(names.stands_for_itself(key) for group in groups for key in group)
        ):
            rendered = [codec.Rendered(group["params"]) for group in groups]
            numbers = Numbers(_ids_of(optimizer), rendered, table.keys)
            self._flat.tables[f"{name}\0numbers"] = Table((), [], rendered[0], numbers=numbers)

    def classes_of(self, table: Table) -> tuple[type, ...]:
        """The classes that the tensors of a table have, if the table has not changed."""
        return self._plain if table.facts is None else self._with_dtensors

    def _take(self, name: str, table: Table, parts: list[Any], updates: list[Updates], wrappers: Sequence[Any]) -> None:
        flat, first = self._flat, len(self._flat.torch_names)
        flat.tables[name] = table
        flat.torch_names += table.names
        flat.torch_tensors += parts
        flat.torch_updates += updates
        if table.facts is not None:
            self._taken_shards.append((table, first))
            flat.add_dtensors(table.dtensor_names, wrappers)

    def _new(
        self,
        name: str,
        keys: Hashable,
        facts: Any,
        parts: Sequence[Any],
        encode: Callable[[], Any],
        layers: Layers | None,
    ) -> Any:
        flat, first, first_dtensor = self._flat, len(self._flat.torch_names), len(self._flat.dtensor_names)
        node = encode()
        if facts is not None:
            found = flat.torch_tensors[first:]
            if len(found) != len(parts) or not all(map(operator.is_, found, parts)):
                return node  # this rank holds several boxes of a DTensor, or none
            self.add_shards()  # of tables inside this one
        shards = {index: shard for index, shard in flat.torch_shards.items() if index >= first} if facts else {}
        flat.tables[name] = Table(
            keys,
            flat.torch_names[first:],
            codec.Rendered(node),
            facts=facts,
            shards=shards,
            first=first,
            dtensor_names=flat.dtensor_names[first_dtensor:],
            layers=layers,
        )
        return node
