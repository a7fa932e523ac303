"""Sharded training (FSDP2: fully_shard) with a checkpoint at every iteration, resumed on any number of ranks.

    torchrun --nproc-per-node=4 examples/fsdp2_gpt.py runs/fsdp
    torchrun --nproc-per-node=2 examples/fsdp2_gpt.py runs/fsdp

Every rank writes the rows it holds. Which rows those are is known from the DTensors; nothing is gathered, at save or at
restore: a rank of another number reads just the bytes of its own rows.
"""

import slackwater as sw
import torch
import torch.distributed as dist
from gpt import Batches
from parallel import GLOBAL_BATCH, arguments, small_gpt, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    batches = Batches(batch=GLOBAL_BATCH, context=64)
    model = small_gpt(batches.vocabulary)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optim": optim, "data": sw.Replicated(batches)}
    train(args, state, model, optim, batches, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
