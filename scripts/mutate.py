"""Tests with teeth: apply each mutation of tests/mutations to a copy of the sources and expect its test to fail.

    scripts/mutate.py                       every mutation; what `make mutate` does
    scripts/mutate.py --only slab ranks     those whose name contains one of the words
    scripts/mutate.py --list                what there is, without running anything
    scripts/mutate.py --check               headers, that each patch applies, that each test is there by name; seconds

One patch per file, tests/mutations/cpp/<folder>-<what>.patch or tests/mutations/python/<module>-<what>.patch:

    What: one sentence: the mistake, and what it would do to a user.
    Test: <ctest target> <gtest filter>        or        Test: tests/python/test_x.py::test_name
    ---
    diff --git a/src/... b/src/...

Every named test first has to pass without any mutation. Then each mutation is *noticed* (its test fails, crashes or
hangs), *SURVIVED* (its test passes), or an *ERROR* (the patch does not apply or does not compile, or no test has that
name): such a mutation proves nothing.

Sources are copied to build/mutate/<worker>; each worker has a build tree of its own there, which later runs use again.
"""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutations"
SCRATCH = ROOT / "build" / "mutate"

# A hang is a way to fail. The limit leaves room for a busy machine: a mutant that is only slow must not count as
# noticed.
LIMIT_SECONDS = 40.0
LIMIT_FACTOR = 10.0

VERDICTS = ("noticed", "SURVIVED", "ERROR")
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -D_GLIBCXX_ASSERTIONS", "-DSLACKWATER_TESTS=ON",
    "-DSLACKWATER_UNITY=OFF", "-DSLACKWATER_MPI=OFF", "-DSLACKWATER_SANITIZE=",
]  # fmt: skip


