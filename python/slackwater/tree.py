"""A state taken apart: names and memory of its tensors, and the tree of everything else."""

from __future__ import annotations

import itertools
import logging
import operator
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from . import _core, codec, names
from .adapters import arrays
from .codec import Node
from .errors import UsageError
from .memory import AT_ONCE_BYTES, EARLY_COPY_ALIGNMENT, HOST, SMALL_BYTES, Memory
from .sharding import EngineShard, Replicated, Replicas, Seat, Shard, shards_in

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
        self._torch = torch_adapter()
        self._plain_tensors: frozenset[type] = self._torch.PLAIN_TYPES if self._torch else frozenset()
        self._stands_still = False  # below an optimizer's state
        self._replicated = False  # below sw.Replicated
        self._modules: list[tuple[Any, range]] = []  # with hooks: and the tensors their state_dict() gave
        self._optimizers: list[Any] = []

    def flatten(self, state: Any) -> Node:
        if not isinstance(state, Mapping):
            raise UsageError(
                f"the state is a {type(state).__name__}; give a dict such as {{'model': model, 'optim': optim}}"
            )
        try:
            node = self.mapping(state, "")
        except RecursionError:
            raise UsageError(
                "the state is nested too deeply; flatten what is deeper than a few hundred levels"
            ) from None
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
            if isinstance(value, torch.Module):
                return self._module(value, name)
            if isinstance(value, torch.Optimizer) and torch.is_plain_optimizer(value):
                return self._optimizer(value, name)
        if arrays.is_array(value):
            return self._array(arrays.memory_of(value, name), name)
        if isinstance(value, type):
            return super().other(value, name)
        if callable(getattr(value, "state_dict", None)):
            return self._object(value, name, self._state_dict(value))
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
                    f"'{name}' is a box of a {class_name(value)}; sw.Shard takes tensors of torch and arrays of NumPy"
                )
        return nodes[0]

    def _array(self, memory: Memory, name: str, tag: str = "$a") -> Node:
        self.array_names.append(name)
        self.array_memories.append(memory)
        self.array_volatile.append(memory.size_bytes <= SMALL_BYTES)
        return {tag: name}

    # Objects

    def _state_dict(self, value: Any) -> Any:
        start = time.perf_counter()
        state = value.state_dict()
        self.user_seconds += time.perf_counter() - start
        return state

    def _object(self, value: Any, name: str, state: Any, of: str = "object") -> Node:
        return {"$": "object", "of": of, "class": class_name(value), "v": self.encode(state, name)}

    def _replicated_value(self, value: Replicated, name: str) -> Node:
        outer, first_tensor, first_array = self._replicated, len(self.torch_names), len(self.array_names)
        self._replicated = True
        node = self.encode(value.value, name)
        self._replicated = outer
        for index in range(first_tensor, len(self.torch_names)):
            self.torch_shards.setdefault(index, self._seat.whole(self.torch_tensors[index].shape))
        for index in range(first_array, len(self.array_names)):
            self.array_shards.setdefault(index, self._seat.whole(self.array_memories[index].shape))
        return node

    def _find_replicas(self) -> None:
        """What torch keeps the same on all ranks: parameters below DDP, and the state of their optimizers; and buffers
        that DDP takes from rank 0."""
        torch, world = self._torch, self._seat.world
        replicated: set[int] = set()
        of_first_rank: set[int] = set()
        for module, given in self._modules:
            replicated |= self._ids_of(torch.ddp_parameters(module, world), given)
            of_first_rank |= self._ids_of(torch.ddp_buffers(module, world), given)
        for optimizer in self._optimizers:
            replicated.update(map(id, torch.replicated_state(optimizer, replicated, world)))
        if replicated:
            for index, tensor in enumerate(self.torch_tensors):
                if id(tensor) in replicated:
                    self.torch_shards.setdefault(index, self._seat.whole(tensor.shape))
        if of_first_rank:
            found = [index for index, tensor in enumerate(self.torch_tensors) if id(tensor) in of_first_rank]
            self._hand_over_once([index for index in found if index not in self.torch_shards])

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
        keys, tensors, buffers = torch.module_tensors(module)

        def encode() -> Node:
            return {
                key: self._tensor(tensor, names.join(name, key), not is_buffer, is_buffer)
                for key, tensor, is_buffer in zip(names.strip_wrappers(keys), tensors, buffers, strict=True)
            }

        plain = self._known is not None and set(map(type, tensors)) <= self._plain_tensors
        nodes = self._table(name, (tuple(keys), tuple(buffers)), tensors, buffers, encode) if plain else encode()
        return {"$": "object", "of": "module", "class": class_name(module), "v": nodes}

    def _hooked_module(self, module: Any, name: str) -> Node:
        state = self._state_dict(module)
        keys = names.strip_wrappers(list(state)) if all(type(key) is str for key in state) else list(state)
        first = len(self.torch_tensors)
        node = self._object(module, name, dict(zip(keys, state.values(), strict=True)), "module")
        self._modules.append((module, range(first, len(self.torch_tensors))))
        # state_dict() hands out detached tensors: buffers are known by their memory.
        buffers = self._torch.storages(module.buffers())
        for index, storage in enumerate(self._torch.storages(self.torch_tensors[first:]) if buffers else (), first):
            if storage in buffers:
                self.torch_volatile[index] = True
        return node

    def _optimizer(self, optimizer: Any, name: str) -> Node:
        self._optimizers.append(optimizer)
        state, groups = self._torch.optimizer_state(optimizer)
        outer = self._stands_still
        self._stands_still = True
        state_node = self.encode(state, names.join(name, "state"))
        self._stands_still = outer
        first = len(self.torch_tensors)
        groups_node = self.encode(groups, names.join(name, "param_groups"))
        # A learning rate kept in a tensor is changed by schedulers, with no optimizer step in between.
        self.torch_volatile[first:] = [True] * (len(self.torch_tensors) - first)
        return {
            "$": "object",
            "of": "optimizer",
            "class": class_name(optimizer),
            "v": {"state": state_node, "param_groups": groups_node},
        }


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
        self.held: list[Any] = []
        self.has_torch = False
        self.names: list[str] = []
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
        self.torn_names: set[str] = set()  # captured at once from now on; the engine keeps the same set

    def capture(self, state: Any, compute: bool = True) -> Capture:
        """With ``compute``, tensors on a device may be packed there, on the current stream."""
        flat = Flattener(self._allow_pickle, self._tables, self.seat)
        node = flat.flatten(state)
        self._tables = flat.tables
        result = Capture()
        result.user_seconds = flat.user_seconds
        result.tree = codec.dump_tree(node)
        volatile: list[bool] = []
        if self.torn_names:
            torn = [name in self.torn_names for name in flat.array_names]
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
        if not self.torn_names and not any(flat.torch_volatile):
            return flat.torch_volatile
        flags = [name in self.torn_names for name in flat.torch_names]
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
