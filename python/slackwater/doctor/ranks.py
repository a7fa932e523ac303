"""Checks that several ranks make together: those of torchrun, or two processes of our own.

Ranks tell each other how a check went through the job's store, whose calls all have a time-out. So a rank that died, or
is out of step, costs the others a minute and not for ever.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import thresholds
from .children import ChildError, Children, ChildTimeout
from .context import Context, open_checkpointer
from .interference import beside_saves, rate
from .lines import Line, Outcome, worst
from .rounds import network, run_rounds, trainer


def _timeout(seconds: float | None = None) -> datetime.timedelta:
    return datetime.timedelta(seconds=thresholds.RANKS_SECONDS if seconds is None else seconds)


class Ranks:
    """The ranks of the job that this process belongs to. Of the main thread."""

    def __init__(self, store: Any, rank: int, world: int, device: str) -> None:
        self.rank = rank
        self.world = world
        self.device = device
        self._store = store
        self._silent: set[int] = set()  # ranks that did not answer once are not waited for again

    @classmethod
    def join(cls) -> Ranks:
        """As torchrun's environment says."""
        store, rank, world = next(dist.rendezvous("env://", timeout=_timeout()))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        gpu = torch.cuda.is_available() and torch.version.hip is None and local < torch.cuda.device_count()
        return cls.of(store, rank, world, f"cuda:{local}" if gpu else "cpu")

    @classmethod
    def of(cls, store: Any, rank: int, world: int, device: str) -> Ranks:
        if device != "cpu":
            torch.cuda.set_device(device)
        store.set_timeout(_timeout())
        backend = "gloo" if device == "cpu" else "nccl"
        own = dist.PrefixStore("doctor/group", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=_timeout())
        return cls(dist.PrefixStore("doctor/talk", store), rank, world, device)

    def share(self, name: str, text: str) -> str:
        """What rank 0 gives, for all."""
        if self.rank == 0:
            self._store.set(name, text)
        found: bytes = self._store.get(name)
        return found.decode()

    def give(self, name: str, lines: list[Line]) -> None:
        packed = [(line.check, vars(line.outcome)) for line in lines]
        self._store.set(f"{name}/{self.rank}", json.dumps(packed))

    def collect(self, name: str) -> dict[int, list[Line] | None]:
        """What each rank gave under this name. None: it gave nothing in time, which is the same for all of them."""
        deadline = time.monotonic() + thresholds.RANKS_SECONDS
        return {rank: self._lines(name, rank, deadline) for rank in range(self.world)}

    def _lines(self, name: str, rank: int, deadline: float) -> list[Line] | None:
        key = f"{name}/{rank}"
        left = 0.0 if rank in self._silent else deadline - time.monotonic()
        try:
            self._store.wait([key], _timeout(max(0.1, left)))
        except dist.DistError:
            self._silent.add(rank)
            return None
        return [Line(check, Outcome(**outcome), rank) for check, outcome in json.loads(self._store.get(key))]


def shared_directory(context: Context) -> Outcome:
    """Whether this rank sees the directory that rank 0 has made. A listing is never out of date, as a lookup may be."""
    if context.directory.name in os.listdir(context.directory.parent):
        return Outcome("PASS", "all ranks see it", "all ranks")
    return Outcome("FAIL", f"this rank does not see '{context.directory}', which rank 0 has made", "all ranks")


def fsdp2(context: Context) -> Outcome:
    """A model that is sharded over all ranks: every rank gets its own part back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(context.kind, (dist.get_world_size(),))

    def sharded() -> nn.Module:
        torch.manual_seed(7)  # ranks start alike, as training does
        model = network().to(context.device)
        fully_shard(model, mesh=mesh)
        return model

    one, twin = (trainer(context.device, sharded(), foreach=True) for _ in range(2))
    # One directory for all ranks: that of rank 0.
    ckpt = open_checkpointer(context.directory / "fsdp2", coordinator="torch")
    try:
        found = run_rounds(ckpt, one, twin, context.rounds)
    finally:
        ckpt.close(timeout=thresholds.CLOSE_SECONDS)
    return Outcome(found.status, f"{found.figure}, {dist.get_world_size()} ranks, {context.kind}", found.threshold)


def all_reduce(context: Context) -> Outcome:
    """GB/s of one all-reduce after the other, while every rank saves a state of its own."""
    tensor = torch.zeros(thresholds.REDUCE_BYTES // 4, device=context.device)

    def reduce() -> None:
        dist.all_reduce(tensor)
        if context.kind == "cuda":
            torch.cuda.synchronize(context.device)

    count = thresholds.REDUCE_COUNT // (3 if context.quick else 1)
    reduce()
    own = context.directory / f"rank-{dist.get_rank()}"  # every rank saves alone
    own.mkdir(parents=True, exist_ok=True)
    timings = beside_saves(dataclasses.replace(context, directory=own), reduce, lambda: iter(range(count)))
    return rate(timings, context.kind, thresholds.REDUCE_BYTES / 1e9, "GB/s")


CHECKS = {"fsdp2": fsdp2, "all_reduce": all_reduce}


def own_rank(check: str, rank: int, world: int, port: int, directory: str, device: str, quick: bool) -> dict[str, Any]:
    """The child: one of the two ranks of our own."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_timeout())
    ranks = Ranks.of(store, rank, world, device)
    outcome = CHECKS[check](Context(Path(directory), quick, device))
    ranks.give(check, [])
    ranks.collect(check)  # whoever ends first would end the connections of the others
    return vars(outcome)


def with_own_ranks(context: Context, check: str, world: int = 2) -> Outcome:
    """Two GPUs are needed for NCCL. With fewer, the ranks train on the CPU."""
    children = context.children
    assert isinstance(children, Children)
    gpus = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.device_count() >= world
    directory = context.new_folder()
    directory.mkdir()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [children.take() for _ in range(world)]
    for rank, child in enumerate(ranks):
        device = f"cuda:{rank}" if gpus else "cpu"
        arguments = {"check": check, "rank": rank, "world": world, "port": server.port}
        child.start("own_rank", **arguments, directory=str(directory), device=device, quick=context.quick)
    outcomes: dict[int, Outcome] = {}
    for rank, child in enumerate(ranks):
        try:
            ended = child.join(thresholds.RANKS_SECONDS)
        except ChildTimeout:
            outcomes[rank] = Outcome("FAIL", f"did not end within {thresholds.RANKS_SECONDS:g} s")
        except ChildError as error:
            outcomes[rank] = Outcome("FAIL", str(error))
        else:
            crashed = Outcome("FAIL", f"ended with status {ended.exit_code}")
            outcomes[rank] = crashed if ended.result is None else Outcome(**ended.result)
    del server
    return worst(outcomes)


def own_fsdp2(context: Context) -> Outcome:
    return with_own_ranks(context, "fsdp2")


def own_all_reduce(context: Context) -> Outcome:
    return with_own_ranks(context, "all_reduce")
