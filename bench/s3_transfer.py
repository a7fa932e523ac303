"""Upload and restore through an object store on loopback, next to `rclone copy` against the same server.

    .venv/bin/python bench/s3_transfer.py [--size 1024] [--pairs 5] [--json FILE]

Each pair moves the same bytes to `rclone serve s3` in three ways: `slackwater copy`, the engine (a Checkpointer with a
tier there: from the commit on tier 0 until the tier has it), and `rclone copy`. Then it brings them back in three ways:
`sw.load`, the engine (`restore` with an empty tier 0), and `rclone copy` into /dev/shm. The order is reversed in every
second pair. slackwater checks every byte on the way, in both directions. Prints the medians of the ratios (above 1:
slackwater is faster) and the peak memory beyond buffers, pool and state.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python"))

import numpy as np
import slackwater as sw
from object_stores import ACCESS_KEY, BUCKET, SECRET_KEY, Store, rclone

BIN = Path(sys.executable).parent
BUFFER_MIB = 192  # of `slackwater copy`: its pool
POOL_MIB = 128  # of the engine
READER_MIB = 64  # of sw.load
GOAL = 0.8
MEMORY_GOAL_MIB = 64
WAYS = {  # name: what rclone does instead, and in words
    "copy": ("rclone_up", "slackwater copy"),
    "promote": ("rclone_up", "engine, to the tier"),
    "load": ("rclone_down", "sw.load"),
    "restore": ("rclone_down", "engine, restore"),
}

# A process begins with the peak of the one that started it, so a small one starts what is measured.
PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""

# What the engine does, each in a process of its own: sys.argv is the pool, the local directory, the tier, the bytes.
PRELUDE = """
import json, re, sys, time
import numpy, slackwater as sw
pool, local, tier, size = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
peak = lambda: int(re.search("VmHWM:\\\\s+([0-9]+)", open("/proc/self/status").read())[1]) / 1024
def report(seconds, before, own):
    print(json.dumps({"seconds": seconds, "beyond_mib": peak() - before - own}))
"""
LOAD = """
before = peak()
began = time.perf_counter()
state = sw.load(tier)
report(time.perf_counter() - began, before, state["w"].nbytes / 2**20 + pool)
"""
PROMOTE = """
values = numpy.random.default_rng(1).integers(0, 255, size, dtype=numpy.uint8)
before = peak()
with sw.Checkpointer(local, pool=f"{pool}MiB", tiers=[sw.Tier(tier)]) as ckpt:
    ckpt.save(1, {"w": values})
    ckpt.wait()
    began = time.perf_counter()
    ckpt.wait_copied()
    report(time.perf_counter() - began, before, pool)
