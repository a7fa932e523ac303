"""Tensor parallel x data parallel training with a checkpoint at every iteration, resumed on another mesh.

    torchrun --nproc-per-node=4 examples/tp_gpt.py runs/tp                       # 2 x 2
    torchrun --nproc-per-node=4 examples/tp_gpt.py runs/tp --tensor-parallel=4   # 1 x 4
    torchrun --nproc-per-node=2 examples/fsdp2_gpt.py runs/tp                    # FSDP2 alone: the same names

The layers of each MLP are cut over the ranks of a row of the mesh, and what is left of them, like everything else, over
the ranks of a column (FSDP2). The ranks of a row hold the rest of the model twice: sw.Replicated says that it is the
same there, and it is written once.
"""

import slackwater as sw
import torch
import torch.distributed as dist
from gpt import Batches
from parallel import GLOBAL_BATCH, arguments, small_gpt, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    columns, rest = divmod(dist.get_world_size(), args.tensor_parallel)
    if rest:
        raise SystemExit(f"the number of ranks must be a multiple of --tensor-parallel={args.tensor_parallel}")
    mesh = init_device_mesh("cpu", (columns, args.tensor_parallel), mesh_dim_names=("dp", "tp"))
    batches = Batches(batch=GLOBAL_BATCH, context=64)
    model = small_gpt(batches.vocabulary)
    for block in model.blocks:
        parallelize_module(block.mlp, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": sw.Replicated(model), "optim": sw.Replicated(optim), "data": sw.Replicated(batches)}
    train(args, state, model, optim, batches, mesh.get_local_rank("dp"), columns, mesh.get_group("dp"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
