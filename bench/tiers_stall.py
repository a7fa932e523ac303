"""Training with a lower tier that dies, comes back and is throttled, beside the same training with tier 0 only.

    .venv/bin/python bench/tiers_stall.py [--tier directory|s3] [--quick] [--json FILE]

Every step is checkpointed on tier 0, every fifth is due on the lower tier. One iteration is: compute (a sleep, so no
GPU), fence, a real AdamW update, save. Runs with and without the tier alternate (ABBA). In each run with the tier, it
is taken away after a quarter of the steps, comes back after half of them but slow, and runs freely for the last
quarter. The figure is the median ratio of training times. Afterwards every due version must be on the tier, and verify.
"directory": a directory that a file replaces, and a bandwidth cap. "s3": `rclone serve s3` (requirements-s3.txt), which
is killed, started again, and stopped by SIGSTOP for four fifths of the time. It has the lowest priority, because it
stands for a machine of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import slackwater as sw
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python"))

EVERY = 5


@dataclass(frozen=True)
class Plan:
    layers: int
    compute_seconds: float
    steps: int
    pairs: int


FULL = Plan(layers=4, compute_seconds=0.5, steps=40, pairs=8)
QUICK = Plan(layers=1, compute_seconds=0.1, steps=20, pairs=2)


class DirectoryPlace:
    """A directory. Away: a file is in its place, so every call fails."""

    bandwidth = "200MiB"

    def __init__(self, base: Path) -> None:
        self.location = str(base / "lower" / "run")
        self._shown, self._hidden = base / "lower", base / "hidden"
        self._shown.mkdir()

    def kill(self) -> None:
        self._shown.rename(self._hidden)
        self._shown.write_text("away")

    def revive_slowly(self) -> None:
        self._shown.unlink()
        self._hidden.rename(self._shown)

    def run_freely(self) -> None:
        pass

    def close(self) -> None:
        pass


class ObjectPlace:
    """rclone serve s3, as the tests start it."""

    bandwidth = 0

    def __init__(self, base: Path) -> None:
        import object_stores

        self._stores, self._base, self._port = object_stores, base, object_stores.free_port()
        self._slow: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._start()
        self.location = f"s3://{object_stores.BUCKET}/run"
        os.environ.update(self._store.env(base))

    def _start(self) -> None:
        self._stack = contextlib.ExitStack()
        self._store = self._stack.enter_context(self._stores.rclone(self._base, self._port))
        for thread in os.listdir(f"/proc/{self._store.process.pid}/task"):  # those that come later have it from these
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)

    def kill(self) -> None:
        self._stack.close()

    def revive_slowly(self) -> None:
        self._start()
        slow = self._slow = threading.Event()
        process = self._store.process

        def throttle() -> None:
            while not slow.is_set():
                process.send_signal(signal.SIGSTOP)
                slow.wait(0.08)
                process.send_signal(signal.SIGCONT)
                slow.wait(0.02)

        self._thread = threading.Thread(target=throttle)
        self._thread.start()

    def run_freely(self) -> None:
        assert self._slow is not None and self._thread is not None
        self._slow.set()
        self._thread.join()
        self._store.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._stack.close()


PLACES = {"directory": DirectoryPlace, "s3": ObjectPlace}


def train(plan: Plan, ckpt: sw.Checkpointer, place: DirectoryPlace | ObjectPlace | None) -> float:
    """Seconds for all steps but the first, which makes the pool."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(plan.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    state = {"model": model, "optim": optimizer}
    start = 0.0
    for step in range(1, plan.steps + 1):
        if place is not None:
            if step == plan.steps // 4:
                place.kill()
            elif step == plan.steps // 2:
                place.revive_slowly()
            elif step == plan.steps * 3 // 4:
                place.run_freely()
        time.sleep(plan.compute_seconds)
        optimizer.step()
        ckpt.save(step, state)
        if step == 1:
            start = time.perf_counter()
    ckpt.fence()
    return time.perf_counter() - start


def verified_steps(location: str) -> list[int]:
    command = Path(sys.executable).parent / "slackwater"
    subprocess.run([command, "verify", location], check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run([command, "ls", location, "--json"], check=True, capture_output=True, text=True)
    return sorted(version["step"] for version in json.loads(listed.stdout)["versions"])


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="tiers-", dir="build" if Path("build").is_dir() else None))
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def run_local(plan: Plan) -> float:
    with scratch() as base, sw.Checkpointer(base / "run") as ckpt:
        return train(plan, ckpt, None)


def run_with_tier(plan: Plan, kind: str) -> float:
    due = list(range(EVERY, plan.steps + 1, EVERY))
    with scratch() as base:
        place = PLACES[kind](base)
        try:
            tier = sw.Tier(place.location, every=EVERY, keep=0, backlog=len(due), bandwidth=place.bandwidth)
            with sw.Checkpointer(base / "run", tiers=[tier]) as ckpt:
                seconds = train(plan, ckpt, place)
                ckpt.wait_copied()
                (status,) = ckpt.tiers
                assert status.errors > 0, "the tier was never away"
                assert status.skipped == 0, f"{status.skipped} versions were skipped"
            there = verified_steps(place.location)
            assert there == due, f"on the tier: {there}; due: {due}"
            return seconds
        finally:
            place.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=sorted(PLACES), default="directory")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    ratios = []
    for pair in range(plan.pairs):
        order = ("local", "tier") if pair % 2 == 0 else ("tier", "local")
        seconds = {way: run_local(plan) if way == "local" else run_with_tier(plan, arguments.tier) for way in order}
        ratios.append(seconds["tier"] / seconds["local"])
        print(f"pair {pair + 1}: local {seconds['local']:.2f} s, with the tier {seconds['tier']:.2f} s", flush=True)
    middle = statistics.median(ratios)
    print(f"training time with a {arguments.tier} tier that dies and is slow: {middle:.4f} of tier 0 only")
    print(f"ratios {min(ratios):.4f} to {max(ratios):.4f}; all due versions are on the tier and verify")
    if arguments.json:
        figures = {"tier": arguments.tier, "plan": vars(plan), "ratios": ratios, "median": middle}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
