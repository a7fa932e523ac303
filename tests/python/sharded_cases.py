"""Small models spread over ranks, for the tests of checkpoints that several ranks make together."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from slackwater.integrations.torch_ranks import Meshes
from slackwater.ranks.sharding import RankInfo
from slackwater.state.tree import Flattener
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

State = dict[str, torch.Tensor]


class Net(nn.Module):
    """Rows of 13, 14, 7 and 1: no number of ranks divides them all, and some ranks hold nothing of some."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(13, 6)
        self.up = nn.Linear(6, 14)
        self.down = nn.Linear(14, 6)
        self.head = nn.Linear(6, 7)
        self.scale = nn.Linear(7, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        x = x + self.down(torch.relu(self.up(x)))
        return self.scale(torch.tanh(self.head(x))).mean()


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def fsdp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net.up, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def tensor_parallel(seed: int, data: int, tensor: int) -> nn.Module:
    """Both linear layers of the block are cut by tensor parallelism and then by FSDP; the rest by FSDP alone."""
    torch.manual_seed(seed)
    net = Net()
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    return net


def uneven(seed: int, data: int, tensor: int) -> nn.Module:
    """7 and 13 rows, cut by tensor parallelism and FSDP: they cannot be trained, only kept."""
    torch.manual_seed(seed)
    net = nn.ModuleDict({"seven": nn.Linear(4, 7), "thirteen": nn.Linear(4, 13)})
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
    for layer in net.values():
        parallelize_module(layer, mesh["tp"], ColwiseParallel())
        fully_shard(layer, mesh=mesh["dp"])
    return net


def train(net: nn.Module, optim: torch.optim.Optimizer, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    net(torch.randint(13, (12,), generator=generator)).backward()
    optim.step()
    optim.zero_grad()


def tensors_of(**state: Any) -> dict[str, Any]:
    """Every tensor of a state by its name, DTensors as they are."""
    found: dict[str, Any] = {}

    class Collector(Flattener):
        def _dtensor(self, tensor: Any, name: str, *_: Any) -> Any:
            found[name] = tensor
            return {"$t": name}

    flat = Collector(rank_info=RankInfo(dist.get_rank(), dist.get_world_size()))
    flat.flatten(state)
    return {**found, **dict(zip(flat.torch_names, flat.torch_tensors, strict=True))}


def gathered(**state: Any) -> State:
    """The global state, put together by collectives from what each rank holds; the same on all ranks."""
    meshes = Meshes(dist.get_rank(), dist.get_world_size())
    result: State = {}
    for name, tensor in tensors_of(**state).items():
        if not isinstance(tensor, DTensor):
            result[name] = tensor.detach().clone()
            continue
        local = tensor.to_local().detach()
        mine = [(box.offset, local[_slices(box.start, box.shape)].clone()) for box in meshes.locate(tensor, name).boxes]
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
        whole = torch.full(tuple(tensor.shape), float("nan"), dtype=tensor.dtype)
        for offset, part in (box for boxes in everybody for box in boxes):
            whole[_slices(offset, part.shape)] = part
        if tensor.device_mesh.ndim == 1:
            assert torch.equal(whole, tensor.detach().full_tensor()), name  # torch says the same
        result[name] = whole
    return result


def _slices(start: Any, shape: Any) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))


def digest(state: State) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def keep(state: State, path: str) -> None:
    """For the parent to compare with."""
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
