"""A state taken apart: names and memory of its tensors, and the tree of everything else."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .. import _core
from .._core import Updates
from ..errors import UnsupportedError, UsageError
from ..integrations import arrays, loaders, torch_adapter
from ..ranks.replicas import ReplicaFinder
from ..ranks.sharding import EngineShard, RankInfo, Replicas, Replicated, Shard, shards_in
from ..rng import Rng, is_generator
from . import codec, names, parameters
from .codec import Node, describe_type
from .memory import Memory
from .parameter_names import ParameterNamer
from .tables import Table, local_rows, rows_of


def class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Flattener(codec.Encoder):
    """Walks a state once. Torch tensors and arrays are collected apart: they are looked at in different ways.

    Tensors that are boxes of global ones are in ``torch_shards`` and ``array_shards``, by their number; a tensor of
    several boxes stands there several times, under the same name.

    With ``known``, the tables of an earlier walk, dicts of tensors whose keys have not changed are not named and
    encoded again: their nodes come out as text. ``tables`` are those of this walk.
    """

    def __init__(
        self, allow_pickle: bool = False, known: dict[str, Table] | None = None, rank_info: RankInfo | None = None
    ) -> None:
        super().__init__(allow_pickle)
        self.known = known
        self.rank_info = rank_info if rank_info is not None else RankInfo()
        self.tables: dict[str, Table] = {}
        self.torch_names: list[str] = []
        self.torch_tensors: list[Any] = []
        self.torch_updates: list[Updates] = []  # when each may be written
        self.torch_shards: dict[int, EngineShard] = {}
        self.array_names: list[str] = []
        self.array_memories: list[Memory] = []
        self.array_shards: dict[int, EngineShard] = {}
        self.user_seconds = 0.0  # spent in state_dict() of the caller's objects
        self.objects: list[str] = []  # names of those that keep a state of their own, outer ones first
        self.torch = torch_adapter()
        self.plain_tensors: frozenset[type] = self.torch.PLAIN_TYPES if self.torch else frozenset()
        self.dtensor: type | None = self.torch.dtensor_type() if self.torch else None
        self._in_tables = self.plain_tensors | ({self.dtensor} if self.dtensor else set())
        self._plain_classes, self._table_classes = tuple(self.plain_tensors), tuple(self._in_tables)
        self._updates = Updates.UNKNOWN  # of what is being walked
        self._replicated = False  # below sw.Replicated
        self.replicated: list[codec.Marked] = []  # what is in each sw.Replicated, if other ranks have it too
        self.dtensors: list[tuple[str, Any]] = []  # by name; torch_tensors has their local ones
        self.modules: list[tuple[Any, range]] = []  # with hooks: and the tensors their state_dict() gave
        self.optimizers: list[Any] = []
        self.module_tensors: list[tuple[str, Sequence[str] | None, Any]] = []  # name, keys, tensors; or the module
        self.optimizer_nodes: list[tuple[Any, str, dict[str, Any]]] = []  # with its name and its node
        self._random: list[tuple[Node, Rng, str, bool]] = []  # taken last; and whether below sw.Replicated
        self.inside_objects: list[slice] = []  # torch tensors that stand below modules and other objects
        self._open_objects = 0  # that are being walked
        self.loose_dtensors: list[tuple[str, Any]] = []  # the others; this rank may hold several boxes, or nothing

    def flatten(self, state: Any) -> Node:
        if not isinstance(state, Mapping):
            raise UsageError(
                f"the state is {names.an(type(state).__name__)}; give a dict such as {{'model': model, 'optim': optim}}"
            )
        if not state and self.known is not None and self.rank_info.world == 1:
            raise UsageError("the state is empty; give a dict such as {'model': model, 'optim': optim}")
        try:
            node = self.mapping(state, "")
            self.take_random_states()
        except RecursionError:
            raise UsageError(
                "the state is nested too deeply; flatten what is deeper than a few hundred levels"
            ) from None
        if self.optimizer_nodes:
            ParameterNamer(self).name_all()
        if self.torch is not None and (self.rank_info.world > 1 or self.torch.is_distributed()):
            ReplicaFinder(self).find()
        return node

    # Tables: most of a large state

    def mapping(self, mapping: Any, name: str) -> Node:
        rows = self._rows_of(mapping, name) if self.known is not None and type(mapping) is dict and name else None
        if rows is None:
            return super().mapping(mapping, name)
        keys, tensors = rows
        updates = [self._updates] * len(tensors)
        return self._table(name, keys, tensors, updates, lambda: super(Flattener, self).mapping(mapping, name))

    def _rows_of(self, mapping: dict[Any, Any], name: str) -> tuple[Hashable, list[Any]] | None:
        table = self.known.get(name) if self.known is not None else None
        if table is not None:
            tensors = _core.table_tensors(mapping, table.keys, self._table_classes)
            if tensors is not None:
                return table.keys, tensors
        return rows_of(mapping, self._in_tables)

    def _table(
        self, name: str, keys: Hashable, tensors: list[Any], updates: list[Updates], encode: Callable[[], Node]
    ) -> Node:
        table = self.known.get(name) if self.known is not None else None
        facts, parts = None, tensors
        if self.dtensor in set(map(type, tensors)):
            rows = self._local_rows(table, tensors)
            if rows is None:
                return encode()
            facts, parts = (rows[0], self._replicated), rows[1]
        first = len(self.torch_names)
        if table is None or table.keys != keys or table.facts != facts:
            return self._new_table(name, keys, facts, parts, encode)
        self.tables[name] = table
        self.torch_names += table.names
        self.torch_tensors += parts
        self.torch_updates += updates
        if facts is not None:
            self.torch_shards.update(table.shards_from(first))
            pairs = zip(table.names, tensors, strict=True)
            wrapped = [(own, tensor) for own, tensor in pairs if type(tensor) is self.dtensor]
            self.dtensors += wrapped
            if not self._open_objects:
                self.loose_dtensors += wrapped
        return table.node

    def _local_rows(self, table: Table | None, tensors: list[Any]) -> tuple[list[Any], list[Any]] | None:
        if table is not None and table.facts is not None:
            parts = _core.local_tensors(tensors, table.facts[0], self.dtensor, self._plain_classes)
            if parts is not None:
                return table.facts[0], parts
        return local_rows(tensors, self.dtensor, self.plain_tensors)

    def _new_table(
        self, name: str, keys: Hashable, facts: Any, parts: Sequence[Any], encode: Callable[[], Node]
    ) -> Node:
        first = len(self.torch_names)
        node = encode()
        if facts is not None:
            found = self.torch_tensors[first:]
            if len(found) != len(parts) or not all(map(operator.is_, found, parts)):
                return node  # this rank holds several boxes of a DTensor, or none
        shards = {index: shard for index, shard in self.torch_shards.items() if index >= first} if facts else {}
        own_names = self.torch_names[first:]
        self.tables[name] = Table(keys, own_names, codec.Rendered(node), facts=facts, shards=shards, first=first)
        return node

    # What codec.Encoder asks for

    def encode(self, value: Any, name: str) -> Node:
        if type(value) in self.plain_tensors:
            return self._plain_tensor(value, name, self._updates)
        return super().encode(value, name)

    def is_tensor(self, value: Any) -> bool:
        if type(value) is Replicated:
            return self.is_tensor(value.value)
        if shards_in(value):
            return True
        if self.torch is not None and isinstance(value, self.torch.Tensor):
            return True
        return arrays.is_array(value) or (arrays.is_dlpack(value) and not hasattr(value, "state_dict"))

    def holds_more_than_tensors(self, value: Any) -> bool:
        if type(value) is Replicated:
            return self.holds_more_than_tensors(value.value)
        return not shards_in(value) and super().holds_more_than_tensors(value)

    def sequence(self, values: Any, name: str) -> Any:
        shards = shards_in(values)
        return super().sequence(values, name) if shards is None else self._shards(shards, name)

    def other(self, value: Any, name: str) -> Node:
        if type(value) is Replicated:
            return self._replicated_value(value, name)
        if type(value) is Shard:
            return self._shards([value], name)
        torch = self.torch
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, name, self._updates)
            if torch.is_zero_optimizer(value):
                raise UnsupportedError(
                    f"'{name}' is a ZeroRedundancyOptimizer, whose state lies in parts on the ranks, in a form of its "
                    "own that cannot be saved; use FSDP2 (fully_shard), or DistributedDataParallel with a torch "
                    "optimizer"
                )
            if isinstance(value, torch.Module):
                return self._module(value, name)
            if torch.is_loader_without_state(value):
                raise UnsupportedError(
                    f"'{name}' is {names.an(describe_type(value))}, which has no state; "
                    "use torchdata's StatefulDataLoader (docs/guide/data-loaders.md)"
                )
            optimizer = torch.inner_optimizer(value)
            if isinstance(optimizer, torch.Optimizer):
                if torch.is_plain_optimizer(optimizer):
                    return self._optimizer(optimizer, name)
                self.optimizers.append(optimizer)
                value = optimizer  # restore() takes its class and its load_state_dict(), not those of a wrapper
        if arrays.is_array(value):
            return self._array(arrays.memory_of(value, name), name)
        if isinstance(value, type):
            return super().other(value, name)
        if isinstance(value, Rng):
            return self._random_states(value, name)
        if is_generator(value) and not self._allow_pickle:
            key = name.rpartition(".")[2]
            keyword = key if key.isidentifier() else "shuffle"
            raise UnsupportedError(
                f"'{name}' is {names.an(describe_type(value))}; random states come back last, so put it into sw.Rng: "
                f"{{'rng': sw.Rng({keyword}=generator)}}"
            )
        if callable(getattr(value, "state_dict", None)):
            return self._object(value, name, self._state_dict(value, name))
        np = sys.modules.get("numpy")
        if arrays.is_dlpack(value) and not (np is not None and isinstance(value, np.generic)):
            if arrays.is_on_cuda(value):
                memory = arrays.cuda_memory(value, name)
                return self._array(memory, name, "$a" if arrays.numpy_has(memory.dtype) else "$t")
            array = arrays.to_array(value, name)
            if torch is not None and isinstance(array, torch.Tensor):
                return self._tensor(array, name, self._updates)
            return self._array(arrays.memory_of(array, name), name)
        return super().other(value, name)

    # Leaves

    def _tensor(self, tensor: Any, name: str, updates: Updates) -> Node:
        if self.torch.is_dtensor(tensor):
            return self._dtensor(tensor, name, updates)
        if self.torch.is_wrapper(tensor):
            inner = self.torch.inner_tensors(tensor)
            nodes = {key: self._tensor(part, names.join(name, names.segment(key)), updates) for key, part in inner}
            return {"$": "subclass", "class": class_name(tensor), "v": nodes}
        return self._plain_tensor(tensor, name, updates)

    def _plain_tensor(self, tensor: Any, name: str, updates: Updates) -> Node:
        self.torch_names.append(name)
        self.torch_tensors.append(tensor)
        self.torch_updates.append(updates)
        return {"$t": name}

    def _dtensor(self, tensor: Any, name: str, updates: Updates) -> Node:
        where = self.rank_info.locate(tensor, name, self._replicated)
        local = tensor._local_tensor
        self.dtensors.append((name, tensor))
        if not self._open_objects:
            self.loose_dtensors.append((name, tensor))
        if self.rank_info.world == 1 and self.torch.is_wrapper(local):
            return self._tensor(local, name, updates)
        for box, part in self.torch.parts(local, where.boxes, name):
            self.torch_shards[len(self.torch_names)] = where.shard(box)
            self._plain_tensor(part, name, updates)
        return {"$t": name}

    def _shards(self, shards: list[Shard], name: str) -> Node:
        """Boxes given by hand."""
        if len({shard.global_shape for shard in shards}) != 1:
            raise UsageError(f"the boxes of '{name}' have different global shapes")
        replicas = self.rank_info.on_all if self._replicated else Replicas()
        nodes = []
        for shard in shards:
            value, place = shard.tensor, (shard.global_shape, shard.offset, *replicas)
            if arrays.is_array(value):
                self.array_shards[len(self.array_names)] = place
                nodes.append(self._array(arrays.memory_of(value, name), name))
            elif self.torch is not None and type(value) in self.plain_tensors:
                self.torch_shards[len(self.torch_names)] = place
                nodes.append(self._plain_tensor(value, name, self._updates))
            else:
                raise UsageError(
                    f"'{name}' is a box of {names.an(class_name(value))}; "
                    "sw.Shard takes tensors of torch and arrays of NumPy"
                )
        return nodes[0]

    def _array(self, memory: Memory, name: str, tag: str = "$a") -> Node:
        self.array_names.append(name)
        self.array_memories.append(memory)
        return {tag: name}

    # Objects

    def _state_dict(self, value: Any, name: str) -> Any:
        start = time.perf_counter()
        state = loaders.state_of(value, name)
        self.user_seconds += time.perf_counter() - start
        return state

    def _random_states(self, rng: Rng, name: str) -> Node:
        """A place for them in the tree. A state_dict() that comes later may still draw: that of a data loader which has
        not begun makes its iterator."""
        node: dict[str, Any] = {"$": "object", "of": "object", "class": class_name(rng), "v": {}}
        self._random.append((node, rng, name, self._replicated))
        return node

    def take_random_states(self) -> None:
        for node, rng, name, replicated in self._random:
            first_tensor, first_array = len(self.torch_names), len(self.array_names)
            node["v"] = self.encode(self._state_dict(rng, name), name)
            self.inside_objects.append(slice(first_tensor, len(self.torch_names)))
            if replicated:
                self._on_all_ranks(first_tensor, first_array)

    def _object(self, value: Any, name: str, state: Any, of: str = "object") -> Node:
        self.objects.append(name)
        first = len(self.torch_names)
        self._open_objects += 1
        node = {"$": "object", "of": of, "class": class_name(value), "v": self.encode(state, name)}
        self._open_objects -= 1
        self.inside_objects.append(slice(first, len(self.torch_names)))
        if self.torch is not None and parameters.holds_parameters(value):
            self.optimizer_nodes.append((value, name, node))
        return node

    def _replicated_value(self, value: Replicated, name: str) -> Node:
        outer, first_tensor, first_array = self._replicated, len(self.torch_names), len(self.array_names)
        self._replicated = True
        node = self.encode(value.value, name)
        self._replicated = outer
        self._on_all_ranks(first_tensor, first_array)
        if self.known is None or self.rank_info.world == 1 or self.is_tensor(value.value):
            return node
        self.replicated.append(codec.Marked(name, node))
        return self.replicated[-1]

    def _on_all_ranks(self, first_tensor: int, first_array: int) -> None:
        """What was found from there on is the same on all of them."""
        for index in range(first_tensor, len(self.torch_names)):
            self.torch_shards.setdefault(index, self.rank_info.whole(self.torch_tensors[index].shape))
        for index in range(first_array, len(self.array_names)):
            self.array_shards.setdefault(index, self.rank_info.whole(self.array_memories[index].shape))

    def _module(self, module: Any, name: str) -> Node:
        torch = self.torch
        if not torch.is_plain_module(module):
            return self._hooked_module(module, name)
        self.modules.append((module, range(0)))
        self.objects.append(name)
        first = len(self.torch_names)
        self._open_objects += 1
        keys, tensors, buffers = torch.module_tensors(module)
        updates = [Updates.ANY_TIME if is_buffer else Updates.BEHIND_FENCE for is_buffer in buffers]

        def encode() -> Node:
            return {
                key: self._tensor(tensor, names.join(name, key), when)
                for key, tensor, when in zip(names.strip_wrappers(keys), tensors, updates, strict=True)
            }

        plain = self.known is not None and set(map(type, tensors)) <= self._in_tables
        nodes = self._table(name, (tuple(keys), tuple(buffers)), tensors, updates, encode) if plain else encode()
        table = self.tables.get(name)
        known: Any = (keys,) if table is None else table.keys  # the same object as before, if nothing has changed
        self._open_objects -= 1
        self.module_tensors.append((name, known[0], tensors))
        self.inside_objects.append(slice(first, len(self.torch_names)))
        return {"$": "object", "of": "module", "class": class_name(module), "v": nodes}

    def _hooked_module(self, module: Any, name: str) -> Node:
        state = self._state_dict(module, name)
        keys = names.strip_wrappers(list(state)) if all(type(key) is str for key in state) else list(state)
        first = len(self.torch_tensors)
        node = self._object(module, name, dict(zip(keys, state.values(), strict=True)), "module")
        self.modules.append((module, range(first, len(self.torch_tensors))))
        self.module_tensors.append((name, None, module))
        # state_dict() hands out detached tensors: buffers are known by their memory.
        buffers = self.torch.storages(module.buffers())
        for index, storage in enumerate(self.torch.storages(self.torch_tensors[first:]) if buffers else (), first):
            if storage in buffers:
                self.torch_updates[index] = Updates.ANY_TIME
        return node

    def _optimizer(self, optimizer: Any, name: str) -> Node:
        self.optimizers.append(optimizer)
        self.objects.append(name)
        state, groups = self.torch.optimizer_state(optimizer)
        start = len(self.torch_names)
        self._open_objects += 1
        outer = self._updates
        self._updates = Updates.BEHIND_FENCE
        state_node = self.encode(state, names.join(name, "state"))
        self._updates = outer
        first = len(self.torch_tensors)
        groups_node = self.encode(groups, names.join(name, "param_groups"))
        # A learning rate kept in a tensor is changed by schedulers, with no optimizer step in between.
        self.torch_updates[first:] = [Updates.ANY_TIME] * (len(self.torch_tensors) - first)
        node = {
            "$": "object",
            "of": "optimizer",
            "class": class_name(optimizer),
            "v": {"state": state_node, "param_groups": groups_node},
        }
        self._open_objects -= 1
        self.inside_objects.append(slice(start, len(self.torch_names)))
        self.optimizer_nodes.append((optimizer, name, node))
        return node
