#!/usr/bin/env python3
"""Runs the benchmarks, prints one table with goal and verdict a line, and leaves the samples as JSON.

    python bench/run.py                       everything, about a quarter of an hour
    python bench/run.py --quick               few small runs: shows that it works, proves nothing
    python bench/run.py --only durable_write  one of them

docs/benchmarks.md tells what each figure means and how it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NEEDED_BYTES = 20 << 30  # the largest state is 4 GiB, and three versions of it may be on the disk at once


@dataclass(frozen=True)
class Benchmark:
    name: str
    python: bool  # a script of this folder; otherwise a verb of slackwater_bench
    help: str
    bytes: int | None = None  # of the state, where it is not the verb's own choice


BENCHMARKS = [
    Benchmark("durable_write", False, "a state through a pool of an eighth of it, against a raw write", 4 << 30),
    # Large, so that reads come from the disk: a virtual machine's host keeps a gigabyte or two in its own cache.
    Benchmark("verified_restore", False, "restore with every byte checked, against raw reads", 4 << 30),
    Benchmark("save_call", False, "how long save() holds a C++ program up"),
    Benchmark("staging", False, "copying into a pool that holds the state, against memcpy"),
    Benchmark("small_tensors", False, "100,000 tensors of 16 KiB against few large ones"),
    Benchmark("peak_memory", False, "memory beyond the state, for save and restore"),
    Benchmark("restore_plan", False, "a rank's share of 1,000,000 boxes, found and planned"),
    Benchmark("python_save_call", True, "how long save() holds a Python program up"),
    Benchmark("train_stall", True, "training with a checkpoint at every iteration, against none"),
]


def arguments() -> argparse.Namespace:
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(
        description="Runs the benchmarks of docs/benchmarks.md.",
        epilog="\n".join(f"{b.name:<18}{b.help}" for b in BENCHMARKS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few small runs: shows that it works, proves nothing")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to write: the disk that is measured")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="CMake build tree")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for the JSON files")
    parser.add_argument("--rivals", action="store_true", help="train_stall: torch.save and DCP async_save beside it")
    parser.add_argument("--micro", action="store_true", help="the Google Benchmark part as well")
    parser.add_argument("--strict", action="store_true", help="exit with 2 when a goal is missed")
    return parser.parse_args()


def command(benchmark: Benchmark, options: argparse.Namespace, directory: Path, output: Path) -> list[str]:
    binary = options.build / "bench" / "slackwater_bench"
    if benchmark.python:
        words = [sys.executable, str(HERE / f"{benchmark.name}.py"), "--reference", str(binary)]
    else:
        words = [str(binary), benchmark.name]
    words += ["--dir", str(directory), "--json", str(output)]
    if options.quick:
        words.append("--quick")
    elif benchmark.bytes is not None:
        words += ["--bytes", str(benchmark.bytes)]
    if options.rivals and benchmark.name == "train_stall":
        words.append("--rivals")
    return words


def run_one(benchmark: Benchmark, options: argparse.Namespace, directory: Path) -> dict[str, Any] | None:
    output = options.results / f"{benchmark.name}.json"
    output.unlink(missing_ok=True)
    print(f"{benchmark.name:<18}{benchmark.help} ...", end="", flush=True, file=sys.stderr)
    started = time.monotonic()
    finished = subprocess.run(command(benchmark, options, directory, output), stdout=subprocess.DEVNULL)
    print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)
    if finished.returncode != 0 or not output.exists():
        print(f"{benchmark.name} failed with exit code {finished.returncode}, see above", file=sys.stderr)
        return None
    return json.loads(output.read_text())


def check(options: argparse.Namespace) -> str | None:
    """What stands in the way of a run, as one sentence, or None."""
    if not (options.build / "bench" / "slackwater_bench").exists():
        return f"no slackwater_bench in {options.build}: run make bench, or cmake with -DSLACKWATER_BENCH=ON"
    space = os.statvfs(options.dir)
    if not options.quick and space.f_bavail * space.f_frsize < NEEDED_BYTES:
        return f"less than {NEEDED_BYTES >> 30} GiB free in {options.dir}; name another directory with --dir"
    return None


def main() -> int:
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    options.results.mkdir(parents=True, exist_ok=True)
    if problem := check(options):
        print(f"run.py: {problem}", file=sys.stderr)
        return 1

    described = machine.describe(options.dir)
    print(machine.text(described))
    if described["load_before"] > 0.5:
        print("warning: this machine is busy; figures of a busy machine prove nothing", file=sys.stderr)
    if options.quick:
        print("note: --quick, these figures prove nothing", file=sys.stderr)

    chosen = [b for b in BENCHMARKS if not options.only or b.name in options.only]
    reports, failed = [], False
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=options.dir) as directory:
        for benchmark in chosen:
            result = run_one(benchmark, options, Path(directory))
            failed |= result is None
            if result is not None:
                reports.append(result)

    if reports:
        text = report.table(reports)
        print("\n" + text)
        (options.results / "table.txt").write_text(f"{machine.text(described)}\n\n{text}\n")
    summary = {"machine": described, "quick": options.quick, "reports": reports}
    (options.results / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    if options.micro:
        print(flush=True)
        failed |= subprocess.run([str(options.build / "bench" / "slackwater_micro")]).returncode != 0
    missed = [line for entry in reports for line in entry["lines"] if line["verdict"].startswith("missed")]
    if failed:
        return 1
    return 2 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
