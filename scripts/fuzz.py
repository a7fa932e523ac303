"""Build and run the fuzz targets, as many at a time as there are processors.

    scripts/fuzz.py --seconds 12               replay the corpora, then fuzz for this long; `make test-fuzz` does this
    scripts/fuzz.py --seconds 600 --keep       the same, and keep new inputs in build/fuzz/corpus; `make fuzz` does this

An input that breaks a target is kept in build/fuzz/finds, and the command that runs it again is printed. Where no clang
with libFuzzer is installed this says so; with --optional that is no failure.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "tests" / "fuzz"
BUILD = ROOT / "build" / "fuzz"
LIMITS = ["-max_len=16384", "-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=512"]


def find_compiler() -> str | None:
    """A clang++ that can link a fuzz target; the one of the preset is tried first."""
    asked = os.environ.get("FUZZ_CXX")
    for name in [asked] if asked else [f"clang++-{version}" for version in (19, 20, 21, 18)] + ["clang++"]:
        path = shutil.which(name)
        if path is None:
            continue
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory) / "probe.cpp"
            source.write_text('extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n')
            command = [path, "-fsanitize=fuzzer,address,undefined", str(source), "-o", f"{directory}/probe"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return path
    return None


def build(compiler: str) -> list[Path]:
    subprocess.run(
        ["cmake", "--preset", "fuzz", f"-DCMAKE_CXX_COMPILER={compiler}"],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["cmake", "--build", "--preset", "fuzz"], cwd=ROOT, check=True)
    return sorted((BUILD / "tests" / "fuzz").glob("*_fuzz"))


def fuzz(target: Path, seconds: int, keep: bool) -> tuple[bool, str]:
    """One target: its corpus, then new inputs. Whether it held, and a line for the table."""
    name = target.name.removesuffix("_fuzz")
    finds = BUILD / "finds" / name
    finds.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as aside:
        new = BUILD / "corpus" / name if keep else Path(aside)
        new.mkdir(parents=True, exist_ok=True)
        known = len(list(new.iterdir()))
        command = [str(target), *LIMITS, f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=1"]
        command += [f"-artifact_prefix={finds}/", f"-dict={SOURCES / 'sealed.dict'}"]
        command += [str(new), str(SOURCES / "corpus" / name)]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        added = len(list(new.iterdir())) - known
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", result.stderr)
    memory = re.search(r"stat::peak_rss_mb:\s*(\d+)", result.stderr)
    corpus = len(list((SOURCES / "corpus" / name).iterdir()))
    row = f"  {name:10} {corpus:6} {runs[1] if runs else '?':>10} {added:8} {memory[1] if memory else '?':>8}   "
    if result.returncode == 0:
        return True, row + "held"
    written = re.search(r"Test unit written to (\S+)", result.stderr)
    tail = "\n".join(result.stderr.splitlines()[-40:])
    again = f"run it again: {target} {written[1]}" if written else "no input was written"
    advice = f"fix it, then copy the input to tests/fuzz/corpus/{name} under a telling name"
    return False, f"{row}BROKEN\n{tail}\n{again}\n{advice}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and run the fuzz targets.")
    parser.add_argument("--seconds", type=int, default=25, help="how long all targets together may take")
    parser.add_argument("--keep", action="store_true", help="keep new inputs in build/fuzz/corpus")
    parser.add_argument("--optional", action="store_true", help="no failure where no clang has libFuzzer")
    arguments = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        print("No clang with libFuzzer is installed here (Debian and Ubuntu: clang-19, libclang-rt-19-dev), so the")
        print("parsers are not fuzzed in this run; everything else is tested.")
        return 0 if arguments.optional else 1
    targets = build(compiler)
    jobs = min(len(os.sched_getaffinity(0)), len(targets))  # a target keeps one processor busy
    each = max(1, arguments.seconds * jobs // len(targets))
    print(f"{len(targets)} targets, {each} s each, {jobs} at a time, after their corpora")
    print("  target     corpus       runs      new   MB peak")
    broken = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for held, row in pool.map(lambda target: fuzz(target, each, arguments.keep), targets):
            print(row, flush=True)
            broken += not held
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
