"""A state taken apart: names and memory of its tensors, and the tree of everything else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core
from .._core import Updates
from ..errors import UnsupportedError, UsageError
from ..integrations import arrays, loaders, torch_adapter
from ..ranks.replicas import Counters, ReplicaFinder
from ..ranks.sharding import EngineShard, RankInfo, Replicas, Replicated, Shard, shards_in
from ..rng import Rng, is_generator
from . import codec, names, parameters
from .codec import Node, describe_type
from .memory import Memory
from .parameter_names import ParameterNamer
from .tables import Layers, Table, TableWalk


def class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Flattener(codec.Encoder):
    """Walks a state once. Torch tensors and arrays are collected apart: they are looked at in different ways.

    Tensors that are boxes of global ones are in ``torch_shards`` and ``array_shards``, by their number; a tensor of
    several boxes stands there several times, under the same name.

    With ``known``, the tables of an earlier walk, dicts of tensors whose keys have not changed are not named and
    encoded again: their nodes come out as text. ``tables`` are those of this walk. In the same way its ReplicaFinder
    uses ``known_counters`` and leaves ``counters``.
    """

    __slots__ = (
        "_open_objects",
        "_random",
        "array_memories",
        "array_names",
        "array_shards",
        "counters",
        "counters_again",
        "dtensor",
        "dtensor_names",
        "dtensors",
        "inside_objects",
        "known",
        "known_counters",
        "loose_dtensors",
        "module_tensors",
        "modules",
        "objects",
        "optimizer_nodes",
        "optimizers",
        "plain_tensors",
        "rank_info",
        "replicated",
        "replicates",
        "table_walk",
        "tables",
        "torch",
        "torch_names",
        "torch_shards",
        "torch_tensors",
        "torch_updates",
        "updates",
        "user_seconds",
        "without_ddp",
    )

    def __init__(
        self,
        allow_pickle: bool = False,
        known: dict[str, Table] | None = None,
        rank_info: RankInfo | None = None,
        known_counters: Counters | None = None,
    ) -> None:
        super().__init__(allow_pickle)
        self.known = known
        self.rank_info = rank_info if rank_info is not None else RankInfo()
        self.tables: dict[str, Table] = {}
        self.known_counters = known_counters
        self.counters: Counters | None = None
        self.counters_again = False  # they were taken over
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
        self.updates = Updates.UNKNOWN  # of what is being walked
        self.replicates = False  # below sw.Replicated
        self.replicated: list[codec.Marked] = []  # what is in each sw.Replicated, if other ranks have it too
        self.dtensor_names: list[str] = []
        self.dtensors: list[Any] = []  # of these names; torch_tensors has their local ones
        self.modules: list[tuple[Any, range]] = []  # with hooks: and the tensors their state_dict() gave
        self.without_ddp: set[int] = set()  # ids of modules of which that is known
        self.optimizers: list[Any] = []
        self.module_tensors: list[tuple[str, Sequence[str] | None, Any]] = []  # name, keys, tensors; or the module
        self.optimizer_nodes: list[tuple[Any, str, dict[str, Any]]] = []  # with its name and its node
        self._random: list[tuple[Node, Rng, str, bool]] = []  # taken last; and whether below sw.Replicated
        self.inside_objects: list[slice] = []  # torch tensors that stand below modules and other objects
        self._open_objects = 0  # that are being walked
        self.loose_dtensors: list[tuple[str, Any]] = []  # the others; this rank may hold several boxes, or nothing
        self.table_walk = None if known is None else TableWalk(self, known)

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
            finder = ReplicaFinder(self)
            if finder.find_again():
                return node
            if self.table_walk is not None:
                self.table_walk.add_shards()
            finder.find()
        elif self.table_walk is not None:
            self.table_walk.add_shards()
        return node

    def mapping(self, mapping: Any, name: str) -> Node:
        def encode() -> Node:
            return super(Flattener, self).mapping(mapping, name)

        if self.table_walk is None or type(mapping) is not dict or not name:
            return encode()
        node = self.table_walk.mapping(mapping, name, encode)
        return encode() if node is None else node

    def add_dtensors(self, own_names: Sequence[str], dtensors: Sequence[Any]) -> None:
        self.dtensor_names += own_names
        self.dtensors += dtensors
        if not self._open_objects:
            self.loose_dtensors += zip(own_names, dtensors, strict=True)

    # What codec.Encoder asks for

    def encode(self, value: Any, name: str) -> Node:
        kind = type(value)
        if kind in self.plain_tensors:
            return self._plain_tensor(value, name, self.updates)
        return value if kind is codec.Rendered else super().encode(value, name)

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
                return self._tensor(value, name, self.updates)
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
                return self._tensor(array, name, self.updates)
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
        where = self.rank_info.locate(tensor, name, self.replicates)
        local = tensor._local_tensor
        self.add_dtensors([name], [tensor])
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
        replicas = self.rank_info.on_all if self.replicates else Replicas()
        nodes = []
        for shard in shards:
            value, place = shard.tensor, (shard.global_shape, shard.offset, *replicas)
            if arrays.is_array(value):
                self.array_shards[len(self.array_names)] = place
                nodes.append(self._array(arrays.memory_of(value, name), name))
            elif self.torch is not None and type(value) in self.plain_tensors:
                self.torch_shards[len(self.torch_names)] = place
                nodes.append(self._plain_tensor(value, name, self.updates))
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
        self._random.append((node, rng, name, self.replicates))
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
        outer, first_tensor, first_array = self.replicates, len(self.torch_names), len(self.array_names)
        self.replicates = True
        node = self.encode(value.value, name)
        self.replicates = outer
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
        torch, walk = self.torch, self.table_walk
        table = None if walk is None else walk.known.get(name)
        tensors = None
        if walk is not None and table is not None and table.layers is not None:
            classes = walk.classes_of(table)
            tensors = _core.module_tensors(module, table.layers.shape, classes, torch.run_hooks)
        if tensors is not None:
            (keys, buffers), layers = table.keys, table.layers
        else:
            table = None
            if not torch.is_plain_module(module):
                return self._hooked_module(module, name)
            keys, tensors, buffers, shape = torch.module_layers(module)
            updates = [Updates.ANY_TIME if is_buffer else Updates.BEHIND_FENCE for is_buffer in buffers]
            layers = Layers(shape, torch.any_ddp([kind for kind, *_ in shape]), updates)
        self.modules.append((module, range(0)))
        if not layers.any_ddp:
            self.without_ddp.add(id(module))
        self.objects.append(name)
        first = len(self.torch_names)
        self._open_objects += 1

        def encode() -> Node:
            return {
                key: self._tensor(tensor, names.join(name, key), when)
                for key, tensor, when in zip(names.strip_wrappers(keys), tensors, layers.updates, strict=True)
            }

        if walk is not None and table is not None and walk.again(name, table, tensors, layers.updates):
            nodes = table.node
        elif walk is None or not set(map(type, tensors)) <= walk.kinds:
            nodes = encode()
        else:
            nodes = walk.table(name, (tuple(keys), tuple(buffers)), tensors, layers.updates, encode, layers)
        self._open_objects -= 1
        table = self.tables.get(name)
        known: Any = (keys,) if table is None else table.keys  # the same object as before, if nothing has changed
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
        walk, start = self.table_walk, len(self.torch_names)
        self._open_objects += 1
        outer = self.updates
        self.updates = Updates.BEHIND_FENCE
        found = None if walk is None else walk.optimizer_again(optimizer, name)
        if found is not None:
            state_node, groups = found
        else:
            state, groups = self.torch.optimizer_state(optimizer)
            state_node = self.encode(state, names.join(name, "state"))
            if walk is not None:
                walk.remember_optimizer(optimizer, name, groups)
        self.updates = outer
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
