"""The harness of `make mutate` itself: every mutation is well formed, and the runner tells noticed from survived."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

from support import SECONDS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "python/slackwater/state/names.py"
TEST = "tests/python/test_names.py::test_dotted_key_beside_a_nested_one_is_escaped"


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "mutate.py"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * SECONDS, check=False)


def write_patch(folder: Path, name: str, before: str, after: str, test: str = TEST, source: str = SOURCE) -> None:
    text = (ROOT / source).read_text()
    assert text.count(before) == 1, f"{source} has changed: choose another line to mutate"
    lines = [part.splitlines(keepends=True) for part in (text, text.replace(before, after))]
    diff = "".join(difflib.unified_diff(*lines, f"a/{source}", f"b/{source}"))
    path = folder / f"{name}.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"What: a slip made by a test.\nTest: {test}\n---\ndiff --git a/{source} b/{source}\n{diff}")


def test_every_mutation_has_a_patch_that_applies_and_a_test_that_exists() -> None:
    checked = mutate("--check")
    assert checked.returncode == 0, checked.stdout


def test_runner_tells_a_mutation_that_is_noticed_from_one_that_survives(tmp_path: Path) -> None:
    patches = tmp_path / "patches"
    write_patch(patches, "python/names-dot-not-escaped", '"[.%\\ud800-\\udfff]"', '"[%\\ud800-\\udfff]"')
    write_patch(patches, "python/names-equivalent", "(maxsize=10_000)", "(maxsize=10_001)")
    ran = mutate("--patches", str(patches), "--scratch", str(tmp_path / "scratch"), "--jobs", "2")
    cells = [line.split(" | ") for line in ran.stdout.splitlines() if line.count(" | ") == 3]
    rows = {row[0].strip(): row[2].strip() for row in cells}
    assert rows["python/names-dot-not-escaped"] == "noticed", ran.stdout
    assert rows["python/names-equivalent"] == "SURVIVED", ran.stdout
    assert ran.returncode == 1


def test_mutations_that_prove_nothing_are_errors(tmp_path: Path) -> None:
    patches = tmp_path / "patches"
    write_patch(patches, "python/names-no-such-test", "10_000", "10_001", TEST + "_at_all")
    write_patch(patches, "cpp/pool-no-such-test", "slab_count < 2", "slab_count < 1", "stage_test Pool.NoSuch",
                "src/stage/pool.cpp")  # fmt: skip
    write_patch(patches, "python/names-old", "10_000", "10_001")
    old = patches / "python" / "names-old.patch"
    old.write_text(old.read_text().replace("-@functools", "-@another"))
    (patches / "python" / "names-no-header.patch").write_text("diff --git a/x b/x\n")
    checked = mutate("--patches", str(patches), "--check")
    assert checked.returncode == 2
    for words in ("names-no-such-test: no test is called", "pool-no-such-test: no test is called",
                  "names-old: the patch does not apply", "names-no-header: no line '---'"):  # fmt: skip
        assert words in checked.stdout
