"""What the trainers for several ranks share: a start, a loop, and one line a step.

Every rank draws the same global batch and computes its own part of it, so that the data are the same for any number of
ranks, and the loader's state is the same on all of them: sw.Replicated says so.
"""

import argparse
from pathlib import Path

import slackwater as sw
import torch
import torch.distributed as dist
from gpt import GPT, Batches

GLOBAL_BATCH = 12  # divisible by 1, 2, 3, 4 and 6 ranks


def small_gpt(vocabulary: int) -> GPT:
    torch.manual_seed(0)  # the same on all ranks; no dropout, so that no rank needs random numbers of its own
    return GPT(vocabulary, layers=2, width=96, heads=4, context=64, dropout=0.0)


def arguments(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("runs/ranks"), help="for checkpoints")
    parser.add_argument("--steps", type=int, default=50, help="of training in all (%(default)s)")
    parser.add_argument("--tensor-parallel", type=int, default=2, help="for tp_gpt.py: ranks a layer is cut over")
    return parser.parse_args()


def train(
    args: argparse.Namespace,
    state: dict,
    model: torch.nn.Module,
    optim: torch.optim.Optimizer,
    batches: Batches,
    part: int,
    parts: int,
    group: dist.ProcessGroup | None = None,
) -> None:
    """This rank computes ``part`` of ``parts`` of every batch; ``group``, by default all ranks, all of them."""
    args.directory.parent.mkdir(parents=True, exist_ok=True)
    leads = dist.get_rank() == 0
    with sw.Checkpointer(args.directory) as ckpt:  # finds out itself which rank it is
        start = ckpt.restore(state) or 0
        if leads and start:
            print(f"goes on from step {start}, ranks: {dist.get_world_size()}", flush=True)
        for step in range(start + 1, args.steps + 1):
            tokens, targets = (rows.chunk(parts)[part] for rows in next(batches))
            loss = model(tokens, targets)
            loss.backward()
            optim.step()
            optim.zero_grad()
            ckpt.save(step, state)
            shown = loss.detach() / parts
            dist.all_reduce(shown, group=group)
            if leads:
                print(f"step {step:4d}  loss {shown.item():.4f}", flush=True)
