"""Captures: a state as the engine takes it. What stays the same from save to save is kept, and compared."""

from __future__ import annotations

import logging
from typing import Any

from .. import _core
from ..ranks.replicas import Counters
from ..ranks.sharding import RankInfo
from . import codec
from .memory import HOST
from .tables import Table
from .tree import Flattener

logger = logging.getLogger("slackwater")


class Capture:
    """One state, ready for the engine. Holds every source until it is dropped."""

    __slots__ = (
        "addresses",
        "devices",
        "dtensor_names",
        "dtensor_versions",
        "dtensors",
        "has_torch",
        "held",
        "identities",
        "lent",
        "names",
        "optimizers",
        "reading",
        "replicated",
        "sizes",
        "structure",
        "tree",
        "user_seconds",
        "values",
        "versions",
        "watched",
    )

    def __init__(self) -> None:
        self.structure: _core.Structure
        self.addresses: list[int] = []  # without those of the reading
        self.devices: list[int] = []  # CUDA devices that hold tensors of it
        self.lent: list[int] = []  # of those, where arrays are lent through DLPack
        self.tree = b""
        self.values: dict[str, str] = {}  # the tree by its keys, if there are ranks to compare it with
        self.replicated: dict[str, str] = {}  # parts of the tree that must be the same on all ranks
        self.held: list[Any] = []  # what keeps the bytes: storages, or tensors of our own; then owners of arrays
        self.has_torch = False
        self.optimizers: list[Any] = []  # of torch, found in it
        self.watched: list[Any] = []  # torch tensors whose _version is to be compared; they come first in the structure
        self.names: list[str] = []  # of these, as the following
        self.versions: list[int] = []
        self.identities: list[int] = []
        self.sizes: list[int] = []  # bytes of the storages
        # The wrappers of local tensors: a write through the one does not count in the version of the other.
        self.dtensors: list[Any] = []
        self.dtensor_names: list[str] = []
        self.dtensor_versions = b""  # torch_reading.version_bytes()
        self.reading: _core.Reading | None = None  # of the watched tensors, if they were read the quick way
        self.user_seconds = 0.0

    def watched_facts(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Of the watched tensors: addresses, versions, identities, sizes."""
        if (reading := self.reading) is not None:
            return reading.addresses, reading.versions, reading.identities, reading.sizes
        return self.addresses[: len(self.watched)], self.versions, self.identities, self.sizes


class Capturer:
    """Takes states, one after the other. The constant part is kept from save to save and compared, never trusted."""

    def __init__(self, allow_pickle: bool, rank: int = 0, world: int = 1) -> None:
        self._allow_pickle = allow_pickle
        self.rank_info = RankInfo(rank, world)
        self._key: tuple[Any, ...] | None = None  # all that the structure was made from, apart from
        self._layout: tuple[list[Any], ...] = ([], [], [], [])  # dtypes, shapes, strides and devices of torch tensors
        self._devices: set[int] = set()  # of these
        self._structure: _core.Structure | None = None
        self._may_read_again = False
        self._tables: dict[str, Table] = {}
        self._counters: Counters | None = None

    def capture(self, state: Any, compute: bool = True) -> Capture:
        """With ``compute``, tensors on a device may be packed there, on the current stream."""
        flat = Flattener(self._allow_pickle, self._tables, self.rank_info, self._counters)
        try:
            return self._capture(flat, state, compute)
        finally:
            flat.table_walk = None  # it refers to `flat`: together they would keep every tensor until gc runs

    def _capture(self, flat: Flattener, state: Any, compute: bool) -> Capture:
        node = flat.flatten(state)
        result = Capture()
        result.user_seconds = flat.user_seconds
        result.optimizers = flat.optimizers
        if self.rank_info.world > 1:
            result.tree, result.values = codec.dump_tree_and_values(node)
        else:
            result.tree = codec.dump_tree(node)
        result.replicated = {marked.name: marked.text for marked in flat.replicated}
        result.has_torch = bool(flat.torch_tensors)
        result.names = flat.torch_names
        memories = flat.array_memories
        key = (
            flat.torch_names,
            flat.torch_updates,
            flat.objects,
            flat.array_names,
            [(m.dtype, m.shape, m.strides, m.device) for m in memories],
            flat.torch_shards,
            flat.array_shards,
        )
        same = key == self._key
        if not (same and self._read_again(flat, result)):
            walk = flat.table_walk
            if flat.counters_again or (self._tables and walk is not None and not walk.has_local_shapes()):
                self._tables, self._counters = {}, None  # boxes may not be what they were: nothing is taken over
                return self.capture(state, compute)
            self._look(flat, key, same, result, compute)
        self._key, self._tables = key, flat.tables
        self._counters = flat.counters if result.reading is not None else None  # which has compared shapes and classes
        if flat.dtensors:
            result.dtensors, result.dtensor_names = flat.dtensors, flat.dtensor_names
            result.dtensor_versions = flat.torch.version_bytes(flat.dtensors)
        result.lent = sorted({memory.device for memory in memories} - {HOST})
        result.devices = sorted(self._devices.union(result.lent) - {HOST})
        result.held.extend(memory.owner for memory in memories)
        result.addresses.extend(memory.address for memory in memories)
        assert self._structure is not None
        result.structure = self._structure
        return result

    def _read_again(self, flat: Flattener, result: Capture) -> bool:
        """The quick way, for torch tensors that look as they did. The extension compares them with the structure."""
        if not (self._may_read_again and flat.torch_tensors):
            return False
        assert self._structure is not None
        reading = flat.torch.read_again(self._structure, flat.torch_tensors)
        if reading is None:
            return False
        result.reading, result.held = reading, reading.storages
        result.watched = flat.torch_tensors
        return True

    def _look(self, flat: Flattener, key: tuple[Any, ...], same: bool, result: Capture, compute: bool) -> None:
        layout: tuple[list[Any], ...] = ([], [], [], [])
        if flat.torch_tensors:
            torch = flat.torch
            held, *found, result.addresses = torch.capture(flat.torch_tensors, flat.torch_names, compute)
            layout = tuple(found)
            result.held = held
            result.watched = list(held)
            result.versions, result.identities = torch.versions(held), torch.identities(held)
            result.sizes = torch.storage_sizes(held)
        if same and layout == self._layout:
            return
        if self._key is None and self.rank_info.world > 1 and self.rank_info.rank == 0:
            _hint_at_replicas(flat)
        self._structure = self._build(flat, *layout)
        self._layout, self._devices = layout, set(layout[3])
        self._may_read_again = bool(flat.torch_tensors) and flat.torch.may_read_again(flat.torch_tensors)

    @staticmethod
    def _build(
        flat: Flattener,
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
        dtype_names = [flat.torch.dtype_name(dtype, name) for dtype, name in zip(dtypes, flat.torch_names, strict=True)]
        all_names = flat.torch_names + flat.array_names
        entries = dict.fromkeys(name.partition(".")[0] for name in all_names)
        return _core.Structure(
            all_names,
            dtype_names + [memory.dtype for memory in memories],
            shapes + [memory.shape for memory in memories],
            strides + [memory.strides for memory in memories],
            flat.torch_updates + [_core.Updates.UNKNOWN] * len(memories),
            devices + [memory.device for memory in memories],
            len(flat.torch_names),
            [*flat.objects, *entries],  # what belongs to no object belongs to its entry of the state
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
            flat.rank_info.world,
            flat.rank_info.world,
        )
