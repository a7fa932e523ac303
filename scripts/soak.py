"""The long forms of the reliability harnesses (docs/reliability.md), each with its table: `make soak MINUTES=n`.

Runs at length what `make test` runs briefly: power cuts with many more outcomes, every mutation against every scenario,
10,000 corruptions, 1,000 kills, 1,000 kills of one of four ranks, 200 during copies to a lower tier, 200 during uploads
to object stores and gc, 1,000 with a memory tier and 20 under torchrun, power cuts of a real ext4, the whole matrix of
training runs that are killed and resumed, and a load of `--minutes`. Exit code 1 if anything was lost.
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import soak_ext4

# Thousands of small directories: in memory, where there is such a file system.
IN_MEMORY = {"TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else {}


@dataclasses.dataclass(frozen=True)
class Harness:
    """A test program below the build's tests folder, and what tells it how much to do."""

    program: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    what: str = ""  # its row, where the program reports no tallies of its own (tests/support/tally.hpp)


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    tried: int | None
    lost: int | None  # None: not run here
    seconds: float | None = None


def harnesses(scale: float, minutes: float) -> list[Harness]:
    def count(usual: int) -> str:
        return str(max(1, round(usual * scale)))

    hosts = {"SLACKWATER_TEST_NFS": "1"}  # each rank on a host with caches of its own
    odd_kills = {"SLACKWATER_ODD_KILLS": count(300)}
    return [
        Harness(
            "crash/crash_test",
            IN_MEMORY | {"SLACKWATER_CRASH_SAMPLES": count(60), "SLACKWATER_CRASH_RESTARTS": count(50)},
        ),
        Harness(
            "crash/crash_mutation_test",
            IN_MEMORY | ({"SLACKWATER_ALL_MUTATIONS": "1"} if scale >= 1 else {}),
            "power cuts: syncs left out, each noticed",
        ),
        Harness("corruption/corruption_test", IN_MEMORY | {"SLACKWATER_CORRUPTIONS": count(10_000)}),
        Harness("kill/kill_test", odd_kills | {"SLACKWATER_KILLS": count(1_000), "SLACKWATER_KILL_MIB": "32"}),
        Harness("kill/tier_kill_test", {"SLACKWATER_TIER_KILLS": count(200)}),
        Harness("kill/memory_kill_test", {"SLACKWATER_MEMORY_KILLS": count(1_000)}),
        Harness("kill/ranks_kill_test", {"SLACKWATER_RANK_KILLS": count(500), "SLACKWATER_ODD_KILLS": count(100)}),
        Harness("fault/background_error_test", {}, "faults: full, failing, slow, hanging disk"),
        Harness("fault/nothing_lost_test", {}, "faults: debris, disk of keep + 1 states, reads that fail for a while"),
        Harness("fault/ranks_matrix_test", {}, "faults of ranks: phase x role x error, hang, death"),
        Harness("fault/ranks_matrix_test", hosts, "faults of ranks: the same, caches of each host (NFS)"),
        Harness("fault/ranks_zombie_test", {}, "faults of ranks: one comes back from an earlier start"),
        Harness("fault/ranks_zombie_test", hosts, "faults of ranks: the same, caches of each host (NFS)"),
        Harness("fault/ranks_nfs_test", {}, "faults of ranks: quick restarts on other hosts, lost replies"),
        Harness("fault/ranks_full_disk_test", {}, "faults of ranks: restore on a full disk"),
        Harness("fault/ranks_slow_save_test", {}, "faults of ranks: one is slow to save"),
        Harness("fault/ranks_slow_restore_test", {}, "faults of ranks: one is slow to restore"),
        Harness("load/load_test", {"SLACKWATER_LOAD_SECONDS": str(max(1, round(minutes * 60)))}),
    ]


def run(tests: Path, harness: Harness) -> list[Row]:
    """The tallies that it reported; without any, its tests that ran and its tests that failed."""
    with tempfile.TemporaryDirectory() as directory:
        tallies, outcome = Path(directory) / "tallies", Path(directory) / "outcome.json"
        began = time.monotonic()
        code = subprocess.run(
            [str(tests / harness.program), "--gtest_brief=1", f"--gtest_output=json:{outcome}"],
            env=os.environ | harness.environment | {"SLACKWATER_TALLIES": str(tallies)},
            check=False,
        ).returncode
        seconds = time.monotonic() - began
        rows = []
        if not harness.what and tallies.exists():
            for line in tallies.read_text().splitlines():
                what, tried, lost = line.split("\t")
                rows.append(Row(what, int(tried), int(lost)))
        else:
            tests_run = json.loads(outcome.read_text()) if outcome.exists() else {"tests": 0, "failures": 1}
            rows.append(Row(harness.what or harness.program, tests_run["tests"], tests_run["failures"]))
    if code != 0 and not any(row.lost for row in rows):  # it crashed, or failed for another reason
        rows.append(Row(f"{harness.program}: ended with code {code}", None, 1))
    return [dataclasses.replace(row, seconds=seconds if row is rows[0] else None) for row in rows]


