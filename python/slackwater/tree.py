"""A state taken apart: names and memory of its tensors, and the tree of everything else."""

from __future__ import annotations

import itertools
import logging
import operator
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _core, codec, loaders, names, parameters
from .adapters import arrays
from .codec import Node, describe_type
from .errors import UnsupportedError, UsageError
from .memory import AT_ONCE_BYTES, EARLY_COPY_ALIGNMENT, HOST, SMALL_BYTES, Memory
from .rng import Rng, is_generator
from .sharding import EngineShard, Replicated, Replicas, Seat, Shard, shards_in
from .torn import Torn

logger = logging.getLogger("slackwater")


def torch_adapter() -> Any:
    """The module that knows torch, or None while torch is not loaded."""
    if sys.modules.get("torch") is None:
        return None
    from .adapters import torch_state

    return torch_state


def class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Table(NamedTuple):
    """A dict of tensors, or of dicts of tensors, as it was found at an earlier save: all that follows from its keys."""

    keys: Hashable
    names: list[str]
    node: codec.Rendered
    places: parameters.Places = ()  # of parameters whose shapes are in the node
    shapes: Sequence[Any] = ()
    by_memory: parameters.Places = ()  # of parameters that no module holds
    memory_names: Sequence[str | None] = ()  # and what they are called after


_TABLE_KEYS = frozenset({str, int})  # of these types exactly: equal keys then are the same keys


