"""Training runs that are killed and resumed: what they train, with which optimizer, on which loader, on how many ranks.

Each run has dropout, says its progress through ``say``, and ends with a digest of everything that must be the same:
weights, optimizer state, all losses, the random states. The loops are those that users write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import slackwater as sw
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Say = Callable[[str], None]
SAMPLES, BATCH, WIDTH = 20, 4, 8


class Case(NamedTuple):
    """One row of the matrix. ``save``: after each "step", or after each "epoch", outside the loop over the batches."""

    loop: str = "plain"  # or "accelerate"
    optimizer: str = "adamw"
    loader: str = "none"
    parallel: str = "single"
    save: str = "step"

    @property
    def ranks(self) -> int:
        return 1 if self.parallel == "single" else 2

    def __str__(self) -> str:
        return f"{self.loop:<10} | {self.optimizer:<13} | {self.loader:<10} | {self.parallel:<6} | {self.save:<5}"


class Samples(Dataset[torch.Tensor]):
    """``augmented``: each fetch draws from the global generators, as torchvision's transforms do."""

    def __init__(self, augmented: bool) -> None:
        self.augmented = augmented

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.sin(torch.arange(WIDTH) * float(index + 1))
        return sample + 0.1 * torch.rand(()) + random.random() + np.random.rand() if self.augmented else sample


class Net(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 32, bias=bias)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(32, WIDTH, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.down(self.drop(torch.relu(self.up(x)))) - x).square().mean()


def make_optimizer(kind: str, net: nn.Module) -> torch.optim.Optimizer:
    parameters = list(net.parameters())
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-2)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)
    if kind == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, history_size=4)
    if kind == "muon":
        return torch.optim.Muon(parameters, lr=1e-2)
    assert kind == "schedule-free"
    import schedulefree

    optimizer = schedulefree.AdamWScheduleFree(parameters, lr=1e-2, warmup_steps=3, foreach=False)
    optimizer.train()
    return optimizer


def make_loader(kind: str, ranks: int) -> Any:
    """Kinds: "stateful-0" (no workers, augmented), "stateful-2" (two workers), "plain" (a DataLoader without state)."""
    if kind == "none":
        return None
    sampler: Any = None
    if kind == "plain":
        if ranks > 1:
            sampler = DistributedSampler(Samples(True), seed=5)
        return DataLoader(Samples(True), BATCH, shuffle=sampler is None, sampler=sampler, generator=torch.Generator())
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    workers = int(kind.rpartition("-")[2])
    samples = Samples(augmented=workers == 0)
    if ranks > 1:
        sampler = StatefulDistributedSampler(samples, seed=5)
    return StatefulDataLoader(samples, BATCH, shuffle=sampler is None, sampler=sampler, num_workers=workers)


