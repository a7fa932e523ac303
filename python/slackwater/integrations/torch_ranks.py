"""What torch knows about ranks: which part of a DTensor this rank holds, and which tensors DDP keeps equal."""

from __future__ import annotations

import collections
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import UnsupportedError, UsageError
from ..ranks import boxes
from ..ranks.boxes import Cut
from ..ranks.sharding import Replicas, TensorLocation, group_text
from .torch_reading import step_counters_again

Tensor = torch.Tensor
Module = torch.nn.Module
Optimizer = torch.optim.Optimizer


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_dtensor(tensor: Any) -> bool:
    kind = type(tensor)
    return kind is not Tensor and kind.__name__ == "DTensor" and hasattr(tensor, "_local_tensor")


def dtensor_type() -> type | None:
    """DTensor, if something has imported it already."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


class Meshes:
    """Locations of DTensors, computed once for each (mesh, placements, shape). One thread at a time."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        self._known: dict[Any, TensorLocation] = {}

    def locate(self, tensor: Any, name: str, replicated: bool = False) -> TensorLocation:
        """With ``replicated``, the tensor is repeated along dimensions of the root mesh that its own mesh lacks."""
        spec = tensor._spec
        key = (spec.mesh, spec.placements, spec.shape, tensor._local_tensor.shape, replicated)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._work_out(tensor, name, replicated)
        return found

    def _work_out(self, tensor: Any, name: str, replicated: bool) -> TensorLocation:
        mesh = tensor.device_mesh
        self._check_ranks(name)
        shape, local = tuple(tensor.shape), tuple(tensor._local_tensor.shape)
        cuts = tuple(_cut(placement, name) for placement in tensor.placements)
        coordinate = _coordinate(mesh, self._rank)
        if coordinate is None:  # this rank is not on the mesh and holds nothing
            return TensorLocation(shape, (), Replicas())
        found = boxes.local_boxes(shape, tuple(mesh.mesh.shape), coordinate, cuts)
        if not boxes.fit(found, local):
            parts = " and ".join(str(list(box.shape)) for box in found)
            raise UnsupportedError(
                f"'{name}' is a DTensor of global shape {list(shape)} and placements {tensor.placements}, of which "
                f"this rank holds {parts}, but its local tensor is {list(local)}: it was not cut as torch.chunk does "
                "it, strided dimensions last; give its boxes with sw.Shard"
            )
        return TensorLocation(shape, found, self._replicas(mesh, coordinate, cuts, name, replicated))

    def _check_ranks(self, name: str) -> None:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if (rank, world) != (self._rank, self._world):
            raise UsageError(
                f"'{name}' is a DTensor of rank {rank} of {world}, and this checkpointer is rank {self._rank} of "
                f"{self._world}; make the Checkpointer with rank= and world= of torch.distributed"
            )

    def _replicas(
        self, mesh: Any, coordinate: tuple[int, ...], cuts: tuple[Cut | None, ...], name: str, replicated: bool
    ) -> Replicas:
        ranks = mesh.mesh
        if replicated and ranks.numel() < self._world:
            ranks, coordinate, cuts = _on_root_mesh(mesh, self._rank, cuts, name)
            if ranks.numel() != self._world:
                raise UsageError(
                    f"'{name}' is in sw.Replicated, but the mesh it was made on has {ranks.numel()} ranks of "
                    f"{self._world}; make it on a mesh of all ranks"
                )
        index = tuple(slice(None) if cut is None else mine for mine, cut in zip(coordinate, cuts, strict=True))
        members = sorted(ranks[index].flatten().tolist())
        if len(members) == 1:
            return Replicas()
        return Replicas(group_text(members, self._world), members.index(self._rank), len(members))


def _cut(placement: Any, name: str) -> Cut | None:
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind == "Shard":
        return Cut(placement.dim)
    if kind == "_StridedShard":
        return Cut(placement.dim, placement.split_factor)
    if "Partial" in kind:
        raise UnsupportedError(
            f"'{name}' is a DTensor with the placement {placement!r}: its values are not summed up yet; "
            "redistribute() it to Shard or Replicate first"
        )
    raise UnsupportedError(
        f"'{name}' is a DTensor with the placement {placement!r}, which is not known; give its boxes with sw.Shard"
    )


def _coordinate(mesh: Any, rank: int) -> tuple[int, ...] | None:
    found = (mesh.mesh == rank).nonzero().tolist()
    return tuple(found[0]) if found else None


