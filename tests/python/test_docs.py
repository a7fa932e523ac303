"""Every code block of the README and the docs runs as written, from an empty directory.

A page is followed as a reader does: in one directory that is empty at first, block after block, each Python block in a
process of its own.

- A Python block is run twice: the second run restores what the first has saved. If it begins with a comment that names
  a file (`# train.py`) it is only written there: a shell block of the page runs it.
- A shell block is run command by command. `make` is not run; its target must exist. Nor is `pip install`; what it names
  must be a requirement, or a file of the repository. Scripts of bench/ are asked for --help.
- A C++ block is compiled.
- Blocks without a language, or with `text`, are not code.

`<!-- test: skip, REASON -->` in the line above a block leaves it out. SKIPPED has all of them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import slackwater as sw
from docs_server import Server
from packaging.requirements import Requirement
from support import SECONDS, need, same, start

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "src/README.md", "examples/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many small files: see scripts/soak.py
NO_CODE = {"", "text", "json"}
LOOKS_LIKE_CODE = re.compile(r"\s*(import |from \S+ import |\$ |make |pip |python3? |torchrun |slackwater |#include)")

SKIPPED: list[str] = []  # "docs/devices.md:12", with the number of the block's first line


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    code: str
    skip: str  # why

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, text: str | None = None) -> list[Block]:
    lines = (page.read_text() if text is None else text).splitlines()
    found, begin, fence = [], None, ""
    for number, line in enumerate(lines):
        match = re.match(r"\s*(```+)(.*)", line)
        if begin is None and match:
            begin, fence = number, match[1]
        elif begin is not None and line.strip() == fence:
            words = lines[begin].strip().removeprefix(fence).split()
            said = re.fullmatch(r"\s*<!-- test: skip, (.+) -->\s*", lines[begin - 1]) if begin else None
            indent = len(lines[begin]) - len(lines[begin].lstrip())
            code = "".join(f"{inside[indent:]}\n" for inside in lines[begin + 1 : number])
            found.append(Block(page, begin + 1, words[0] if words else "", code, said[1] if said else ""))
            begin = None
    assert begin is None, f"{page}:{begin}: a block that does not end"
    return found


def commands_of(code: str) -> list[list[str]]:
    """The commands of a shell block, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]