class Flattener(codec.Encoder):
    """Walks a state once. Torch tensors and arrays are collected apart: they are looked at in different ways.

    Tensors that are boxes of global ones are in ``torch_shards`` and ``array_shards``, by their number; a tensor of
    several boxes stands there several times, under the same name.

    With ``known``, the tables of an earlier walk, dicts of tensors whose keys have not changed are not named and
    encoded again: their nodes come out as text. ``tables`` are those of this walk.
    """

    def __init__(
        self, allow_pickle: bool = False, known: dict[str, Table] | None = None, seat: Seat | None = None
    ) -> None:
        super().__init__(allow_pickle)
        self._known = known
        self._seat = seat if seat is not None else Seat()
        self.tables: dict[str, Table] = {}
        self.torch_names: list[str] = []
        self.torch_tensors: list[Any] = []
        self.torch_volatile: list[bool] = []
        self.torch_shards: dict[int, EngineShard] = {}
        self.array_names: list[str] = []
        self.array_memories: list[Memory] = []
        self.array_volatile: list[bool] = []
        self.array_shards: dict[int, EngineShard] = {}
        self.user_seconds = 0.0  # spent in state_dict() of the caller's objects
        self.objects: list[str] = []  # names of those that keep a state of their own, outer ones first
        self._torch = torch_adapter()
        self._plain_tensors: frozenset[type] = self._torch.PLAIN_TYPES if self._torch else frozenset()
        self._stands_still = False  # below an optimizer's state
        self._replicated = False  # below sw.Replicated
        self.replicated: list[codec.Marked] = []  # what is in each sw.Replicated, if other ranks have it too
        self._modules: list[tuple[Any, range]] = []  # with hooks: and the tensors their state_dict() gave
        self._optimizers: list[Any] = []
        self._named: list[tuple[str, Sequence[str] | None, Any]] = []  # modules: name, keys and tensors; or the module
        self._holders: list[tuple[Any, str, dict[str, Any]]] = []  # optimizers: name and node
        self._random: list[tuple[Node, Rng, str, bool]] = []  # taken last; and whether below sw.Replicated
        self._of_objects: list[slice] = []  # torch tensors that stand below modules and other objects
        self._open_objects = 0  # that are being walked
        self._loose: tuple[list[str], list[Any]] | None = None  # all others
        self._loose_dtensors: list[tuple[str, Any]] = []  # of these; this rank may hold several boxes, or nothing
        self._addresses: dict[str, int] | None = None  # of tensors that may name parameters

    def flatten(self, state: Any) -> Node:
        if not isinstance(state, Mapping):
            raise UsageError(
                f"the state is {names.an(type(state).__name__)}; give a dict such as {{'model': model, 'optim': optim}}"
            )
        if not state and self._known is not None and self._seat.world == 1:
            raise UsageError("the state is empty; give a dict such as {'model': model, 'optim': optim}")
        try:
            node = self.mapping(state, "")
            self.take_random_states()
        except RecursionError:
            raise UsageError(
                "the state is nested too deeply; flatten what is deeper than a few hundred levels"
            ) from None
        if self._holders:
            self._name_parameters()
        if self._torch is not None and (self._seat.world > 1 or self._torch.is_distributed()):
            self._find_replicas()
        return node

    # Tables: most of a large state

    def mapping(self, mapping: Any, name: str) -> Node:
        rows = self._rows_of(mapping) if self._known is not None and type(mapping) is dict and name else None
        if rows is None:
            return super().mapping(mapping, name)
        keys, tensors = rows
        if self._stands_still:
            volatile = [False] * len(tensors)
        else:
            volatile = [tensor.numel() * tensor.itemsize <= SMALL_BYTES for tensor in tensors]
        return self._table(name, keys, tensors, volatile, lambda: super(Flattener, self).mapping(mapping, name))

    def _rows_of(self, mapping: dict[Any, Any]) -> tuple[Hashable, list[Any]] | None:
        """Keys and tensors of a dict of tensors, or of dicts of tensors; None for any other."""
        values = list(mapping.values())
        kinds = set(map(type, values))
        if not kinds or not set(map(type, mapping)) <= _TABLE_KEYS:
            return None
        if kinds <= self._plain_tensors:
            return tuple(mapping), values
        if kinds != {dict}:
            return None
        tensors = [tensor for row in values for tensor in row.values()]
        columns = [*map(tuple, values)]
        if not set(map(type, tensors)) <= self._plain_tensors:
            return None
        if not set(map(type, itertools.chain.from_iterable(columns))) <= _TABLE_KEYS:
            return None
        return (tuple(mapping), tuple(columns)), tensors

    def _table(
        self, name: str, keys: Hashable, tensors: Iterable[Any], volatile: list[bool], encode: Callable[[], Node]
    ) -> Node:
        table = self._known.get(name) if self._known is not None else None
        if table is None or table.keys != keys:
            first = len(self.torch_names)
            node = encode()
            self.tables[name] = Table(keys, self.torch_names[first:], codec.Rendered(node))
            return node
        self.tables[name] = table
        self.torch_names += table.names
        self.torch_tensors += tensors
        self.torch_volatile += volatile
        return table.node

    # What codec.Encoder asks for

    def encode(self, value: Any, name: str) -> Node:
        if type(value) in self._plain_tensors:
            return self._plain_tensor(value, name, self._stands_still, False)
        return super().encode(value, name)

    def is_tensor(self, value: Any) -> bool:
        if type(value) is Replicated:
            return self.is_tensor(value.value)
        if shards_in(value):
            return True
        if self._torch is not None and isinstance(value, self._torch.Tensor):
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
        torch = self._torch
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, name, self._stands_still)
            if torch.is_zero_optimizer(value):
                raise UnsupportedError(
                    f"'{name}' is a ZeroRedundancyOptimizer, whose state lies in parts on the ranks, in a form of its "
                    "own that cannot be saved; use FSDP2 (fully_shard), or DistributedDataParallel with a torch optimizer"
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
                self._optimizers.append(optimizer)
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
                return self._tensor(array, name, self._stands_still)
            return self._array(arrays.memory_of(array, name), name)
        return super().other(value, name)

    # Leaves

    def _tensor(self, tensor: Any, name: str, stands_still: bool, volatile: bool = False) -> Node:
        if self._torch.is_dtensor(tensor):
            return self._dtensor(tensor, name, stands_still, volatile)
        if self._torch.is_wrapper(tensor):
            inner = self._torch.inner_tensors(tensor)
            nodes = {
                key: self._tensor(part, names.join(name, names.segment(key)), stands_still, volatile)
                for key, part in inner
            }
            return {"$": "subclass", "class": class_name(tensor), "v": nodes}
        return self._plain_tensor(tensor, name, stands_still, volatile)

    def _plain_tensor(self, tensor: Any, name: str, stands_still: bool, volatile: bool) -> Node:
        self.torch_names.append(name)
        self.torch_tensors.append(tensor)
        self.torch_volatile.append(volatile or (not stands_still and tensor.numel() * tensor.itemsize <= SMALL_BYTES))
        return {"$t": name}

    def _dtensor(self, tensor: Any, name: str, stands_still: bool, volatile: bool) -> Node:
        where = self._seat.where(tensor, name, self._replicated)
        local = tensor._local_tensor
        if not self._open_objects:
            self._loose_dtensors.append((name, tensor))
        if self._seat.world == 1 and self._torch.is_wrapper(local):
            return self._tensor(local, name, stands_still, volatile)
        for box, part in self._torch.parts(local, where.boxes, name):
            self.torch_shards[len(self.torch_names)] = where.shard(box)
            self._plain_tensor(part, name, stands_still, volatile)
        return {"$t": name}

    def _shards(self, shards: list[Shard], name: str) -> Node:
        """Boxes given by hand."""
        if len({shard.global_shape for shard in shards}) != 1:
            raise UsageError(f"the boxes of '{name}' have different global shapes")
        replicas = self._seat.on_all if self._replicated else Replicas()
        nodes = []
        for shard in shards:
            value, place = shard.tensor, (shard.global_shape, shard.offset, *replicas)
            if arrays.is_array(value):
                self.array_shards[len(self.array_names)] = place
                nodes.append(self._array(arrays.memory_of(value, name), name))
            elif self._torch is not None and type(value) in self._plain_tensors:
                self.torch_shards[len(self.torch_names)] = place
                nodes.append(self._plain_tensor(value, name, self._stands_still, False))
            else:
                raise UsageError(
                    f"'{name}' is a box of {names.an(class_name(value))}; "
                    "sw.Shard takes tensors of torch and arrays of NumPy"
                )
        return nodes[0]

    def _array(self, memory: Memory, name: str, tag: str = "$a") -> Node:
        self.array_names.append(name)
        self.array_memories.append(memory)
        self.array_volatile.append(memory.size_bytes <= SMALL_BYTES)
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
            self._of_objects.append(slice(first_tensor, len(self.torch_names)))
            if replicated:
                self._on_all_ranks(first_tensor, first_array)

    def _object(self, value: Any, name: str, state: Any, of: str = "object") -> Node:
        self.objects.append(name)
        first = len(self.torch_names)
        self._open_objects += 1
        node = {"$": "object", "of": of, "class": class_name(value), "v": self.encode(state, name)}
        self._open_objects -= 1
        self._of_objects.append(slice(first, len(self.torch_names)))
        if self._torch is not None and parameters.holds_parameters(value):
            self._holders.append((value, name, node))
        return node

    def _replicated_value(self, value: Replicated, name: str) -> Node:
        outer, first_tensor, first_array = self._replicated, len(self.torch_names), len(self.array_names)
        self._replicated = True
        node = self.encode(value.value, name)
        self._replicated = outer
        self._on_all_ranks(first_tensor, first_array)
        if self._known is None or self._seat.world == 1 or self.is_tensor(value.value):
            return node
        self.replicated.append(codec.Marked(name, node))
        return self.replicated[-1]

    def _on_all_ranks(self, first_tensor: int, first_array: int) -> None:
        """What was found from there on is the same on all of them."""
        for index in range(first_tensor, len(self.torch_names)):
            self.torch_shards.setdefault(index, self._seat.whole(self.torch_tensors[index].shape))
        for index in range(first_array, len(self.array_names)):
            self.array_shards.setdefault(index, self._seat.whole(self.array_memories[index].shape))

    def _find_replicas(self) -> None:
        """What torch keeps the same on all ranks: parameters below DDP, and the state of their optimizers; and buffers
        that DDP takes from rank 0."""
        torch, world = self._torch, self._seat.world
        replicated: set[int] = set()
        of_first_rank: set[int] = set()
        for module, given in self._modules:
            replicated |= self._ids_of(torch.ddp_parameters(module, world), given)
            of_first_rank |= self._ids_of(torch.ddp_buffers(module, world), given)
        if world > 1:
            self._find_inner_replicas(replicated, of_first_rank)
        for optimizer in self._optimizers:
            replicated.update(map(id, torch.replicated_state(optimizer, replicated, world)))
        if replicated:
            for index, tensor in enumerate(self.torch_tensors):
                if id(tensor) in replicated:
                    self.torch_shards.setdefault(index, self._seat.whole(tensor.shape))
        if of_first_rank:
            found = [index for index, tensor in enumerate(self.torch_tensors) if id(tensor) in of_first_rank]
            self._hand_over_once([index for index in found if index not in self.torch_shards])

    def _find_inner_replicas(self, replicated: set[int], of_first_rank: set[int]) -> None:
        """What lives below a DDP layer that is not in the state itself: ``model.module``, or only its optimizer."""
        torch, world = self._torch, self._seat.world
        unknown = [
            parameter
            for parameters in (
                *(module.parameters() for module, _ in self._modules),
                *(group["params"] for optimizer in self._optimizers for group in optimizer.param_groups),
            )
            for parameter in parameters
            if id(parameter) not in replicated and not torch.is_dtensor(parameter)
        ]
        if not unknown:
            return
        for layer in self._seat.ddp_layers(unknown):
            parameters, buffers = list(torch.ddp_parameters(layer, world)), list(torch.ddp_buffers(layer, world))
            for given in (range(0), *(given for _, given in self._modules if given)):
                replicated |= self._ids_of(parameters, given)
                of_first_rank |= self._ids_of(buffers, given)

    def _ids_of(self, tensors: Iterable[Any], given: range) -> set[int]:
        """Of these, and of what a state_dict() has given for them: it hands out detached tensors of the same memory."""
        tensors = list(tensors)
        found = set(map(id, tensors))
        if tensors and given:
            places = {(tensor.data_ptr(), tensor.shape) for tensor in tensors}
            for tensor in self.torch_tensors[given.start : given.stop]:
                if (tensor.data_ptr(), tensor.shape) in places:
                    found.add(id(tensor))
        return found

    def _hand_over_once(self, indices: list[int]) -> None:
        """Tensors that only rank 0's count of: it hands them over, whole, and all ranks restore from there."""
        if self._seat.rank == 0:
            for index in indices:
                self.torch_shards[index] = self._seat.alone(self.torch_tensors[index].shape)
            return
        left_out = set(indices)
        kept = [index for index in range(len(self.torch_names)) if index not in left_out]
        self.torch_names = [self.torch_names[index] for index in kept]
        self.torch_tensors = [self.torch_tensors[index] for index in kept]
        self.torch_volatile = [self.torch_volatile[index] for index in kept]
        shards = self.torch_shards
        self.torch_shards = {new: shards[old] for new, old in enumerate(kept) if old in shards}

    def _module(self, module: Any, name: str) -> Node:
        torch = self._torch
        if not torch.is_plain_module(module):
            return self._hooked_module(module, name)
        self._modules.append((module, range(0)))
        self.objects.append(name)
        first = len(self.torch_names)
        self._open_objects += 1
        keys, tensors, buffers = torch.module_tensors(module)

        def encode() -> Node:
            return {
                key: self._tensor(tensor, names.join(name, key), not is_buffer, is_buffer)
                for key, tensor, is_buffer in zip(names.strip_wrappers(keys), tensors, buffers, strict=True)
            }

        plain = self._known is not None and set(map(type, tensors)) <= self._plain_tensors
        nodes = self._table(name, (tuple(keys), tuple(buffers)), tensors, buffers, encode) if plain else encode()
        known: Any = self.tables[name].keys if plain else (keys,)  # the same object as before, if nothing has changed
        self._open_objects -= 1
        self._named.append((name, known[0], tensors))
        self._of_objects.append(slice(first, len(self.torch_names)))
        return {"$": "object", "of": "module", "class": class_name(module), "v": nodes}

    def _hooked_module(self, module: Any, name: str) -> Node:
        state = self._state_dict(module, name)
        keys = names.strip_wrappers(list(state)) if all(type(key) is str for key in state) else list(state)
        first = len(self.torch_tensors)
        node = self._object(module, name, dict(zip(keys, state.values(), strict=True)), "module")
        self._modules.append((module, range(first, len(self.torch_tensors))))
        self._named.append((name, None, module))
        # state_dict() hands out detached tensors: buffers are known by their memory.
        buffers = self._torch.storages(module.buffers())
        for index, storage in enumerate(self._torch.storages(self.torch_tensors[first:]) if buffers else (), first):
            if storage in buffers:
                self.torch_volatile[index] = True
        return node

    def _optimizer(self, optimizer: Any, name: str) -> Node:
        self._optimizers.append(optimizer)
        self.objects.append(name)
        state, groups = self._torch.optimizer_state(optimizer)
        start = len(self.torch_names)
        self._open_objects += 1
        outer = self._stands_still
        self._stands_still = True
        state_node = self.encode(state, names.join(name, "state"))
        self._stands_still = outer
        first = len(self.torch_tensors)
        groups_node = self.encode(groups, names.join(name, "param_groups"))
        # A learning rate kept in a tensor is changed by schedulers, with no optimizer step in between.
        self.torch_volatile[first:] = [True] * (len(self.torch_tensors) - first)
        node = {
            "$": "object",
            "of": "optimizer",
            "class": class_name(optimizer),
            "v": {"state": state_node, "param_groups": groups_node},
        }
        self._open_objects -= 1
        self._of_objects.append(slice(start, len(self.torch_names)))
        self._holders.append((optimizer, name, node))
        return node

    def _is_stored(self, tensor: Any) -> bool:
        """Whether the checkpoint has it under its own name, with its own shape."""
        return type(tensor) in self._plain_tensors or (
            self._torch.is_dtensor(tensor) and not self._torch.is_wrapper(tensor._local_tensor)
        )

    def _name_parameters(self) -> None:
        """Optimizers get the names of their parameters, which the same state holds, before or after them: in modules,
        or as other tensors in the same memory."""
        found = [
            (name, *self._torch.module_parameters(tensors)) if keys is None else (name, keys, tensors)
            for name, keys, tensors in self._named
        ]
        modules = parameters.module_identity(found)
        names_by_id: dict[int, tuple[str, ...]] | None = None
        memories: dict[Any, tuple[str, ...]] | None = None
        stored: set[int] = set()
        for optimizer, name, node in self._holders:
            identity = parameters.identity(optimizer, modules)
            key = f"{name}\0parameters"  # no tensor has such a name
            table = self._known.get(key) if self._known is not None else None
            if (
                table is None
                or table.keys != identity
                or table.shapes != parameters.shapes_at(optimizer, table.places)
                or (table.by_memory and not self._names_hold(optimizer, table, found))
            ):
                if names_by_id is None:
                    names_by_id = parameters.names_by_id(found)
                    plain = [tensors for _, keys, tensors in self._named if keys is not None]
                    stored = {id(tensor) for tensors in plain for tensor in tensors if self._is_stored(tensor)}
                places = parameters.without_tensor(optimizer, stored)
                shapes = parameters.shapes_at(optimizer, places)
                unnamed = parameters.without_name(optimizer, names_by_id)
                known: parameters.Names = names_by_id
                if unnamed:
                    if memories is None:
                        memories = self._memories(found)
                    key_of = self._torch.memory_key
                    known = {**known, **parameters.names_by_memory(optimizer, known, memories, key_of)}
                described = parameters.describe(optimizer, known, places)
                node["parameters"] = described
                self.tables[key] = Table(
                    identity,
                    [],
                    codec.Rendered(described),
                    places,
                    shapes,
                    unnamed,
                    [described["names"][group][index] for group, index in unnamed],
                )
            else:
                self.tables[key] = table
                node["parameters"] = table.node

    def _loose_tensors(self) -> tuple[list[str], list[Any]]:
        """Names and tensors that stand in the state by themselves, as in a state_dict()."""
        if self._loose is None:
            inside = bytearray(len(self.torch_names))
            for part in self._of_objects:
                inside[part] = b"\1" * (part.stop - part.start)
            outside = list(map(operator.not_, inside))
            self._loose = (
                list(itertools.compress(self.torch_names, outside)),
                list(itertools.compress(self.torch_tensors, outside)),
            )
        return self._loose

    def _memories(self, found: list[parameters.NamedTensors]) -> dict[Any, tuple[str, ...]]:
        loose = zip(*self._loose_tensors(), strict=True)
        named = [*parameters.named_tensors(found), *loose, *self._loose_dtensors]
        return parameters.by_memory(named, self._torch.memory_key)

    def _names_hold(self, optimizer: Any, table: Table, found: list[parameters.NamedTensors]) -> bool:
        """Whether parameters that are named by their memory, at an earlier save, are called the same today."""
        if self._addresses is None:
            own, tensors = self._loose_tensors()
            self._addresses = dict(zip(own, self._torch.addresses(tensors), strict=True))
            for name, tensor in self._loose_dtensors:
                self._addresses[name] = self._torch.addresses([tensor])[0]
            for name, tensor in parameters.named_tensors(found):
                self._addresses.setdefault(name, self._torch.addresses([tensor])[0])
        groups = optimizer.param_groups
        addresses = self._torch.addresses([groups[group]["params"][index] for group, index in table.by_memory])
        known = self._addresses
        others = set(known.values()) if None in table.memory_names else set()
        return all(
            address not in others if name is None else known.get(name) == address
            for name, address in zip(table.memory_names, addresses, strict=True)
        )


def _room(size_bytes: int) -> int:
    return -(-size_bytes // EARLY_COPY_ALIGNMENT) * EARLY_COPY_ALIGNMENT


class Capture:
    """One state, ready for the engine. Holds every source until it is dropped."""

    __slots__ = (
        "addresses",
        "devices",
        "has_torch",
        "held",
        "lazy",
        "lent",
        "names",
        "optimizers",
        "replicated",
        "structure",
        "tree",
        "user_seconds",
        "versions",
    )

    def __init__(self) -> None:
        self.structure: _core.Structure
        self.addresses: list[int] = []
        self.devices: list[int] = []  # CUDA devices that hold tensors of it
        self.lent: list[int] = []  # of those, where arrays are lent through DLPack
        self.tree = b""
        self.replicated: dict[str, str] = {}  # parts of the tree that must be the same on all ranks
        self.held: list[Any] = []
        self.has_torch = False
        self.names: list[str] = []
        self.optimizers: list[Any] = []  # of torch, found in it
        self.lazy: list[Any] = []  # torch tensors whose _version is to be compared
        self.versions: list[int] = []
        self.user_seconds = 0.0


class Capturer:
    """Takes states, one after the other. The constant part is kept from save to save and compared, never trusted."""

    def __init__(self, allow_pickle: bool, rank: int = 0, world: int = 1) -> None:
        self._allow_pickle = allow_pickle
        self.seat = Seat(rank, world)
        self._key: tuple[Any, ...] | None = None
        self._structure: _core.Structure | None = None
        self._tables: dict[str, Table] = {}
        self.torn = Torn()

    def capture(self, state: Any, compute: bool = True) -> Capture:
        """With ``compute``, tensors on a device may be packed there, on the current stream."""
        flat = Flattener(self._allow_pickle, self._tables, self.seat)
        node = flat.flatten(state)
        self._tables = flat.tables
        result = Capture()
        result.user_seconds = flat.user_seconds
        result.optimizers = flat._optimizers
        result.tree = codec.dump_tree(node)
        result.replicated = {marked.name: marked.text for marked in flat.replicated}
        volatile: list[bool] = []
        self.torn.look_at(flat.objects)
        if self.torn:
            torn = self.torn.flags(flat.array_names, flat.array_volatile)
            flat.array_volatile = list(map(operator.or_, flat.array_volatile, torn))
        dtypes: list[Any] = []
        shapes: list[Any] = []
        strides: list[Any] = []
        devices: list[int] = []
        if flat.torch_tensors:
            torch = flat._torch
            result.has_torch = True
            result.held, dtypes, shapes, strides, devices, result.addresses = torch.capture(
                flat.torch_tensors, flat.torch_names, compute
            )
            volatile = self._at_once(flat)
            lazy = list(map(operator.not_, volatile))
            result.names = list(itertools.compress(flat.torch_names, lazy))
            result.lazy = list(itertools.compress(result.held, lazy))
            result.versions = torch.versions(result.lazy)
        memories = flat.array_memories
        key = (
            flat.torch_names,
            volatile,
            dtypes,
            shapes,
            strides,
            devices,
            flat.array_names,
            flat.array_volatile,
            [(m.dtype, m.shape, m.strides, m.device) for m in memories],
            flat.torch_shards,
            flat.array_shards,
        )
        if key != self._key:
            if self._key is None and self.seat.world > 1 and self.seat.rank == 0:
                _hint_at_replicas(flat)
            self._structure = self._build(flat, volatile, dtypes, shapes, strides, devices)
            self._key = key
        result.lent = sorted({memory.device for memory in memories} - {HOST})
        result.devices = sorted({*devices, *result.lent} - {HOST})
        result.held.extend(memory.owner for memory in memories)
        result.addresses.extend(memory.address for memory in memories)
        assert self._structure is not None
        result.structure = self._structure
        return result

    def _at_once(self, flat: Flattener) -> list[bool]:
        """Which torch tensors are captured inside save(); all others are captured lazily, and their versions compared.

        Whatever was torn before is, at any price; other volatile tensors as long as the engine has room for them beside
        the arrays, which have no version.
        """
        if not self.torn and not any(flat.torch_volatile):
            return flat.torch_volatile
        names = flat.torch_names
        flags = self.torn.flags(names, flat.torch_volatile) if self.torn else [False] * len(names)
        certain = [memory.size_bytes for memory in itertools.compress(flat.array_memories, flat.array_volatile)]
        certain += [tensor.numel() * tensor.itemsize for tensor in itertools.compress(flat.torch_tensors, flags)]
        room = AT_ONCE_BYTES
        for size in map(_room, certain):
            room -= size if size <= room else 0  # save() waits for one that does not fit: it takes no room
        for index in itertools.compress(range(len(flags)), flat.torch_volatile):
            tensor = flat.torch_tensors[index]
            if not flags[index] and (size := _room(tensor.numel() * tensor.itemsize)) <= room:
                room -= size
                flags[index] = True
        late = [names[i] for i in itertools.compress(range(len(flags)), flat.torch_volatile) if not flags[i]]
        self.torn.left_for_later(late)
        return flags

    @staticmethod
    def _build(
        flat: Flattener,
        volatile: list[bool],
        dtypes: list[Any],
        shapes: list[Any],
        strides: list[Any],
        devices: list[int],
    ) -> _core.Structure:
        memories = flat.array_memories
        shards: list[Any] = []
        if flat.torch_shards or flat.array_shards:
            found = [flat.torch_shards.get(index) for index in range(len(flat.torch_names))]
            shards.append(found + [flat.array_shards.get(index) for index in range(len(memories))])
        dtype_names = [
            flat._torch.dtype_name(dtype, name) for dtype, name in zip(dtypes, flat.torch_names, strict=True)
        ]
        return _core.Structure(
            flat.torch_names + flat.array_names,
            dtype_names + [memory.dtype for memory in memories],
            shapes + [memory.shape for memory in memories],
            strides + [memory.strides for memory in memories],
            volatile + flat.array_volatile,
            devices + [memory.device for memory in memories],
            *shards,
        )


_HINT_BYTES = 1 << 20


def _hint_at_replicas(flat: Flattener) -> None:
    """Modules and optimizers that every rank saves as its own are a mistake more often than not."""
    sizes: dict[str, int] = {}
    for index, (name, tensor) in enumerate(zip(flat.torch_names, flat.torch_tensors, strict=True)):
        if index not in flat.torch_shards:
            top = name.partition(".")[0]
            sizes[top] = sizes.get(top, 0) + tensor.numel() * tensor.itemsize
    large = sorted(top for top, size in sizes.items() if size >= _HINT_BYTES)
    if large:
        logger.warning(
            "%s: %.1f MiB are saved by each of %d ranks as its own, and only %d ranks can have them back. If all ranks "
            "hold the same there, say so: sw.Replicated(x) is written once, and restored on any number of ranks",
            ", ".join(f"'{top}'" for top in large),
            sum(sizes[top] for top in large) / (1 << 20),
            flat._seat.world,
            flat._seat.world,
        )
