"""ReplicaFinder: finds tensors that torch keeps the same on all ranks, so that the caller need not mark them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core

if TYPE_CHECKING:
    from ..state.tree import Flattener
    from .sharding import EngineShard


class Counters(NamedTuple):
    """What was found in a state of tables where step counters of DTensors are all that is replicated."""

    positions: bytes  # of the counters among the tensors, as _core.positions() gives them
    names: list[str]  # of all tensors
    shards: dict[int, EngineShard]  # of these, those of the counters included


class ReplicaFinder:
    """Examines one flattened state. It records what it finds in ``torch_shards``."""

    def __init__(self, flat: Flattener) -> None:
        self._flat = flat
        self._any_unknown = False

    def find_again(self) -> bool:
        """Takes over what the save before found, if it found only counters, and everything it looked at is as it was.

        The tables have compared the parameters of modules and optimizers, the keys of the optimizers' state, which of
        these tensors are DTensors, and on which mesh. No other tensor may be a counter, nor have been one. That a
        counter has no dimension is left to ``torch_reading.read_again``.
        """
        flat, before = self._flat, self._flat.known_counters
        if before is None or flat.torch_shards or flat.tables != flat.known or flat.torch_names != before.names:
            return False
        counters = [flat.torch_tensors[index] for index in memoryview(before.positions).cast("I")]
        if _core.positions(flat.torch_tensors, counters) != before.positions:
            return False
        flat.torch_shards, flat.counters, flat.counters_again = before.shards, before, True
        return True

    def find(self) -> None:
        """Finds parameters below DDP, the state of their optimizers, and buffers that DDP broadcasts from rank 0."""
        torch, world = self._flat.torch, self._flat.rank_info.world
        replicated: set[int] = set()
        of_first_rank: set[int] = set()
        for module, given in self._flat.modules:
            if id(module) in self._flat.without_ddp:
                continue
            replicated |= self._ids_of(torch.ddp_parameters(module, world), given)
            of_first_rank |= self._ids_of(torch.ddp_buffers(module, world), given)
        if world > 1:
            self._find_inner_replicas(replicated, of_first_rank)
        shards = self._flat.torch_shards
        if replicated:
            for optimizer in self._flat.optimizers:
                replicated.update(map(id, torch.replicated_state(optimizer, replicated, world)))
            whole = self._flat.rank_info.whole
            for index, tensor in enumerate(self._flat.torch_tensors):
                if id(tensor) in replicated:
                    shards.setdefault(index, whole(tensor.shape))
        else:  # only step counters, none of which has a dimension
            counters = [torch.replicated_state(optimizer, replicated, world) for optimizer in self._flat.optimizers]
            found = _core.positions(self._flat.torch_tensors, [tensor for own in counters for tensor in own])
            alone = [index for index in memoryview(found).cast("I") if index not in shards]
            shards.update(dict.fromkeys(alone, self._flat.rank_info.whole(())))
            nothing_else = sum(map(len, counters)) == len(alone) and not (of_first_rank or self._any_unknown)
            if nothing_else and self._all_tables(len(shards) - len(alone)):
                self._flat.counters = Counters(found, self._flat.torch_names, shards)
        if of_first_rank:
            found = [index for index, tensor in enumerate(self._flat.torch_tensors) if id(tensor) in of_first_rank]
            self._hand_over_once([index for index in found if index not in self._flat.torch_shards])

    def _all_tables(self, boxes: int) -> bool:
        """Whether modules and optimizers are tables, all parameters are those of the modules, and these boxes are all
        of tables."""
        flat, tables = self._flat, self._flat.tables
        if len(flat.optimizer_nodes) != len(flat.optimizers) or len(flat.modules) != len(flat.without_ddp):
            return False
        for _, name, _ in flat.optimizer_nodes:
            named = tables.get(f"{name}\0parameters")
            if named is None or named.by_memory or f"{name}\0numbers" not in tables:
                return False
        if not all(keys is not None and name in tables for name, keys, _ in flat.module_tensors):
            return False
        return boxes == sum(len(table.shards) for table in tables.values())

    def _find_inner_replicas(self, replicated: set[int], of_first_rank: set[int]) -> None:
        """The same for a DDP layer that is not in the state: only ``model.module`` is, or only its optimizer."""
        torch, world = self._flat.torch, self._flat.rank_info.world
        unknown = [
            parameter
            for parameters in (
                *(module.parameters() for module, _ in self._flat.modules),
                *(group["params"] for optimizer in self._flat.optimizers for group in optimizer.param_groups),
            )
            for parameter in parameters
            if id(parameter) not in replicated and not torch.is_dtensor(parameter)
        ]
        self._any_unknown = bool(unknown)
        if not unknown:
            return
        for layer in self._flat.rank_info.ddp_layers(unknown):
            parameters, buffers = list(torch.ddp_parameters(layer, world)), list(torch.ddp_buffers(layer, world))
            for given in (range(0), *(given for _, given in self._flat.modules if given)):
                replicated |= self._ids_of(parameters, given)
                of_first_rank |= self._ids_of(buffers, given)

    def _ids_of(self, tensors: Iterable[Any], given: range) -> set[int]:
        """Their ids, and those of the detached tensors with the same memory that a state_dict() returned for them."""
        tensors = list(tensors)
        found = set(map(id, tensors))
        if tensors and given:
            places = {(tensor.data_ptr(), tensor.shape) for tensor in tensors}
            for tensor in self._flat.torch_tensors[given.start : given.stop]:
                if (tensor.data_ptr(), tensor.shape) in places:
                    found.add(id(tensor))
        return found

    def _hand_over_once(self, indices: list[int]) -> None:
        """Only rank 0 saves these tensors, whole. All ranks restore them from there."""
        if self._flat.rank_info.rank == 0:
            for index in indices:
                self._flat.torch_shards[index] = self._flat.rank_info.alone(self._flat.torch_tensors[index].shape)
            return
        left_out = set(indices)
        kept = [index for index in range(len(self._flat.torch_names)) if index not in left_out]
        self._flat.torch_names = [self._flat.torch_names[index] for index in kept]
        self._flat.torch_tensors = [self._flat.torch_tensors[index] for index in kept]
        self._flat.torch_updates = [self._flat.torch_updates[index] for index in kept]
        shards = self._flat.torch_shards
        self._flat.torch_shards = {new: shards[old] for new, old in enumerate(kept) if old in shards}