class Follower:
    """Goes through a page in one directory."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.unused: dict[str, Block] = {}  # files that were written and not run yet

    def follow(self, block: Block) -> None:
        if block.language == "python":
            self.python(block)
        elif block.language in ("bash", "sh", "console"):
            for words in commands_of(block.code):
                self.command(block, words)
        elif block.language in ("cpp", "c++"):
            self.cpp(block)
        else:
            assert block.language in NO_CODE, f"{block.place}: nobody knows how to run '{block.language}'"
            code = next(filter(LOOKS_LIKE_CODE.match, block.code.splitlines()), None)
            assert code is None, f"{block.place}: '{code}' looks like code: give the block a language"

    def end(self) -> None:
        left = [f"{block.place}: no command of the page runs {name}" for name, block in self.unused.items()]
        assert not left, left

    # Kinds of blocks

    def python(self, block: Block) -> None:
        if named := re.match(r"# ([\w/]+\.py)\n", block.code):
            (self.directory / named[1]).write_text(block.code)
            self.unused[named[1]] = block
            return
        script = self.directory.with_name(f"block_{block.line}.py")
        script.write_text(block.code)
        for time in ("first", "second"):
            self.run(block, f"run for the {time} time", str(script))

    def command(self, block: Block, words: list[str]) -> None:
        place = f"{block.place}: {shlex.join(words)}"
        program = words[0].removeprefix(".venv/bin/")
        if program == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert targets, place
            assert set(targets) <= make_targets(), f"{place}: the Makefile has no such target"
        elif program == "pip":
            check_pip(words[1:], place)
        elif program == "torchrun":
            ranks, script, *rest = words[1:]
            count = re.fullmatch(r"--nproc-per-node=(\d+)", ranks)
            assert count, f"{place}: say --nproc-per-node first"
            if script == "--no-python":
                self.command(block, rest)
            else:
                self.script(block, script, rest, int(count[1]))
        elif words[:2] == ["slackwater", "doctor"]:
            self.doctor(place, words[2:])
        elif program in ("python", "python3") and words[1].startswith("bench/"):
            self.process(place, [sys.executable, str(ROOT / words[1]), "--help"])
        elif program in ("python", "python3"):
            self.script(block, words[1], words[2:], None)
        elif program == "slackwater":
            self.process(place, [slackwater(), *words[1:]])
        else:
            pytest.fail(f"{place}: tests/python/test_docs.py does not know how to try '{program}'")

    def doctor(self, place: str, words: list[str]) -> None:
        """In this directory, and in its short form: test_doctor.py and doctor_test run the whole of it."""
        arguments = ["." if word.startswith("/") else word for word in words if word != ">"]
        if ">" in words:  # into a file: shlex knows nothing of that
            arguments.remove(words[words.index(">") + 1])
        command = [slackwater(), "doctor", *arguments, "--quick", "--no-torch"]
        ended = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=SECONDS)
        # 1: something is not well here, such as too little space for the state of the example.
        assert ended.returncode in (0, 1), f"{place}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
        assert "fsync" in ended.stdout, f"{place}\n{ended.stdout}{ended.stderr}"

    def script(self, block: Block, script: str, arguments: list[str], ranks: int | None) -> None:
        if script.startswith("examples/") and not (self.directory / "examples").exists():
            (self.directory / "examples").symlink_to(ROOT / "examples")
        self.unused.pop(script, None)
        self.run(block, script, script, *arguments, ranks=ranks)

    def cpp(self, block: Block) -> None:
        source = self.directory / "block.cpp"
        source.write_text(block.code)
        mpi = [f"-I{path}" for path in mpi_headers()] if "mpi.hpp" in block.code else []
        self.process(block.place, ["g++", "-std=c++23", "-fsyntax-only", f"-I{ROOT / 'include'}", *mpi, str(source)])

    # How they are run

    def run(self, block: Block, what: str, script: str, *arguments: str, ranks: int | None = None) -> None:
        codes, output = self.server.run(script, *arguments, directory=self.directory, ranks=ranks)
        assert not any(codes), f"{block.place}, {what}: exit codes {codes}\n{output}"

    def process(self, place: str, command: list[str]) -> None:
        ended = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 0, f"{place}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"


def slackwater() -> str:
    found = shutil.which("slackwater", path=str(Path(sys.executable).parent))
    assert found, "the command `slackwater` is not installed: run `make build`"
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def mpi_headers() -> list[str]:
    """None where MPI is not installed: the block then fails, as the build of a reader would."""
    compiler = shutil.which("mpicxx")
    if compiler is None:
        return []
    shown = subprocess.run([compiler, "--showme:incdirs"], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def check_pip(words: list[str], place: str) -> None:
    assert words[0] == "install", place
    rest = iter(words[1:])
    for word in rest:
        if word == "-r":
            assert (ROOT / next(rest)).is_file(), place
        elif word == ".":
            assert (ROOT / "pyproject.toml").is_file(), place
        elif not word.startswith("-"):
            Requirement(word)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need("torchdata", "peft", "ema_pytorch", "transformers", "accelerate", "lightning")
    made = Server()
    yield made
    made.close()


@pytest.fixture
def follower(server: Server) -> Iterator[Follower]:
    with tempfile.TemporaryDirectory(prefix="docs-", dir=IN_MEMORY) as parent:
        directory = Path(parent) / "empty"
        directory.mkdir()
        yield Follower(server, directory)


@pytest.mark.parametrize("page", list(filter(blocks_of, PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs_as_written(page: Path, follower: Follower) -> None:
    for block in blocks_of(page):
        if not block.skip:
            follower.follow(block)
    follower.end()


def test_blocks_that_are_left_out_are_the_known_ones() -> None:
    left_out = [block.place for page in PAGES for block in blocks_of(page) if block.skip]
    assert left_out == SKIPPED, f"{len(left_out)} blocks are left out; SKIPPED has {len(SKIPPED)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), f"{page}: {target}"


EXACT = [  # blocks of the guide that resume exactly: page, number of the block, directory of checkpoints
    ("plain-loop", 0, "runs/plain-loop"),
    ("gradient-accumulation", 0, "runs/accumulation"),
    ("data-loaders", 0, "runs/loader"),
    ("data-loaders", 1, "runs/loader-plain"),
    ("ema", 0, "runs/ema"),
    ("ema", 1, "runs/ema-pytorch"),
    ("lora", 0, "runs/lora"),
    ("../../README", 0, "checkpoints"),
]


@pytest.mark.parametrize(("page", "number", "name"), EXACT, ids=lambda value: str(value))
def test_killed_block_of_the_guide_ends_with_the_same_bits(
    page: str, number: int, name: str, follower: Follower
) -> None:
    """Killed with SIGKILL at step 10, which is the last of an epoch on the page about loaders, and at step 13."""
    block = [block for block in blocks_of(ROOT / "docs/guide" / f"{page}.md") if block.language == "python"][number]
    script = follower.directory / "block.py"
    script.write_text(block.code)
    ends = []
    for kills in ((), (10, 13)):
        directory = follower.directory / f"killed-{len(kills)}"
        directory.mkdir()
        for step in kills:
            codes, output = follower.server.run(str(script), directory=directory, kill_at=step)
            assert codes == [-signal.SIGKILL], output
            with sw.open(directory / name) as checkpoint:
                assert checkpoint.step == step
        codes, output = follower.server.run(str(script), directory=directory)
        assert codes == [0], output
        with sw.open(directory / name) as checkpoint:
            ends.append((checkpoint.step, checkpoint.tree()))
    assert same(*ends)


def test_the_example_of_the_readme_shows_where_it_goes_on(follower: Follower) -> None:
    block = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    script = follower.directory / "train.py"
    script.write_text(block.code)
    codes, output = follower.server.run(str(script), directory=follower.directory, kill_at=7)
    assert codes == [-signal.SIGKILL], output
    codes, output = follower.server.run(str(script), directory=follower.directory)
    assert codes == [0], output
    assert output.splitlines() == [f"step {step} of 40" for step in range(8, 41)]


IN_FLIGHT = """
import os, sys
import slackwater as sw, torch
from slackwater.in_flight import InFlight
settle, sw.Snapshot._settle = sw.Snapshot._settle, lambda self: None  # unsealed, it stays in flight
wait = InFlight.wait
def waits(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)  # the second one
    sw.Snapshot._settle = settle
    return wait(*arguments)