class Run:
    def __init__(self, case: Case, path: str, steps: int, rank: int, say: Say, kill_at: int | None) -> None:
        self.case, self.path, self.steps, self.rank, self.say, self.kill_at = case, path, steps, rank, say, kill_at
        torch.manual_seed(1 + rank)
        random.seed(1 + rank)
        np.random.seed(1 + rank)
        self.net: Any = Net(bias=case.optimizer != "muon")
        with torch.random.fork_rng():
            torch.manual_seed(3)  # the same weights on all ranks
            for parameter in self.net.parameters():
                nn.init.normal_(parameter, std=0.2)
        if case.parallel == "ddp":
            self.net = self.net if case.loop == "accelerate" else DistributedDataParallel(self.net)
        elif case.parallel == "fsdp2":
            fully_shard(self.net)
        self.optimizer: Any = make_optimizer(case.optimizer, self.net)
        self.losses: list[float] = []
        self.progress = {"epoch": 0}
        self.step = 0
        self.state: dict[str, Any] = {"rng": sw.Rng()}  # first: random states come back last all the same

    def open(self) -> sw.Checkpointer:
        return sw.Checkpointer(self.path, pool="2MiB", slab="1MiB", keep=3, commit_timeout=120)

    def complete(self, **more: Any) -> None:
        self.state |= {"model": self.net, "optim": self.optimizer, "losses": self.losses, "progress": self.progress}
        self.state |= more

    # One step

    def train_on(self, batch: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.net(batch)
            self.backward(loss)
            return loss

        if self.case.optimizer == "lbfgs":
            loss = self.optimizer.step(closure)
        else:
            loss = closure()
            self.optimizer.step()
        self.losses.append(loss.item())
        self.step += 1

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def save(self, ckpt: sw.Checkpointer) -> None:
        snapshot = ckpt.save(self.step, self.state)
        assert snapshot is not None
        if self.kill_at is not None and self.step >= self.kill_at:
            snapshot.wait("committed")
            if dist.is_initialized():
                dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        self.say(f"step {self.step} {ckpt.latest_step() or 0}")

    # Loops

    def run(self) -> str:
        if self.case.loop == "accelerate":
            self.run_accelerate()
        elif self.case.loader == "none":
            self.run_without_loader()
        elif self.case.loader == "plain":
            self.run_plain_loader()
        else:
            self.run_stateful()
        return self.digest()

    def run_without_loader(self) -> None:
        """As nanoGPT does it: batches are drawn from the global generator."""
        self.complete()
        with self.open() as ckpt:
            self.begin(ckpt.restore(self.state) or 0)
            while self.step < self.steps:
                self.train_on(torch.sin(torch.arange(WIDTH) * torch.randint(SAMPLES, (BATCH, 1))))
                self.save(ckpt)

    def run_plain_loader(self) -> None:
        """The loader has no state: its order follows from the epoch, and batches that were seen are skipped inside the
        block, which takes back what was drawn for them."""
        loader = make_loader("plain", self.case.ranks)
        self.complete()
        with self.open() as ckpt:
            with ckpt.resume(self.state) as start:
                self.begin(start)
                epoch, seen = divmod(start, len(loader))
                batches = begin_epoch(loader, epoch)
                for _ in range(seen):
                    next(batches)
            while self.step < self.steps:  # it may have been killed after its last step
                for batch in batches:
                    self.train_on(batch)
                    if self.case.save == "step":
                        self.save(ckpt)
                    if self.step == self.steps:
                        return
                epoch += 1
                if self.case.save == "epoch":
                    self.save(ckpt)
                batches = begin_epoch(loader, epoch)

    def run_stateful(self) -> None:
        loader = make_loader(self.case.loader, self.case.ranks)
        self.complete(data=loader)
        with self.open() as ckpt:
            self.begin(ckpt.restore(self.state) or 0)
            while self.step < self.steps:
                if hasattr(loader.sampler, "set_epoch"):
                    loader.sampler.set_epoch(self.progress["epoch"])
                torch.rand(())  # whatever else an epoch begins with
                for batch in loader:
                    self.train_on(batch)
                    if self.case.save == "step":
                        self.save(ckpt)
                    if self.step == self.steps:
                        return
                self.progress["epoch"] += 1
                if self.case.save == "epoch":
                    self.save(ckpt)

    def run_accelerate(self) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        config = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        workers = int(self.case.loader.rpartition("-")[2])
        loader: Any = DataLoader(Samples(augmented=False), BATCH, shuffle=True, num_workers=workers)
        self.net, self.optimizer, loader = accelerator.prepare(self.net, self.optimizer, loader)
        loader.load_state_dict({})  # prepare() has begun an epoch before it put the sampler in: with workers it is used
        self.backward = accelerator.backward  # type: ignore[method-assign]
        self.complete(data=loader)
        with self.open() as ckpt:
            self.begin(ckpt.restore(self.state) or 0)
            while self.step < self.steps:
                for batch in loader:
                    self.train_on(batch)
                    if self.case.save == "step":
                        self.save(ckpt)
                    if self.step == self.steps:
                        return
                if self.case.save == "epoch":
                    self.save(ckpt)

    def begin(self, step: int) -> None:
        self.step = step
        self.say(f"from {step}")

    def digest(self) -> str:
        sha = hashlib.sha256()
        optimizer = self.optimizer.state_dict()
        for value in (self.net.state_dict(), optimizer, self.losses, torch.get_rng_state(), random.getstate()):
            update(sha, value)
        return f"{sha.hexdigest()[:24]} {len(self.losses)} losses, last {self.losses[-1].hex()}"


def begin_epoch(loader: Any, epoch: int) -> Iterator[Any]:
    loader.generator.manual_seed(epoch)  # of the shuffle, and of the seed for workers
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    return iter(loader)


def update(sha: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        local = value.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        sha.update(f"{local.dtype} {tuple(local.shape)}".encode())
        sha.update(local.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            sha.update(f"{key}:".encode())
            update(sha, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            update(sha, item)
    else:
        sha.update(repr(value.hex() if isinstance(value, float) else value).encode())


def train(case: Case, path: str, steps: int, rank: int, port: int, say: Say, kill_at: int | None) -> None:
    torch.set_num_threads(1)
    if case.ranks > 1:
        sw.ranks._STORE_SECONDS = 300.0  # no call of the store fails because the machine is busy
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(case.ranks), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(case.ranks)}
        dist.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks)
    say(f"end {Run(case, path, steps, rank, say, kill_at).run()}")
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.barrier()
