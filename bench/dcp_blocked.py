"""How long a checkpoint through torch.distributed.checkpoint holds up training, and when it is durable.

One process with a gloo group of one rank, tensors in host memory. Each round updates every tensor in place, saves, and
"computes" (sleeps) before the next update. *Blocked*: inside the save call, and waiting at the fence before the update.
*Durable*: from the call until DCP reports the checkpoint. All ways take turns, in an order that changes each round, so
that a slow minute of the machine meets all of them. Prints a table; --json writes every sample.

Slackwater syncs files and directories. FileSystemWriter syncs its files (its default), not their directories.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import machine
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from slackwater.integrations.dcp import SlackwaterWriter
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


class Way:
    """One way to save, and its samples."""

    def __init__(self, name: str, save: Callable[[dict[str, Any], Path], Any]) -> None:
        self.name = name
        self._save = save
        self.blocked: list[float] = []
        self.durable: list[float] = []

    def round(self, state: dict[str, Any], where: Path, compute: float) -> None:
        start = time.perf_counter()
        answer = self._save(state, where)
        blocked = time.perf_counter() - start
        ended: list[float] = []  # when the checkpoint was reported, perhaps while training computes
        upload = getattr(answer, "upload_completion", answer)
        if isinstance(upload, Future):
            upload.add_done_callback(lambda _: ended.append(time.perf_counter()))
        time.sleep(compute)
        if hasattr(answer, "staging_completion"):
            fence = time.perf_counter()
            answer.staging_completion.result()
            blocked += time.perf_counter() - fence
        if isinstance(upload, Future):
            upload.result()
        else:  # a synchronous save was durable when it returned
            ended.append(start + blocked)
        self.blocked.append(blocked)
        self.durable.append(ended[0] - start)
        shutil.rmtree(where)


def all_ways(pool: str) -> list[Way]:
    ours = SlackwaterWriter("unused", pool=pool)
    staged = DefaultStager(StagingOptions(False, False, True, False))
    shared = DefaultStager(StagingOptions(False, True, True, False))
    process = AsyncCheckpointerType.PROCESS
    return [
        Way("slackwater save", lambda s, at: dcp.save(s, checkpoint_id=at, storage_writer=ours)),
        Way("slackwater async_save", lambda s, at: dcp.async_save(s, checkpoint_id=at, storage_writer=ours)),
        Way("FileSystemWriter save", lambda s, at: dcp.save(s, storage_writer=FileSystemWriter(at))),
        Way(
            "FileSystemWriter async_save, thread", lambda s, at: dcp.async_save(s, storage_writer=FileSystemWriter(at))
        ),
        Way(
            "FileSystemWriter async_save, thread, async staging",
            lambda s, at: dcp.async_save(s, storage_writer=FileSystemWriter(at), async_stager=staged),
        ),
        Way(
            "FileSystemWriter async_save, process, async staging",
            lambda s, at: dcp.async_save(
                s, storage_writer=FileSystemWriter(at), async_stager=shared, async_checkpointer_type=process
            ),
        ),
    ]


def make_state(size_bytes: int) -> dict[str, Any]:
    count = max(1, size_bytes // (16 << 20))
    tensors = {f"layers.{index}.weight": torch.randn(2048, 2048) for index in range(count)}
    return {"model": tensors, "step": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("build/bench-dcp"))
    parser.add_argument("--size", type=int, default=512, help="MiB of tensors")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each way, after a round that is not counted")
    parser.add_argument("--compute", type=float, default=0.5, help="seconds between a save and the next update")
    parser.add_argument("--quick", action="store_true", help="64 MiB, 3 rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.size, options.rounds = 64, 3
    warnings.simplefilter("ignore")
    options.dir.mkdir(parents=True, exist_ok=True)
    described = machine.describe(options.dir)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    state = make_state(options.size << 20)
    ways = all_ways(f"{options.size + 64}MiB")
    for number in range(options.rounds + 1):
        for position in range(len(ways)):
            way = ways[(position + number) % len(ways)]
            with torch.no_grad():
                for tensor in state["model"].values():
                    tensor.add_(1)
            way.round(state, options.dir / f"step-{number}", options.compute)
            if number == 0:  # pools, threads, the other process
                way.blocked.clear()
                way.durable.clear()

    print(f"{options.size} MiB, {options.rounds} rounds, {options.compute} s of simulated compute, medians")
    print(f"{'':54} {'blocked':>10} {'longest':>10} {'durable':>10}")
    for way in ways:
        cells = (statistics.median(way.blocked), max(way.blocked), statistics.median(way.durable))
        print(f"{way.name:54} " + " ".join(f"{cell * 1000:7.1f} ms" for cell in cells))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        results = {way.name: {"blocked": way.blocked, "durable": way.durable} for way in ways}
        options.json.write_text(json.dumps({"machine": described, "size_mib": options.size, "ways": results}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