"""
RESTORE = """
state = {"w": numpy.ones(size, numpy.uint8)}
before = peak()
ckpt = sw.Checkpointer(local, pool=f"{pool}MiB", tiers=[sw.Tier(tier)])
began = time.perf_counter()
assert ckpt.restore(state) == 1
report(time.perf_counter() - began, before, pool)
ckpt.close()
"""


class Bench:
    def __init__(self, directory: Path, memory: Path, store: Store, size_mib: int) -> None:
        self.directory, self.memory, self.store, self.size_mib = directory, memory, store, size_mib
        self.run = directory / "run"
        self.seconds: dict[str, list[float]] = {name: [] for name in (*WAYS, "rclone_up", "rclone_down")}
        self.beyond: dict[str, list[float]] = {name: [] for name in WAYS}

    def up(self, pair: int) -> list[Callable[[], None]]:
        return [lambda: self.copy(pair), lambda: self.promote(pair), lambda: self.rclone_up(pair)]

    def down(self, pair: int) -> list[Callable[[], None]]:
        return [lambda: self.load(pair), lambda: self.restore(pair), lambda: self.rclone_down(pair)]

    def forget(self, pair: int) -> None:
        for name in ("copy", "promote", "rclone"):
            shutil.rmtree(self.directory / "data" / BUCKET / f"{name}{pair}")

    def copy(self, pair: int) -> None:
        words = [str(BIN / "slackwater"), "copy", str(self.run), f"s3://{BUCKET}/copy{pair}"]
        words += ["--buffer", f"{BUFFER_MIB}MiB"]
        began = time.perf_counter()
        done = self.child([sys.executable, "-S", "-c", PEAK, *words])
        self.seconds["copy"].append(time.perf_counter() - began)
        self.beyond["copy"].append(int(done) / 1024 - BUFFER_MIB)

    def promote(self, pair: int) -> None:
        self.engine("promote", PROMOTE, POOL_MIB, f"promote{pair}")

    def load(self, pair: int) -> None:
        self.engine("load", LOAD, READER_MIB, f"copy{pair}")

    def restore(self, pair: int) -> None:
        self.engine("restore", RESTORE, POOL_MIB, f"copy{pair}")

    def engine(self, way: str, program: str, pool_mib: int, prefix: str) -> None:
        local = self.directory / "local"
        words = [str(pool_mib), str(local), f"s3://{BUCKET}/{prefix}", str(self.size_mib << 20)]
        done = json.loads(self.child([sys.executable, "-c", PRELUDE + program, *words]))
        self.seconds[way].append(done["seconds"])
        self.beyond[way].append(done["beyond_mib"])
        shutil.rmtree(local, ignore_errors=True)

    def rclone_up(self, pair: int) -> None:
        self.seconds["rclone_up"].append(self.rclone_copy(str(self.run), f"t:{BUCKET}/rclone{pair}"))

    def rclone_down(self, pair: int) -> None:
        target = self.memory / str(pair)
        self.seconds["rclone_down"].append(self.rclone_copy(f"t:{BUCKET}/rclone{pair}", str(target)))
        shutil.rmtree(target)

    def rclone_copy(self, source: str, target: str) -> float:
        settings = {
            "TYPE": "s3",
            "PROVIDER": "Rclone",
            "ENDPOINT": self.store.endpoint,
            "ACCESS_KEY_ID": ACCESS_KEY,
            "SECRET_ACCESS_KEY": SECRET_KEY,
        }
        env = {**self.store.env(self.directory), **{f"RCLONE_CONFIG_T_{name}": it for name, it in settings.items()}}
        words = [BIN / "rclone", "copy", "--config", os.devnull, source, target]
        began = time.perf_counter()
        subprocess.run(words, env=env, check=True)
        return time.perf_counter() - began

    def child(self, words: list[str]) -> str:
        env = self.store.env(self.directory)
        return subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = {"size_mib": self.size_mib, "seconds": self.seconds, "ways": {}}
        for way, (theirs, _) in WAYS.items():
            ratios = [b / a for a, b in zip(self.seconds[way], self.seconds[theirs], strict=True)]
            report["ways"][way] = {
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "beyond_mib": max(self.beyond[way]),
            }
        return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the checkpoint")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the server keeps its data")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        report = measure(Path(directory).resolve(), arguments.size, arguments.pairs)
    print_table(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(directory: Path, size_mib: int, pairs: int) -> dict[str, Any]:
    values = np.random.default_rng(1).integers(0, 255, size_mib << 20, dtype=np.uint8)
    with sw.Checkpointer(directory / "run", pool="128MiB") as ckpt:
        ckpt.save(1, {"w": values})
        ckpt.wait()
    del values
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with rclone(directory) as store:
            bench = Bench(directory, memory, store, size_mib)
            for pair in range(pairs):
                for steps in (bench.up(pair), bench.down(pair)):
                    for step in steps if pair % 2 == 0 else reversed(steps):
                        step()
                bench.forget(pair)
            return bench.report()
    finally:
        shutil.rmtree(memory)


def print_table(report: dict[str, Any]) -> None:
    size = report["size_mib"] / 1024
    pairs = len(report["seconds"]["copy"])
    print(f"{report['size_mib']} MiB, {pairs} pairs, rclone serve s3 on loopback, {os.cpu_count()} processors")
    print(f"{'':20}{'slackwater':>14}{'rclone copy':>14}{'ratio':>8}{'goal':>6}{'memory beyond pool':>21}")
    for way, (theirs, words) in WAYS.items():
        ours = statistics.median(report["seconds"][way])
        other = statistics.median(report["seconds"][theirs])
        figures = report["ways"][way]
        print(
            f"{words:20}{size / ours:>9.2f} GiB/s{size / other:>9.2f} GiB/s{figures['ratio']:>7.2f}{GOAL:>7}"
            f"{figures['beyond_mib']:>12.0f} of {MEMORY_GOAL_MIB} MiB"
        )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
