"""Training with a checkpoint at every iteration: 1.3 GB of state, 1 s of compute off the CPU, a real AdamW update.

Blocks with and without checkpoints alternate (ABBA). One iteration is: compute, fence, update, save. The stall of a
checkpoint is its save() plus the fence before the next update; how long it takes until it is durable is compared with
raw writes of as many bytes, made between the blocks of the same run. With --rivals the same loop runs torch.save and
DCP's async_save too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from report import Line, Report, median
from torch import nn
from ways import AsyncSave, NoCheckpoint, Slackwater, TorchSave, Way

WIDTH = 2048


@dataclass(frozen=True)
class Plan:
    layers: int
    compute_seconds: float
    iterations: int  # of a block; the first warms up and is not counted
    pairs: int
    raw_writes: int  # after each pair


FULL = Plan(layers=26, compute_seconds=1.0, iterations=5, pairs=15, raw_writes=3)
QUICK = Plan(layers=4, compute_seconds=0.2, iterations=4, pairs=2, raw_writes=2)


class Trainer:
    """A stack of linear layers with gradients in place: the update is real, the compute is a sleep."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(plan.layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        self.optimizer.step()
        self.state = {"model": self.model, "optim": self.optimizer}
        self.step = 0

    def state_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters()) * 3


@dataclass
class Block:
    """What one block of iterations took, in seconds."""

    iterations: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)


def run_block(trainer: Trainer, way: Way, plan: Plan) -> Block:
    block = Block()
    save_before = None
    for number in range(plan.iterations):
        trainer.step += 1
        started = time.perf_counter()
        time.sleep(plan.compute_seconds)
        computed = time.perf_counter()
        way.fence()
        fenced = time.perf_counter()
        trainer.optimizer.step()
        updated = time.perf_counter()
        way.save(trainer.step, trainer.state)
        saved = time.perf_counter()
        if number > 0:
            block.iterations.append(saved - started)
            block.updates.append(updated - fenced)
            block.saves.append(saved - updated)
            block.stalls.append(save_before + fenced - computed)
        save_before = saved - updated
    block.durable = way.finish()
    return block


def raw_seconds(binary: Path, directory: Path, size: int, repeats: int) -> list[float]:
    """The reference writing `size` bytes to the same disk; nothing else is running meanwhile."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        words = [binary, "raw_write", "--dir", directory, "--bytes", size, "--pairs", repeats, "--json", output.name]
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(output.name).read_text())["lines"][0]["samples"]


Pair = tuple[Block, Block, list[float]]


def measure(way: Way, trainer: Trainer, plan: Plan, binary: Path, directory: Path) -> list[Pair]:
    """(with checkpoints, without, raw writes) of each pair of blocks."""
    none = NoCheckpoint()
    run_block(trainer, way, plan)
    results = []
    for pair in range(plan.pairs):
        if pair % 2 == 0:
            ours, theirs = run_block(trainer, way, plan), run_block(trainer, none, plan)
        else:
            theirs, ours = run_block(trainer, none, plan), run_block(trainer, way, plan)
        results.append((ours, theirs, raw_seconds(binary, directory, trainer.state_bytes(), plan.raw_writes)))
    return results


def lines(way: Way, results: list[Pair]) -> list[Line]:
    stall = [1e3 * value for ours, _, _ in results for value in ours.stalls]
    ratio = [median(ours.iterations) / median(none.iterations) for ours, none, _ in results]
    durable_ratio = [median(ours.durable) / median(raw) for ours, _, raw in results]
    judged = isinstance(way, Slackwater)
    return [
        Line(f"{way.name}: stall per checkpoint (save + fence)", "ms", stall, ("<=", 5.0) if judged else None),
        Line(f"{way.name}: iteration / without checkpoints", "ratio", ratio, ("<=", 1.02) if judged else None),
        Line(f"{way.name}: durable after / raw write", "ratio", durable_ratio, ("<=", 1.15) if judged else None),
        Line(f"{way.name}: save()", "ms", [1e3 * v for ours, _, _ in results for v in ours.saves]),
        Line(f"{way.name}: durable after", "s", [v for ours, _, _ in results for v in ours.durable]),
        Line(f"{way.name}: update beside it", "ms", [1e3 * v for ours, _, _ in results for v in ours.updates]),
        Line("without: update", "ms", [1e3 * v for _, none, _ in results for v in none.updates]),
        Line("without: iteration", "s", [v for _, none, _ in results for v in none.iterations]),
        Line("raw write of the same bytes", "s", [v for _, _, raw in results for v in raw]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True, help="slackwater_bench, for the raw writes")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rivals", action="store_true", help="torch.save and DCP async_save as well")
    options = parser.parse_args()

    plan = QUICK if options.quick else FULL
    trainer = Trainer(plan)
    report = Report(
        "train_stall",
        setup={
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "state_bytes": trainer.state_bytes(),
            "compute_seconds": plan.compute_seconds,
            "pairs": plan.pairs,
        },
    )
    ways: list[type[Way]] = [Slackwater, TorchSave, AsyncSave] if options.rivals else [Slackwater]
    for kind in ways:
        with tempfile.TemporaryDirectory(dir=options.dir) as directory, kind(Path(directory)) as way:
            report.lines += lines(way, measure(way, trainer, plan, options.reference, options.dir))
    report.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