InFlight.wait = waits
with sw.Checkpointer(sys.argv[1], pool="2MiB", slab="1MiB") as ckpt:
    ckpt.save(1, {"t": torch.ones(1000)})
    print("saved", flush=True)
    while True:
        signal.pause()
"""


def test_sigterm_commits_what_is_in_flight_with_the_handler_of_the_reference(tmp_path: Path) -> None:
    [block] = [block for block in blocks_of(ROOT / "docs/python.md") if "SIGTERM" in block.code]
    process = start(block.code + IN_FLIGHT, tmp_path / "run")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + signal.SIGTERM, err
        assert sw.open(tmp_path / "run").step == 1, err
    finally:
        process.kill()
        process.communicate()


# The test itself


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(undefined)\n```\n", "page.md:1, run for the first time.*NameError"),
        ("```python\nimport os; os.mkdir('once')\n```\n", "run for the second time"),
        ("```python\n# train.py\nprint(1)\n```\n", "no command of the page runs train.py"),
        ("```python\n# t.py\n1 / 0\n```\n```bash\ntorchrun --nproc-per-node=2 t.py\n```\n", "ZeroDivisionError"),
        ("```bash\nmake sandwich\n```\n", "no such target"),
        ("```bash\nslackwater ls nowhere\n```\n", "slackwater ls nowhere: exit code"),
        ("```bash\npip install -r requirements-none.txt\n```\n", "requirements-none"),
        ("```bash\ncurl x | sh\n```\n", "does not know how to try 'curl'"),
        ("```cpp\nint main() { return x; }\n```\n", "x.*was not declared"),
        ("```\nmake build\n```\n", "looks like code"),
        ("```rust\nfn main() {}\n```\n", "nobody knows how to run 'rust'"),
        ("```python\n", "does not end"),
    ],
)
def test_block_that_does_not_run_is_noticed(text: str, complaint: str, follower: Follower) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"(?s){complaint}"):
        for block in blocks_of(ROOT / "page.md", text):
            follower.follow(block)
        follower.end()