def _on_root_mesh(
    mesh: Any, rank: int, cuts: tuple[Cut | None, ...], name: str
) -> tuple[Tensor, tuple[int, ...], tuple[Cut | None, ...]]:
    """The same location on the root mesh, of which this mesh is a slice."""
    root = mesh._get_root_mesh()
    own, all_names = mesh.mesh_dim_names, root.mesh_dim_names
    place = _coordinate(root, rank)
    if own is None or all_names is None or not set(own) <= set(all_names) or place is None:
        raise UsageError(
            f"'{name}' is in sw.Replicated and its mesh {mesh} has less than all ranks, and is no slice of one that has"
        )
    cut_of = dict(zip(own, cuts, strict=True))
    return root.mesh, place, tuple(cut_of.get(dimension) for dimension in all_names)


def dtensor_like(tensor: Any, dtype: Any, device: Any) -> Any:
    """A DTensor with the same mesh and placements as this one."""
    local = torch.empty_like(tensor._local_tensor, dtype=dtype, device=device, requires_grad=False).detach()
    return type(tensor).from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


# What is known to be the same on all ranks


def ddp_parameters(module: Module, world: int) -> Iterator[Tensor]:
    """Parameters in this module that DistributedDataParallel keeps equal on all ranks."""
    for layer in _ddp_layers(module, world):
        yield from _heeded(layer, layer.module.named_parameters())


def ddp_buffers(module: Module, world: int) -> Iterator[Tensor]:
    """Buffers in this module that DistributedDataParallel broadcasts from rank 0 before every forward. It overwrites
    those of other ranks, such as statistics of their own batches."""
    for layer in _ddp_layers(module, world):
        if layer.broadcast_buffers and not hasattr(layer, "buffer_hook"):
            yield from _heeded(layer, layer.module.named_buffers())


class LiveLayers:
    """All DistributedDataParallel layers of this process. A state may hold only the module inside such a layer, or only
    an optimizer of its parameters.

    The garbage collector of Python finds them. It is asked again only if a parameter was not seen before.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._layers: list[weakref.ref[Any]] = []
        self._seen: dict[int, weakref.ref[Tensor]] = {}

    def find(self, parameters: Iterable[Tensor]) -> list[Any]:
        """The layers. They are searched again if one of these parameters is new."""
        known = self._seen.get
        new = [p for p in parameters if (seen := known(id(p))) is None or seen() is not p]
        if new:
            self._seen.update({id(parameter): weakref.ref(parameter) for parameter in new})
            self._layers = [
                weakref.ref(found)
                for found in gc.get_objects()
                if issubclass(type(found), DistributedDataParallel) and "process_group" in found.__dict__
            ]
        alive = (layer() for layer in self._layers)
        return [layer for layer in alive if layer is not None and layer.process_group.size() == self._world]


def any_ddp(kinds: Iterable[type]) -> bool:
    """Whether layers of these classes are DistributedDataParallel."""
    return any(issubclass(kind, DistributedDataParallel) for kind in kinds)


def _ddp_layers(module: Module, world: int) -> Iterator[Any]:
    for layer in module.modules():
        if isinstance(layer, DistributedDataParallel) and layer.process_group.size() == world:
            yield layer


def _heeded(layer: Any, named: Iterable[tuple[str, Tensor]]) -> Iterator[Tensor]:
    ignored = layer.parameters_to_ignore
    return (tensor for name, tensor in named if name not in ignored and not is_dtensor(tensor))


def replicated_state(optimizer: Optimizer, replicated: set[int], world: int) -> list[Tensor]:
    """Optimizer state that is the same on all ranks: of replicated parameters (``replicated`` has their ids), and step
    counters of parameters that all ranks share."""
    dtensor = dtensor_type()
    on_all: dict[int, bool] = {}  # meshes, by their id: whether they have all ranks

    def is_on_all(mesh: Any) -> bool:
        if id(mesh) not in on_all:
            on_all[id(mesh)] = mesh.size() == world
        return on_all[id(mesh)]

    if dtensor is not None and not replicated and type(optimizer.state) in (dict, collections.defaultdict):
        counters = step_counters_again(optimizer.state, dtensor, is_on_all)
        if counters is not None:
            return counters
    found: list[Tensor] = []
    for parameter, state in optimizer.state.items():
        if id(parameter) in replicated:
            found += _tensors(state)
        elif is_dtensor(parameter) and is_on_all(parameter._spec.mesh):
            found += [tensor for tensor in _tensors(state) if type(tensor) is not dtensor and not tensor.dim()]
    return found


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in _tensors(item)]
