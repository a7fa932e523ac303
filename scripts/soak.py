"""The long forms of the reliability harnesses (docs/reliability.md), each with its table: `make soak MINUTES=n`.

Everything that `make test` does briefly is done at length: power cuts with many more outcomes, every mutation against
every scenario, 10,000 corruptions, 1,000 kills, 1,000 kills of one of four ranks and 20 under torchrun, power cuts of a real
ext4, and a load of `--minutes`. Exit code 1 if anything was lost.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import soak_ext4

# Thousands of small directories: in memory, where there is such a file system.
IN_MEMORY = {"TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else {}


def harnesses(scale: float, minutes: float) -> list[tuple[str, dict[str, str]]]:
    """Test programs below the build's tests folder, and what tells each how much to do."""

    def count(usual: int) -> str:
        return str(max(1, round(usual * scale)))

    return [
        (
            "crash/crash_test",
            IN_MEMORY | {"SLACKWATER_CRASH_SAMPLES": count(60), "SLACKWATER_CRASH_RESTARTS": count(50)},
        ),
        ("crash/crash_mutation_test", IN_MEMORY | ({"SLACKWATER_ALL_MUTATIONS": "1"} if scale >= 1 else {})),
        ("corruption/corruption_test", IN_MEMORY | {"SLACKWATER_CORRUPTIONS": count(10_000)}),
        ("kill/kill_test", {"SLACKWATER_KILLS": count(1_000), "SLACKWATER_KILL_MIB": "32"}),
        ("kill/ranks_kill_test", {"SLACKWATER_RANK_KILLS": count(500)}),
        ("fault/background_error_test", {}),
        ("fault/ranks_matrix_test", {}),
        ("fault/ranks_zombie_test", {}),
        ("load/load_test", {"SLACKWATER_LOAD_SECONDS": str(max(1, round(minutes * 60)))}),
    ]


def run(program: Path, environment: dict[str, str]) -> bool:
    command = [str(program), "--gtest_brief=1"]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode == 0


def kill_torchrun(kills: int) -> bool:
    test = "tests/python/test_sharded.py::test_a_run_killed_at_any_moment_goes_on_with_any_number_of_ranks"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", test],
        env=os.environ | {"SLACKWATER_TORCHRUN_KILLS": str(kills)},
        check=False,
    ).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder with the tests in it")
    parser.add_argument("--minutes", type=float, default=10, help="length of the load (default: 10)")
    parser.add_argument("--scale", type=float, default=1, help="of all counts; 0.01 tries the driver (default: 1)")
    parser.add_argument("--cuts", type=int, default=100, help="power cuts of each ext4 (default: 100)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all random choices (default: the time)")
    parser.add_argument("--only", help="run the harnesses whose name contains this")
    arguments = parser.parse_args()

    os.environ["SLACKWATER_SEED"] = str(arguments.seed)
    print(f"seed {arguments.seed}: give it as --seed to see the same again", flush=True)
    results = []
    jobs = [
        (name, lambda name=name, environment=environment: run(arguments.build / "tests" / name, environment))
        for name, environment in harnesses(arguments.scale, arguments.minutes)
    ]
    trainer = arguments.build / "tests/kill/kill_trainer"
    cuts = max(1, round(arguments.cuts * arguments.scale))
    jobs.append(("ext4 power cuts", lambda: soak_ext4.run(trainer, cuts, arguments.seed)))
    torchrun_kills = max(1, round(20 * arguments.scale))
    jobs.append(("torchrun kills", lambda: kill_torchrun(torchrun_kills)))
    for name, job in jobs:
        if arguments.only and arguments.only not in name:
            continue
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        passed = job()
        results.append((name, passed, time.monotonic() - began))

    words = {True: "passed", False: "FAILED", None: "not run here"}
    print(f"\n{'harness':<28} | {'result':<12} | seconds")
    for name, passed, seconds in results:
        print(f"{name:<28} | {words[passed]:<12} | {seconds:7.0f}")
    return 1 if any(passed is False for _, passed, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
