"""ReplicaFinder: finds tensors that torch keeps the same on all ranks, so that the caller need not mark them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from ..state.tree import Flattener


class ReplicaFinder:
    """Examines one flattened state. It records what it finds in ``torch_shards``."""

    def __init__(self, flat: Flattener) -> None:
        self._flat = flat

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
        if of_first_rank:
            found = [index for index, tensor in enumerate(self._flat.torch_tensors) if id(tensor) in of_first_rank]
            self._hand_over_once([index for index in found if index not in self._flat.torch_shards])

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
