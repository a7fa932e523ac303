"""Upload and restore through an object store on loopback, next to `rclone copy` against the same server.

    .venv/bin/python bench/s3_transfer.py [--size 1024] [--pairs 5] [--json FILE]

Each pair does four things with the same bytes, in the order ABBA: `slackwater copy` and `rclone copy` upload one
checkpoint to `rclone serve s3`; then `sw.load` and `rclone copy` read it into memory (rclone into /dev/shm). slackwater
checks every byte on the way, in both directions. Prints the median of the ratios (above 1: slackwater is faster) and
the peak memory beyond buffers and state.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python"))

import numpy as np
import slackwater as sw
from object_stores import ACCESS_KEY, BUCKET, SECRET_KEY, Store, rclone

BIN = Path(sys.executable).parent
BUFFER_MIB = 192  # of `slackwater copy`: its pool
GOAL = 0.8
MEMORY_GOAL_MIB = 64

# A process begins with the peak of the one that started it, so a small one starts what is measured.
PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""

LOAD = """
import json, re, sys, time
import numpy, slackwater as sw
peak = lambda: int(re.search("VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1])
before = peak()
began = time.perf_counter()
state = sw.load(sys.argv[1])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "kib": peak() - before, "state": state["w"].nbytes}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the checkpoint")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the server keeps its data")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        report = measure(Path(directory), arguments.size, arguments.pairs)
    print_table(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(directory: Path, size: int, pairs: int) -> dict[str, Any]:
    run = directory / "run"
    values = np.random.default_rng(1).integers(0, 255, size << 20, dtype=np.uint8)
    with sw.Checkpointer(run, pool="128MiB") as ckpt:
        ckpt.save(1, {"w": values})
        ckpt.wait()
    del values
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    times: dict[str, list[float]] = {name: [] for name in ("up_sw", "up_rclone", "down_sw", "down_rclone")}
    peaks: dict[str, list[float]] = {"up": [], "down": []}
    try:
        with rclone(directory) as store:
            for pair in range(pairs):
                ours = [lambda n=pair: up_sw(store, directory, run, n, times, peaks)]
                theirs = [lambda n=pair: up_rclone(store, directory, run, n, times)]
                for step in ours + theirs if pair % 2 == 0 else theirs + ours:
                    step()
                ours = [lambda n=pair: down_sw(store, directory, n, times, peaks)]
                theirs = [lambda n=pair: down_rclone(store, directory, memory, n, times)]
                for step in ours + theirs if pair % 2 == 0 else theirs + ours:
                    step()
                for name in (f"sw{pair}", f"rc{pair}"):
                    shutil.rmtree(directory / "data" / BUCKET / name)
    finally:
        shutil.rmtree(memory)
    report: dict[str, Any] = {"size_mib": size, "pairs": pairs, "seconds": times, "buffer_mib": BUFFER_MIB}
    for way in ("up", "down"):
        ratios = [b / a for a, b in zip(times[f"{way}_sw"], times[f"{way}_rclone"], strict=True)]
        report[way] = {"ratio": statistics.median(ratios), "ratios": ratios, "beyond_mib": max(peaks[way])}
    return report


def up_sw(store: Store, home: Path, run: Path, pair: int, times: dict[str, Any], peaks: dict[str, Any]) -> None:
    words = [str(BIN / "slackwater"), "copy", str(run), f"s3://{BUCKET}/sw{pair}", "--buffer", f"{BUFFER_MIB}MiB"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-S", "-c", PEAK, *words], env=store.env(home), check=True, stdout=subprocess.PIPE, text=True
    )
    times["up_sw"].append(time.perf_counter() - began)
    peaks["up"].append(int(done.stdout) / 1024 - BUFFER_MIB)


def down_sw(store: Store, home: Path, pair: int, times: dict[str, Any], peaks: dict[str, Any]) -> None:
    words = [sys.executable, "-c", LOAD, f"s3://{BUCKET}/sw{pair}"]
    done = json.loads(subprocess.run(words, env=store.env(home), check=True, capture_output=True, text=True).stdout)
    times["down_sw"].append(done["seconds"])
    peaks["down"].append(done["kib"] / 1024 - done["state"] / (1 << 20) - 64)  # the reader's own pool has 64 MiB


def rclone_copy(store: Store, home: Path, source: str, target: str) -> float:
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Rclone",
        "ENDPOINT": store.endpoint,
        "ACCESS_KEY_ID": ACCESS_KEY,
        "SECRET_ACCESS_KEY": SECRET_KEY,
    }
    env = {**store.env(home), **{f"RCLONE_CONFIG_T_{name}": value for name, value in settings.items()}}
    words = [BIN / "rclone", "copy", "--config", os.devnull, source, target]
    began = time.perf_counter()
    subprocess.run(words, env=env, check=True)
    return time.perf_counter() - began


def up_rclone(store: Store, home: Path, run: Path, pair: int, times: dict[str, Any]) -> None:
    times["up_rclone"].append(rclone_copy(store, home, str(run), f"t:{BUCKET}/rc{pair}"))


def down_rclone(store: Store, home: Path, memory: Path, pair: int, times: dict[str, Any]) -> None:
    target = memory / str(pair)
    times["down_rclone"].append(rclone_copy(store, home, f"t:{BUCKET}/rc{pair}", str(target)))
    shutil.rmtree(target)


def print_table(report: dict[str, Any]) -> None:
    size = report["size_mib"] / 1024
    print(
        f"{report['size_mib']} MiB, {report['pairs']} pairs, rclone serve s3 on loopback, {os.cpu_count()} processors"
    )
    print(f"{'':10}{'slackwater':>14}{'rclone copy':>14}{'ratio':>8}{'goal':>6}{'memory beyond pool':>21}")
    for way, name in (("up", "upload"), ("down", "restore")):
        ours = statistics.median(report["seconds"][f"{way}_sw"])
        theirs = statistics.median(report["seconds"][f"{way}_rclone"])
        print(
            f"{name:10}{size / ours:>9.2f} GiB/s{size / theirs:>9.2f} GiB/s{report[way]['ratio']:>7.2f}{GOAL:>7}"
            f"{report[way]['beyond_mib']:>12.0f} of {MEMORY_GOAL_MIB} MiB"
        )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
