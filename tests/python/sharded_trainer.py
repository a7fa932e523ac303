"""A run of FSDP2 that is killed: says what the global state is at every step, and saves it.

Started by torchrun, or with a number of ranks: then it forks them once torch is loaded, and is to them what the agent
of torchrun is.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

import slackwater as sw
import torch
import torch.distributed as dist
from docs_server import torchrun_environment
from sharded_cases import digest, fsdp, gathered, optimizer, train


def main(path: str, steps: int) -> None:
    torch.set_num_threads(1)
    sw.ranks._STORE_SECONDS = 300.0  # no call of the store fails because the machine is busy
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = fsdp(seed=rank + os.getpid())
    state = {"model": net, "optim": (optim := optimizer(net))}
    with sw.Checkpointer(path, pool="2MiB", slab="1MiB", keep=3, commit_timeout=120) as ckpt:
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


def fork_ranks(world: int) -> None:
    """Returns in each rank. The first one that ends takes all others with it."""
    import torch._dynamo  # noqa: F401  (which each rank would load)

    gc.freeze()  # no rank looks through torch for garbage, and copies its pages for that
    hear, tell = os.pipe()
    for rank in range(world):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
            os.environ |= torchrun_environment(rank, world, int(os.read(hear, 8)))
            return
    # The store starts threads, so it is made after the last fork.
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(tell, f"{server.port:08d}".encode() * world)
    os.wait()
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        fork_ranks(int(sys.argv[3]))
    main(sys.argv[1], int(sys.argv[2]))
