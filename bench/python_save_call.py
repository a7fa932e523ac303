"""The save() call from Python: a model and its AdamW with 1,000 tensors, at 64 MiB and at 4 GiB of state.

Twice at 64 MiB: with the classes of torch, whose tensors save() finds by itself, and with classes that have a
state_dict() of their own, which save() must call. Time inside the user's state_dict() is shown apart: it is paid for
any checkpoint, whoever takes it. Then with DTensors in a group of one rank: parameters and moments are DTensors, step
counters are not. The whole call is counted per 1,000 DTensors, step counters included.

The structure never changes after the warm-ups. Beside the time there is the CPU time of the calling thread, which other
programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import slackwater as sw
import torch
import torch.distributed as dist
from report import Line, Report, median
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

PARAMETERS = 250  # with AdamW's step, exp_avg and exp_avg_sq: 1,000 tensors
DTENSORS = 3 * PARAMETERS  # all but step
TENSORS_GOAL_MS = 2.0
DTENSORS_GOAL_MS = 3.0
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


class Model(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(elements)) for _ in range(PARAMETERS))


class OwnModel(Timed, Model):
    pass


def shard(model: Model) -> None:
    """Its parameters become DTensors of one rank."""
    mesh = init_device_mesh("cpu", (1,))
    for number, parameter in enumerate(model.weights):
        model.weights[number] = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))


class OwnAdamW(Timed, torch.optim.AdamW):
    pass


def warm_optimizer(kind: type[torch.optim.AdamW], model: Model, foreach: bool) -> torch.optim.AdamW:
    optimizer = kind(model.parameters(), foreach=foreach)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


class Calls(NamedTuple):
    """Milliseconds of each call, without what is inside state_dict() of the user's own."""

    own: list[float]
    cpu: list[float]  # of the calling thread
    users: list[float]  # inside state_dict(), apart


def measure(
    state_bytes: int, repeats: int, directory: Path, *, own_classes: bool = False, dtensors: bool = False
) -> Calls:
    model = (OwnModel if own_classes else Model)(state_bytes // (PARAMETERS * 3 * 4))
    if dtensors:
        shard(model)
    optimizer = warm_optimizer(OwnAdamW if own_classes else torch.optim.AdamW, model, foreach=not dtensors)
    state = {"model": model, "optim": optimizer}
    calls = Calls([], [], [])
    with (
        tempfile.TemporaryDirectory(dir=directory) as path,
        sw.Checkpointer(path, pool=POOL, keep=1) as checkpointer,
    ):
        for step in range(1, WARM_UPS + repeats + 1):
            model.seconds = optimizer.seconds = 0.0
            started, cpu = time.perf_counter(), time.thread_time()
            snapshot = checkpointer.save(step, state)
            cpu = time.thread_time() - cpu
            total = time.perf_counter() - started
            snapshot.wait("committed")
            inside = model.seconds + optimizer.seconds
            if step > WARM_UPS:
                calls.own.append((total - inside) * 1e3)
                calls.cpu.append(cpu * 1e3)
                calls.users.append(inside * 1e3)
    return calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--reference", help="not used here")
    options = parser.parse_args()

    sizes = {"64 MiB": 64 << 20, "512 MiB" if options.quick else "4 GiB": 512 << 20 if options.quick else 4 << 30}
    report = Report("python_save_call", setup={"torch": torch.__version__, "tensors": 4 * PARAMETERS, "pool": POOL})
    repeats = 5 if options.quick else 41
    medians = []
    for name, size in sizes.items():
        calls = measure(size, repeats, options.dir)
        medians.append(median(calls.own))
        report.lines.append(Line(f"save() per 1,000 tensors, {name}", "ms", calls.own, ("<=", TENSORS_GOAL_MS)))
        report.lines.append(Line(f"CPU time of it, {name}", "ms", calls.cpu, ("<=", TENSORS_GOAL_MS)))
    names = list(sizes)
    report.lines.append(Line(f"save(), {names[1]} over {names[0]}", "ms", [medians[1] - medians[0]], ("<=", 1.0)))
    calls = measure(sizes["64 MiB"], repeats, options.dir, own_classes=True)
    report.lines.append(
        Line("the same, state_dict() of the user's own, 64 MiB", "ms", calls.own, ("<=", TENSORS_GOAL_MS))
    )
    report.lines.append(Line("beside it, inside state_dict()", "ms", calls.users))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    calls = measure(sizes["64 MiB"], repeats, options.dir, dtensors=True)
    dist.destroy_process_group()
    for name, samples in (("save() per 1,000 DTensors, 64 MiB", calls.own), ("CPU time of it", calls.cpu)):
        scaled = [value * 1000 / DTENSORS for value in samples]
        report.lines.append(Line(name, "ms", scaled, ("<=", DTENSORS_GOAL_MS)))
    report.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
