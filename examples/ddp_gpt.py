"""Data parallel training (DDP) with a checkpoint at every iteration, resumed on any number of ranks.

    torchrun --nproc-per-node=4 examples/ddp_gpt.py runs/ddp
    torchrun --nproc-per-node=3 examples/ddp_gpt.py runs/ddp      # stop it at any time, go on with others

Parameters below DDP and their optimizer's state are the same on all ranks: each rank writes its share of one copy.
"""

import slackwater as sw
import torch
import torch.distributed as dist
from gpt import Batches
from parallel import GLOBAL_BATCH, arguments, small_gpt, train
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    batches = Batches(batch=GLOBAL_BATCH, context=64)
    model = DistributedDataParallel(small_gpt(batches.vocabulary))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optim": optim, "data": sw.Replicated(batches)}
    train(args, state, model, optim, batches, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
