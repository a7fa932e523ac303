"""A run of FSDP2 that is killed: says what the global state is at every step, and saves it. Started by torchrun."""

from __future__ import annotations

import os
import sys

import slackwater as sw
import torch
import torch.distributed as dist
from sharded_cases import digest, fsdp, gathered, optimizer, train


def main(path: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = fsdp(seed=rank + os.getpid())
    state = {"model": net, "optim": (optim := optimizer(net))}
    with sw.Checkpointer(path, pool="2MiB", slab="1MiB", keep=3, commit_timeout=20) as ckpt:
        start = ckpt.restore(state) or 0
        print(f"pid {rank} {os.getpid()}\n", end="", flush=True)
        for step in range(start + 1, start + steps + 1):
            train(net, optim, step)
            now = digest(gathered(**state))
            say(rank, f"step {step} {now}")
            ckpt.save(step, state)
            say(rank, f"committed {ckpt.latest_step() or 0}")


def say(rank: int, line: str) -> None:
    if rank == 0:
        print(f"{line}\n", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