class HarnessError(Exception):
    """Something that is wrong with a mutation or with this machine, not with the tests."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str  # cpp/stage-slabs-out-of-turn
    path: Path
    what: str
    test: str  # the whole Test line

    @property
    def is_python(self) -> bool:
        return self.test.startswith("tests/")

    @property
    def target(self) -> str:
        """The ctest target, or the file of Python tests."""
        return self.test.split("::" if self.is_python else " ", 1)[0]

    @property
    def selection(self) -> str:
        """The gtest filter, or the test within its file."""
        return self.test.split("::" if self.is_python else " ", 1)[1].strip()


@dataclasses.dataclass(frozen=True)
class Outcome:
    mutation: Mutation
    verdict: str  # noticed, SURVIVED or ERROR
    seconds: float
    words: str = ""


# The files ----------------------------------------------------------------------------------------------------------


def read_mutation(path: Path, patches: Path) -> Mutation:
    name = str(path.relative_to(patches).with_suffix(""))
    header, rule, diff = path.read_text().partition("\n---\n")
    if not rule or not diff.startswith("diff --git "):
        raise HarnessError(f"{name}: no line '---' with a unified diff (diff --git ...) behind it")
    fields: dict[str, str] = {}
    for line in header.splitlines():
        key, colon, value = line.partition(":")
        if colon and key in ("What", "Test"):
            if key in fields:
                raise HarnessError(f"{name}: two lines '{key}:'; a mutation has one")
            fields[key] = value.strip()
        elif "What" in fields and "Test" not in fields:
            fields["What"] += " " + line.strip()  # a sentence may take several lines
        else:
            raise HarnessError(f"{name}: the header has a line that is neither 'What:' nor 'Test:': {line!r}")
    if not fields.get("What") or not fields.get("Test"):
        raise HarnessError(f"{name}: the header needs 'What:' and 'Test:'")
    test = fields["Test"]
    if test.startswith("tests/") != name.startswith("python/"):
        raise HarnessError(f"{name}: in python/ the test is one of tests/python, in cpp/ a ctest target and a filter")
    if not re.fullmatch(r"tests/python/\w+\.py::\S+(?: .*)?" if test.startswith("tests/") else r"\w+ \S+", test):
        raise HarnessError(f"{name}: 'Test: {test}' is neither '<target> <filter>' nor 'tests/python/<file>::<test>'")
    return Mutation(name, path, fields["What"], test)


def read_all(patches: Path, only: Iterable[str]) -> tuple[list[Mutation], list[str]]:
    """In the order of their names, and what is wrong with those that cannot be read."""
    words = list(only)
    found: list[Mutation] = []
    problems: list[str] = []
    for path in sorted(patches.glob("*/*.patch")):
        name = str(path.relative_to(patches).with_suffix(""))
        if words and not any(word in name for word in words):
            continue
        try:
            found.append(read_mutation(path, patches))
        except HarnessError as error:
            problems.append(str(error))
    return found, problems


def git_apply(directory: Path, patch: Path, *options: str) -> None:
    # Told to look for no repository above: within one, git leaves out files that are not below the current directory.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.resolve().parent)}
    command = ["git", "apply", "--whitespace=nowarn", *options, str(patch)]
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise HarnessError("the patch does not apply: " + result.stderr.strip().replace("\n", "; "))


def sources_of_tests() -> dict[str, str]:
    """Target -> text of its sources, as the CMakeLists.txt of the tests say."""
    texts: dict[str, str] = {}
    for lists in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        for name, words in re.findall(r"slackwater_test\((\w+)\s+SOURCES\s+([^)]*)\)", lists.read_text()):
            files = [word for word in re.split(r"\s+(?:USES|LABELS)\b", words)[0].split() if word.endswith(".cpp")]
            texts[name] = "\n".join((lists.parent / file).read_text() for file in files)
    return texts


def names_a_test(mutation: Mutation, texts: dict[str, str]) -> bool:
    """Whether the test of a mutation is there by name. Tests with parameters are looked up without them."""
    if mutation.is_python:
        file = ROOT / mutation.target
        name = mutation.selection.rsplit("::", 1)[-1].split("[")[0]
        return file.exists() and re.search(rf"\bdef {re.escape(name)}\(", file.read_text()) is not None
    for pattern in mutation.selection.split(":"):
        words = [word for word in pattern.split("/")[:2] if "." in word] or [pattern]
        suite, _, test = words[0].partition(".")
        if not re.search(rf"\(\s*{re.escape(suite)},\s*{re.escape(test)}\s*\)", texts.get(mutation.target, "")):
            return False
    return True


def check(mutations: list[Mutation]) -> list[str]:
    """What can be said without building anything."""
    problems: list[str] = []
    texts = sources_of_tests()
    for mutation in mutations:
        try:
            git_apply(ROOT, mutation.path, "--check")
        except HarnessError as error:
            problems.append(f"{mutation.name}: {error}")
        if not names_a_test(mutation, texts):
            problems.append(f"{mutation.name}: no test is called {mutation.test!r}")
    return problems


# Running --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Ended:
    code: int | None  # None: still running at the limit, and killed
    output: str
    seconds: float


def run(command: list[str], cwd: Path, environment: dict[str, str], limit: float | None, output: Path) -> Ended:
    """A process group of its own, so that whatever a test started ends with it."""
    began = time.monotonic()
    with output.open("w+b") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        file.seek(0)
        return Ended(code, file.read().decode(errors="replace"), time.monotonic() - began)


class Copy:
    """A copy of the sources that mutations are applied to, one after the other."""

    def __init__(self, directory: Path, files: list[str]) -> None:
        self.directory = directory
        self.tree = directory / "source"
        self.temporary = directory / "tmp"  # of the test that runs
        self.log = directory / "log.txt"
        self.update(files)

    def update(self, files: list[str]) -> None:
        """Leaves files that have not changed alone, with their times: what was built of them is still good."""
        wanted = set(files)
        for path in self.tree.rglob("*"):
            if path.is_file() and str(path.relative_to(self.tree)) not in wanted:
                path.unlink()
        for file in files:
            source, target = ROOT / file, self.tree / file
            if not target.exists() or not filecmp.cmp(source, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)

    def environment(self, temporary: str | None = None) -> dict[str, str]:
        """With a TMPDIR of its own, in `temporary` if a test asks for that; what the test before left behind goes."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        if temporary is not None:
            self.temporary = Path(tempfile.mkdtemp(prefix="slackwater-mutate-", dir=temporary))
        else:
            self.temporary = self.directory / "tmp"
            self.temporary.mkdir(parents=True, exist_ok=True)
        return {**os.environ, "TMPDIR": str(self.temporary)}

    def clean_up(self) -> None:
        shutil.rmtree(self.temporary, ignore_errors=True)

    def mutated(self, mutation: Mutation, judge: Callable[[], tuple[str, str]]) -> tuple[str, str]:
        """Verdict and words of `judge`, called while the mutation is applied."""
        git_apply(self.tree, mutation.path)
        try:
            return judge()
        finally:
            git_apply(self.tree, mutation.path, "--reverse")


