"""The save() call from Python: a model and its AdamW with 1,000 tensors, at 64 MiB and at 4 GiB of state.

Once more with DTensors in a group of one rank: 250 parameters, 500 tensors of AdamW, and its 250 plain step counters.

Time spent inside the user's own state_dict() is shown apart: it is paid for any checkpoint, whoever takes it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import slackwater as sw
import torch
import torch.distributed as dist
from report import Line, Report, median
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

PARAMETERS = 250  # with AdamW's step, exp_avg and exp_avg_sq: 1,000 tensors
POOL = "256MiB"
WARM_UPS = 3


class Timed:
    """Mixed into a class with a state_dict(): adds up the time spent in it."""

    seconds = 0.0

    def state_dict(self, *args, **kwargs):
        started = time.perf_counter()
        try:
            return super().state_dict(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - started


class Model(Timed, nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(elements)) for _ in range(PARAMETERS))


def shard(model: Model) -> None:
    """Its parameters become DTensors of one rank."""
    mesh = init_device_mesh("cpu", (1,))
    for number, parameter in enumerate(model.weights):
        model.weights[number] = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))


class Optimizer(Timed, torch.optim.AdamW):
    pass


def warm_optimizer(model: Model, foreach: bool = True) -> Optimizer:
    optimizer = Optimizer(model.parameters(), foreach=foreach)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def measure(
    state_bytes: int, repeats: int, directory: Path, dtensors: bool = False
) -> tuple[list[float], list[float]]:
    """Milliseconds of each call without state_dict(), and inside state_dict()."""
    model = Model(state_bytes // (PARAMETERS * 3 * 4))
    if dtensors:
        shard(model)
    optimizer = warm_optimizer(model, foreach=not dtensors)
    state = {"model": model, "optim": optimizer}
    own, users = [], []
    with (
        tempfile.TemporaryDirectory(dir=directory) as path,
        sw.Checkpointer(path, pool=POOL, keep=1) as checkpointer,
    ):
        for step in range(1, WARM_UPS + repeats + 1):
            model.seconds = optimizer.seconds = 0.0
            started = time.perf_counter()
            snapshot = checkpointer.save(step, state)
            total = time.perf_counter() - started
            snapshot.wait("committed")
            inside = model.seconds + optimizer.seconds
            if step > WARM_UPS:
                own.append((total - inside) * 1e3)
                users.append(inside * 1e3)
    return own, users


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--reference", help="not used here")
    options = parser.parse_args()

    sizes = {"64 MiB": 64 << 20, "512 MiB" if options.quick else "4 GiB": 512 << 20 if options.quick else 4 << 30}
    report = Report("python_save_call", setup={"torch": torch.__version__, "tensors": 4 * PARAMETERS, "pool": POOL})
    medians = []
    for name, size in sizes.items():
        own, users = measure(size, 5 if options.quick else 21, options.dir)
        medians.append(median(own))
        report.lines.append(Line(f"save(), 1,000 tensors, {name}", "ms", own, ("<=", 10.0)))
        report.lines.append(Line(f"beside it, the user's state_dict(), {name}", "ms", users))
    names = list(sizes)
    report.lines.append(Line(f"save(), {names[1]} over {names[0]}", "ms", [medians[1] - medians[0]], ("<=", 1.0)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    own, _ = measure(64 << 20, 5 if options.quick else 21, options.dir, dtensors=True)
    dist.destroy_process_group()
    report.lines.append(Line("save(), 750 DTensors and 250 tensors, 64 MiB", "ms", own))
    report.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
