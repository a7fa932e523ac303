"""From SIGKILL to the next training step, with the newest checkpoint in a keeper's memory.

    python bench/memory_restart.py [--gb 1.3] [--rounds 5] [--directory DIR] [--json FILE]

Each round trains until a step is staged, kills the trainer with SIGKILL, and starts it again at once. It measures the
time from the kill to the end of the first training step after the restore. The reference is the same program without a
checkpoint: start, import, make the model, one training step. It runs while the trainer waits and has nothing left to
write. Both alternate in one run. The restore itself is measured
by `slackwater_bench memory_restore`, against hash + memcpy of as many bytes with as many threads in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINER = """
import json, os, sys, time
begin = time.monotonic()
import torch
import slackwater as sw

path, size, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]
tensors = {f"layer.{i}": torch.zeros(size // 16 // 4) for i in range(16)}

def step_once():
    for tensor in tensors.values():
        tensor[:1024].add_(1)

if action == "plain":
    step_once()
    print(json.dumps({"stepped": time.monotonic()}), flush=True)
    sys.exit()
if action == "first":
    for tensor in tensors.values():
        tensor.random_(-1000, 1000)
ckpt = sw.Checkpointer(path, memory=True, memory_timeout=120, keep=1)
imported = time.monotonic()
step = ckpt.restore({"tensors": tensors}) if action != "first" else None
restored = time.monotonic()
step_once()
said = {"stepped": time.monotonic(), "restore_seconds": restored - imported, "step": step}
print(json.dumps(said), flush=True)
step = (step or 0) + 1
ckpt.save(step, {"tensors": tensors}).wait("committed")
print(json.dumps({"committed": step}), flush=True)
sys.stdin.readline()  # nothing of this process runs until then
step_once()
ckpt.fence()
ckpt.save(step + 1, {"tensors": tensors}).wait("staged")
print(json.dumps({"staged": step + 1}), flush=True)
time.sleep(600)
"""


def start(path: str, size: int, action: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER, path, str(size), action],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def line(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def save_one_more(process: subprocess.Popen[str]) -> float:
    """The step that is staged, and not on disk yet, when this returns."""
    assert process.stdin is not None
    process.stdin.write("\n")
    return line(process)["staged"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    size = int(arguments.gb * 1e9) // (16 * 4096) * (16 * 4096)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = os.path.join(folder, "run")
        process = start(path, size, "first")
        line(process), line(process)
        beyond, plain, restores, lost = [], [], [], 0
        for _ in range(arguments.rounds):
            began = time.monotonic()
            reference = start(path, size, "plain")
            plain.append(line(reference)["stepped"] - began)
            reference.wait()
            staged = save_one_more(process)
            killed = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            restarted = start(path, size, "restart")
            said = line(restarted)
            process.wait()
            lost += int(said["step"] != staged)
            beyond.append(said["stepped"] - killed - plain[-1])
            restores.append(size / said["restore_seconds"] / 1e9)
            line(restarted)
            process = restarted
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        log = Path(path, ".slackwater", "keeper-00000.log").read_text()
        keeper = int(log.splitlines()[-1].split()[1])
        os.kill(keeper, signal.SIGTERM)
        speed = restore_speed(size, folder)
    result = {
        "bytes": size,
        "rounds": arguments.rounds,
        "start_seconds": statistics.median(plain),
        "beyond_start_seconds": statistics.median(beyond),
        "beyond_start_seconds_worst": max(beyond),
        "python_restore_gb_per_second": statistics.median(restores),
        **speed,
        "steps_lost": lost,
    }
    for name, value in result.items():
        print(f"{name:50} {value:.3f}" if isinstance(value, float) else f"{name:50} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if lost:
        sys.exit("a staged step was lost")


def restore_speed(size: int, folder: str) -> dict[str, float]:
    """Medians of slackwater_bench memory_restore: restore and hash + memcpy alternate in one process."""
    program = Path(__file__).parents[1] / "build" / "release" / "bench" / "slackwater_bench"
    report = Path(folder, "memory_restore.json")
    subprocess.run(
        [program, "memory_restore", "--dir", folder, "--bytes", str(size), "--json", str(report)], check=True
    )
    lines = json.loads(report.read_text())["lines"]
    return {each["name"]: statistics.median(each["samples"]) for each in lines}


if __name__ == "__main__":
    main()