class CppCopy(Copy):
    def __init__(self, directory: Path, files: list[str]) -> None:
        super().__init__(directory, files)
        self.build_directory = directory / "build"
        self.tests: dict[str, tuple[Path, dict[str, str]]] = {}

    def build_environment(self) -> dict[str, str]:
        # Paths relative to the copy: what one worker compiled, ccache gives to the other.
        return {**os.environ, "CCACHE_BASEDIR": str(self.directory.resolve()), "CCACHE_NOHASHDIR": "1"}

    def configure(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = ["cmake", "-G", "Ninja", "-S", "source", "-B", "build", *CMAKE]
        ended = run(command, self.directory, self.build_environment(), None, self.log)
        if ended.code != 0:
            raise HarnessError(f"cmake cannot configure {self.build_directory}:\n{ended.output}")

    def build(self, targets: list[str], jobs: int) -> None:
        command = ["cmake", "--build", "build", f"-j{jobs}", "--target", *targets]
        ended = run(command, self.directory, self.build_environment(), None, self.log)
        if ended.code != 0:
            errors = [line for line in ended.output.splitlines() if "error" in line.lower()][:3]
            raise HarnessError("does not build: " + "; ".join(errors or ended.output.splitlines()[-3:]))

    def known_tests(self) -> dict[str, tuple[Path, dict[str, str]]]:
        """Of ctest: target -> binary, and the environment that its test wants."""
        command = ["ctest", "--test-dir", str(self.build_directory), "--show-only=json-v1"]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found: dict[str, tuple[Path, dict[str, str]]] = {}
        for test in told["tests"]:
            wanted = [entry["value"] for entry in test["properties"] if entry["name"] == "ENVIRONMENT"]
            variables = dict(text.split("=", 1) for text in wanted[0]) if wanted else {}
            if test.get("command"):
                found[test["name"]] = Path(test["command"][0]), variables
        return found

    def test(self, target: str, selection: str, limit: float | None) -> Ended:
        if target not in self.tests:
            self.tests = self.known_tests()
        if target not in self.tests or not self.tests[target][0].is_file():
            raise HarnessError(f"ctest knows no test binary {target}")
        binary, wanted = self.tests[target]
        environment = {**self.environment(wanted.get("TMPDIR")), **{k: v for k, v in wanted.items() if k != "TMPDIR"}}
        ended = run([str(binary), f"--gtest_filter={selection}"], binary.parent, environment, limit, self.log)
        if re.search(r"^\[==========\] Running 0 tests", ended.output, re.MULTILINE):
            raise HarnessError(f"{target} has no test {selection}")
        return ended

    def try_out(self, mutation: Mutation, limit: float) -> tuple[str, str]:
        def judge() -> tuple[str, str]:
            self.build([mutation.target], 1)
            return verdict(self.test(mutation.target, mutation.selection, limit))

        return self.mutated(mutation, judge)


class PythonCopy(Copy):
    """The package as it is in the sources, with the compiled module of the installed one."""

    def __init__(self, directory: Path, files: list[str], python: str, environment: dict[str, str]) -> None:
        super().__init__(directory, [file for file in files if file.startswith(("python/slackwater/", "tests/python/"))
                                     or file == "pyproject.toml"])  # fmt: skip
        self.python = python
        self.extra = environment
        question = "import slackwater._core as core; print(core.__file__)"
        asked = subprocess.run([python, "-I", "-c", question], capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            raise HarnessError(f"{python} has no slackwater installed; run `make build` first:\n{asked.stderr}")
        self.core = Path(asked.stdout.strip())
        shutil.copy(self.core, self.tree / "python" / "slackwater")

    def test(self, nodes: list[str], limit: float | None, *more: str) -> Ended:
        environment = {**self.environment(), **self.extra, "PYTHONPATH": str(self.tree / "python"),
                       "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        base = self.temporary / "pytest"
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={base}", *nodes, *more]
        ended = run(command, self.tree, environment, limit, self.log)
        if ended.code in (4, 5) or re.search(r"^(?:no tests ran|1 deselected)", ended.output, re.MULTILINE):
            raise HarnessError(f"pytest finds no test {' '.join(nodes)}: " + " ".join(ended.output.splitlines()[-1:]))
        return ended

    def try_out(self, mutation: Mutation, limit: float) -> tuple[str, str]:
        return self.mutated(mutation, lambda: verdict(self.test([mutation.test], limit, "-x")))


def verdict(ended: Ended) -> tuple[str, str]:
    if ended.code is None:
        return "noticed", "hung"
    if ended.code < 0:
        return "noticed", f"ended by {signal.Signals(-ended.code).name}"
    if ended.code == 0:
        skipped = re.search(r"\[  SKIPPED \]|\b\d+ skipped", ended.output)
        return ("ERROR", "its test was skipped here") if skipped else ("SURVIVED", "")
    return "noticed", ""


def test_seconds(output: str) -> dict[str, float]:
    """Of a gtest run: how long each test took."""
    return {name: int(ms) / 1000 for name, ms in re.findall(r"^\[       OK \] (\S+?),? .*?\((\d+) ms\)", output, re.M)}


class Baseline:
    """Every named test passes without a mutation; and how long it takes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.seconds: dict[str, float] = {}  # by Test line

    def limit(self, mutation: Mutation) -> float:
        return LIMIT_SECONDS + LIMIT_FACTOR * self.seconds.get(mutation.test, 0.0)

    def run_cpp(self, copy: CppCopy, mutations: list[Mutation]) -> None:
        for target in sorted({mutation.target for mutation in mutations}):
            tests = sorted({mutation.selection for mutation in mutations if mutation.target == target})
            try:
                ended = copy.test(target, ":".join(tests), 600)
            except HarnessError as error:
                self.problems.append(str(error))
                continue
            if ended.code != 0:
                failed = sorted(set(re.findall(r"^\[  FAILED  \] (\S+?)[,\s]", ended.output, re.M)))
                self.problems.append(f"{target} fails without any mutation: {', '.join(failed) or ended.output[-500:]}")
            took = test_seconds(ended.output)
            for test in tests:
                patterns = [re.compile(re.escape(word).replace(r"\*", ".*") + "$") for word in test.split(":")]
                matched = [value for name, value in took.items() if any(pattern.match(name) for pattern in patterns)]
                if not matched and ended.code == 0:
                    self.problems.append(f"{target} has no test {test}")
                self.seconds[f"{target} {test}"] = sum(matched)

    def run_python(self, copy: PythonCopy, mutations: list[Mutation]) -> None:
        """All in one process: loading torch takes longer than most tests."""
        tests = sorted({mutation.test for mutation in mutations})
        try:
            ended = copy.test(tests, 1200, "-rf", "--durations=0", "-vv")
        except HarnessError as error:
            self.problems.append(str(error))
            return
        if ended.code != 0:
            failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.M)))
            tail = "\n".join(ended.output.splitlines()[-15:])
            self.problems.append(f"without any mutation these fail: {', '.join(failed) or tail}")
        took = re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(\S+)", ended.output, re.M)
        for test in tests:
            self.seconds[test] = sum(float(value) for value, name in took if name.split("[")[0] == test.split("[")[0])


def try_all(mutations: list[Mutation], workers: list[Callable[[Mutation], tuple[str, str]]]) -> list[Outcome]:
    """Each worker takes the next mutation when it is done with one. The outcomes are in the order of the mutations."""
    left: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    for mutation in mutations:
        left.put(mutation)
    outcomes: dict[str, Outcome] = {}
    lock = threading.Lock()

    def work(try_out: Callable[[Mutation], tuple[str, str]]) -> None:
        while True:
            try:
                mutation = left.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            try:
                answer, words = try_out(mutation)
            except HarnessError as error:
                answer, words = "ERROR", str(error)
            outcome = Outcome(mutation, answer, time.monotonic() - began, words)
            with lock:
                outcomes[mutation.name] = outcome
                print(f"{len(outcomes):4}/{len(mutations)}  {row(outcome)}", flush=True)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[mutation.name] for mutation in mutations]


def row(outcome: Outcome) -> str:
    words = f"   {outcome.words}" if outcome.words else ""
    return f"{outcome.mutation.name:52} | {outcome.verdict:8} | {outcome.seconds:6.1f}{words}"


def print_table(outcomes: list[Outcome]) -> None:
    width = max([len(outcome.mutation.name) for outcome in outcomes] + [8])
    tests = max([len(outcome.mutation.test) for outcome in outcomes] + [4])
    print(f"\n{'mutation':{width}} | {'test':{tests}} | outcome  | seconds")
    for outcome in outcomes:
        words = f"  {outcome.words}" if outcome.words else ""
        seconds = f"{outcome.seconds:7.1f}{words}"
        print(f"{outcome.mutation.name:{width}} | {outcome.mutation.test:{tests}} | {outcome.verdict:8} | {seconds}")


def source_files() -> list[str]:
    """As git sees the work tree: with what is not committed yet, without what is ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [file for file in listed.split("\0") if file and (ROOT / file).is_file()]


def run_mutations(mutations: list[Mutation], jobs: int, python: str, scratch: Path) -> list[Outcome] | None:
    """None where the tests do not pass by themselves, or nothing could be built: reasons were printed."""
    files = source_files()
    baseline = Baseline()
    cpp = [mutation for mutation in mutations if not mutation.is_python]
    of_python = [mutation for mutation in mutations if mutation.is_python]
    began = time.monotonic()
    cpp_copies: list[CppCopy] = []
    python_copies: list[PythonCopy] = []
    sim_cuda = os.environ.get("SLACKWATER_SIM_CUDA")
    environment = {"SLACKWATER_SIM_CUDA": sim_cuda} if sim_cuda else {}
    if cpp:
        targets = sorted({mutation.target for mutation in cpp})
        print(f"building {len(targets)} test binaries", flush=True)
        for number in range(1, min(jobs, len(cpp)) + 1):
            cpp_copies.append(CppCopy(scratch / str(number), files))
            cpp_copies[-1].configure()
            cpp_copies[-1].build(targets, jobs)
        print(f"built after {time.monotonic() - began:.0f} s; every named test without a mutation", flush=True)
        baseline.run_cpp(cpp_copies[0], cpp)
    if of_python:
        for number in range(1, min(jobs, len(of_python)) + 1):
            python_copies.append(PythonCopy(scratch / f"python-{number}", files, python, environment))
        baseline.run_python(python_copies[0], of_python)
    if baseline.problems:
        print("\n".join(baseline.problems))
        return None
    print(f"all pass without a mutation after {time.monotonic() - began:.0f} s", flush=True)
    outcomes: list[Outcome] = []
    for copies, some in ((cpp_copies, cpp), (python_copies, of_python)):
        workers = [lambda mutation, copy=copy: copy.try_out(mutation, baseline.limit(mutation)) for copy in copies]
        outcomes += try_all(some, workers)
        for copy in copies:
            copy.clean_up()
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Apply each mutation of tests/mutations and expect its test to fail.")
    processors = len(os.sched_getaffinity(0))
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="those whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=min(2, processors), help="workers with a build tree each")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests")
    parser.add_argument("--check", action="store_true", help="headers, patches and names only; nothing is built")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has slackwater installed")
    parser.add_argument("--patches", type=Path, default=PATCHES, help="another folder of mutations")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="where the copies are made")
    arguments = parser.parse_args()
    mutations, problems = read_all(arguments.patches.resolve(), arguments.only)
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.name}\n    {mutation.what}\n    {mutation.test}")
    problems += check(mutations)
    if problems:
        print("\n".join(problems))
        return 2
    if not mutations:
        print("no mutation has such a name")
        return 2
    if arguments.list or arguments.check:
        print(f"{len(mutations)} mutations, each with a patch that applies and a test that is there")
        return 0
    began = time.monotonic()
    try:
        outcomes = run_mutations(mutations, max(1, arguments.jobs), arguments.python, arguments.scratch.resolve())
    except HarnessError as error:
        print(error)
        return 2
    if outcomes is None:
        return 2
    print_table(outcomes)
    counts = {answer: sum(outcome.verdict == answer for outcome in outcomes) for answer in VERDICTS}
    print(f"\n{len(outcomes)} mutations in {(time.monotonic() - began) / 60:.1f} minutes: "
          + ", ".join(f"{count} {answer}" for answer, count in counts.items()))  # fmt: skip
    return 0 if counts["noticed"] == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