def kill_torchrun(kills: int) -> list[Row]:
    test = "tests/python/test_sharded.py::test_a_run_killed_at_any_moment_goes_on_with_any_number_of_ranks"
    began = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", test],
        env=os.environ | {"SLACKWATER_TORCHRUN_KILLS": str(kills)},
        check=False,
    ).returncode
    return [Row("kills under torchrun", kills, int(code != 0), time.monotonic() - began)]


def kill_uploads(kills: int) -> list[Row]:
    """While a run uploads to real servers on loopback and deletes there, and while `slackwater gc` does."""
    began = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "tests/python/test_s3_kills.py"],
        env=os.environ | {"SLACKWATER_S3_KILLS": str(kills)},
        check=False,
    ).returncode
    return [Row("kills during uploads and gc: rclone, moto", kills, int(code != 0), time.monotonic() - began)]


def deepspeed_matrix() -> list[Row]:
    """Every ZeRO stage on 1 and 2 ranks, in float32 and bfloat16: killed, resumed, compared with the torch engine."""
    test = "tests/python/test_deepspeed.py::test_a_run_killed_and_resumed_equals_that_of_the_torch_engine"
    began = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", test],
        env=os.environ | {"SLACKWATER_DEEPSPEED_MATRIX": "all"},
        check=False,
    ).returncode
    return [Row("DeepSpeed: ZeRO 0 to 3, 1 and 2 ranks", 16, int(code != 0), time.monotonic() - began)]


def cut_ext4(trainer: Path, cuts: int, seed: int) -> list[Row]:
    began = time.monotonic()
    passed = soak_ext4.run(trainer, cuts, seed)
    lost = None if passed is None else int(not passed)
    return [Row("power cuts of a real ext4, with and without journal", 2 * cuts, lost, time.monotonic() - began)]


def table(rows: list[Row]) -> str:
    width = max(len(row.what) for row in rows)
    lines = [f"{'what':<{width}} |   tried |     lost | seconds"]
    for row in rows:
        tried = "" if row.tried is None else f"{row.tried}"
        lost = "not run" if row.lost is None else f"{row.lost}"
        seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
        lines.append(f"{row.what:<{width}} | {tried:>7} | {lost:>8} | {seconds:>7}")
    return "\n".join(lines)


def resume_matrix(kills: int, seed: int, whole: bool) -> list[Row]:
    """Every kind of training run, killed and compared bit by bit; each kill in what is left of the run."""
    command = [sys.executable, "-W", "ignore", "tests/python/resume_matrix.py", f"--seed={seed}", f"--kills={kills}"]
    began = time.monotonic()
    code = subprocess.run([*command, "--steps=30", *(["--all"] if whole else [])], check=False).returncode
    return [Row("resume matrix: kinds of training runs", None, int(code != 0), time.monotonic() - began)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder with the tests in it")
    parser.add_argument("--minutes", type=float, default=10, help="length of the load (default: 10)")
    parser.add_argument("--scale", type=float, default=1, help="of all counts; 0.01 tries the driver (default: 1)")
    parser.add_argument("--cuts", type=int, default=100, help="power cuts of each ext4 (default: 100)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all random choices (default: the time)")
    parser.add_argument("--only", help="run the harnesses whose program's name contains this")
    arguments = parser.parse_args()

    os.environ["SLACKWATER_SEED"] = str(arguments.seed)
    print(f"seed {arguments.seed}: give it as --seed to see the same again", flush=True)
    tests = arguments.build / "tests"
    cuts = max(1, round(arguments.cuts * arguments.scale))
    kills = max(1, round(20 * arguments.scale))
    jobs: list[tuple[str, Callable[[], list[Row]]]] = [
        (harness.program, functools.partial(run, tests, harness))
        for harness in harnesses(arguments.scale, arguments.minutes)
    ]
    jobs.append(("ext4", functools.partial(cut_ext4, tests / "kill/kill_trainer", cuts, arguments.seed)))
    jobs.append(("torchrun", functools.partial(kill_torchrun, kills)))
    jobs.append(("s3_kills", functools.partial(kill_uploads, max(3, round(200 * arguments.scale)))))
    jobs.append(("deepspeed", deepspeed_matrix))
    resume_kills = max(1, round(3 * arguments.scale))
    whole = arguments.scale >= 1
    jobs.append(("resume matrix", functools.partial(resume_matrix, resume_kills, arguments.seed, whole)))
    rows: list[Row] = []
    for name, job in jobs:
        if arguments.only and arguments.only not in name:
            continue
        print(f"\n== {name}", flush=True)
        rows += job()
    if not rows:
        parser.error(f"no harness has '{arguments.only}' in its name")
    print(f"\n{table(rows)}")
    return 1 if any(row.lost for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
