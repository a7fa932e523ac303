"""The torch checks of the doctor: they pass here, and each of them can fail.

Two tests run the whole module, in processes that have torch loaded already. The others call single checks.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from slackwater.doctor import (
    checks,
    compiled,
    guard,
    interference,
    memory,
    processes,
    rounds,
    runner,
    thresholds,
    versions,
)
from slackwater.doctor.checks import Check
from slackwater.doctor.children import ChildError, Children, Ended
from slackwater.doctor.context import Context
from slackwater.doctor.lines import Line, Outcome, worst
from slackwater.doctor.scratch import Scratch
from slackwater.integrations.graph_fences import GraphFences
from slackwater.session import Session
from support import SECONDS, python, wait_until
from torch.optim.optimizer import register_optimizer_step_post_hook

MIB = 1 << 20
FIELDS = ["section", "check", "status", "figure", "threshold", "remedy", "rank"]
TIMED = {check.name for check in checks.TABLE if check.phase == "timed" and check.where != "cuda"}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path, quick=True)


def attempted(run: Callable[[Context], Outcome], context: Context) -> Outcome:
    return runner.attempt(Check("a check", run, "the remedy"), run, context)


def parsed(lines: list[str]) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in lines]
    assert all(list(line) == FIELDS and line["section"] == "torch" for line in found)
    return {line["check"] if line["rank"] == 0 else f"{line['check']} of rank {line['rank']}": line for line in found}


# The whole module. ``main`` runs as `python -m slackwater.doctor` in each process.

DOCTOR = """
import runpy, sys

def doctor(*options):
    sys.argv = ["doctor", "--dir", path, *options]
    runpy.run_module("slackwater.doctor", run_name="__main__")

def as_torchrun(rank, local_rank):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local_rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

def only(*names):
    from slackwater.doctor import checks
    checks.TABLE = tuple(check for check in checks.TABLE if check.name in names)
"""


def run(main: str, world: int, path: Path, **options: Any) -> dict[str, Any]:
    result = run_ranks(DOCTOR + main, world, path, **options)
    assert list(path.iterdir()) == [], "something is left in DIR"
    return result


QUICK = """
def main(rank):
    from slackwater.doctor import versions
    version = versions.version

    def noisy(context):
        os.write(1, b"noise of C code\\n")
        sys.stdout.write("noise of Python\\n")
        return version(context)

    versions.version = noisy
    doctor("--quick")
"""


def test_every_check_passes_here_and_writes_one_line(tmp_path: Path) -> None:
    result = run(QUICK, 1, tmp_path)
    assert result["codes"] == [0], result["errors"]
    assert "noise of C code" in result["errors"]
    found = parsed(result["lines"])
    assert set(found) == {check.name for check in checks.TABLE}
    for name, line in found.items():
        # A machine that is busy with other things may slow down what is timed. That is a warning, and no failure.
        expected = {"PASS", "WARN"} if name in TIMED else {"PASS", "SKIP"}
        assert line["status"] in expected, (line, result["errors"])
        assert line["rank"] == 0
        assert line["remedy"] == "" or line["status"] == "WARN"
    skipped = {name: line["figure"] for name, line in found.items() if line["status"] == "SKIP"}
    gpu_only = [check.name for check in checks.TABLE if check.where == "cuda"]
    assert skipped == {name: "no CUDA device" for name in gpu_only} | {"compiled step": "left out by --quick"}


# Both are the first rank of a node, so both make the checks of one rank alone. Those of rank 1 fail.
RANKS = """
def main(rank):
    as_torchrun(rank, 0)
    if rank == 1:
        import slackwater.session
        slackwater.session.register_step_hook = lambda session: lambda: None
    only("version", "fence hook")
    if rank == 1:
        from slackwater.doctor import checks, ranks
        checks.TABLE += (checks.Check("broken", lambda context: 1 / 0),)
    doctor("--quick")
"""


def test_ranks_of_other_nodes_report_through_rank_0(tmp_path: Path) -> None:
    result = run(RANKS, 2, tmp_path)
    assert result["codes"] == [0, 0], result["errors"]
    found = parsed(result["lines"])
    assert {name: line["status"] for name, line in found.items()} == {
        "shared directory": "PASS",
        "version": "PASS",
        "fence hook": "PASS",
        "fence hook of rank 1": "FAIL",
        "broken of rank 1": "FAIL",
    }
    assert found["broken of rank 1"]["figure"] == "ZeroDivisionError: division by zero"


TOGETHER = """
def main(rank):
    as_torchrun(rank, rank)
    only("FSDP2", "all-reduce while saving", "version")
    doctor("--quick")
"""


def test_ranks_of_torchrun_check_together(tmp_path: Path) -> None:
    result = run(TOGETHER, 2, tmp_path)
    assert result["codes"] == [0, 0], result["errors"]
    found = parsed(result["lines"])
    assert found["FSDP2"]["figure"] == "3 rounds equal, 3 with copies under way, 2 ranks, cpu"
    assert found["all-reduce while saving"]["status"] in ("PASS", "WARN")
    assert {name.partition(" of rank")[0] for name in found} == {
        "shared directory",
        "FSDP2",
        "all-reduce while saving",
        "version",
    }


DYING = """
def main(rank):
    as_torchrun(rank, rank)
    from slackwater.doctor import ranks, thresholds
    fsdp2 = ranks.fsdp2

    def dying(context):
        if rank == 1:
            os._exit(3)
        thresholds.RANKS_SECONDS = 1.0  # nobody else is left
        return fsdp2(context)

    ranks.fsdp2 = dying
    only("FSDP2", "all-reduce while saving", "version")
    doctor("--quick")
"""


def test_rank_that_dies_does_not_hang_the_others(tmp_path: Path) -> None:
    result = run(DYING, 2, tmp_path, severed=True)
    assert result["codes"] == [0, 3], result["errors"]
    found = parsed(result["lines"])
    assert found["FSDP2"]["status"] == "FAIL"
    assert found["FSDP2 of rank 1"]["figure"] == "rank 1 did not report within 1 s"
    assert found["all-reduce while saving"]["status"] == "SKIP"
    assert found["version"]["status"] == "PASS"


INTERRUPTED = """
def main(rank):
    from slackwater.doctor import versions
    versions.version = lambda context: os.kill(os.getpid(), signal.{name})
    doctor("--quick")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_nothing_is_left_when_the_doctor_is_stopped(name: str, code: int, tmp_path: Path) -> None:
    main = INTERRUPTED.replace("{name}", name)
    main = main.replace("    from", "    signal.signal(signal.SIGINT, signal.default_int_handler)\n    from", 1)
    assert run(main, 1, tmp_path)["codes"] == [code]


def test_nothing_is_left_when_the_doctor_is_killed(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from slackwater.doctor.scratch import Scratch
        scratch = Scratch(Path(os.path.relpath(sys.argv[1])))
        (scratch.path / "file").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    assert python(code, tmp_path, check=False).returncode == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()), "the directory is removed")


def test_scratch_is_gone_when_it_is_closed(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    (scratch.path / "file").write_text("")
    scratch.close()
    assert list(tmp_path.iterdir()) == []


NO_TORCH = """
import importlib.util, runpy, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
sys.argv = ["doctor", "--dir", sys.argv[1]]
runpy.run_module("slackwater.doctor", run_name="__main__")
"""


def test_without_torch_there_is_one_line(tmp_path: Path) -> None:
    [line] = python(NO_TORCH, tmp_path).stdout.splitlines()
    assert parsed([line])["version"]["status"] == "SKIP"
    assert json.loads(line)["figure"] == "torch is not installed"
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_missing_fails(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.argv[1:1] = ['--dir']; runpy.run_module('slackwater.doctor', run_name='__main__')"
    [line] = python(code, tmp_path / "missing").stdout.splitlines()
    assert json.loads(line)["status"] == "FAIL"
    assert "missing' is not a directory" in json.loads(line)["figure"]


def test_package_imports_no_torch() -> None:
    code = "import sys, slackwater.doctor.__main__; print('torch' in sys.modules)"
    assert python(code).stdout == "False\n"


# What can fail


@pytest.fixture
def no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.session.register_step_hook", lambda session: lambda: None)


@pytest.mark.parametrize("run", [versions.fence_hook, rounds.adamw_foreach, rounds.adamw_fused])
def test_missing_fence_hook_fails(run: Any, context: Context, no_hook: None) -> None:
    found = attempted(run, context)
    assert found.status == "FAIL"
    assert found.remedy == "the remedy"


def test_rounds_notice_a_fence_that_does_not_wait(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step comes before the copies end, however busy the machine is: they do not end before it."""
    stepped = threading.Event()
    settle, save = sw.Snapshot._settle, rounds.save

    def settle_late(self: sw.Snapshot) -> None:
        stepped.wait(SECONDS)
        settle(self)

    def save_first(*arguments: Any) -> sw.Snapshot:
        stepped.clear()
        return save(*arguments)

    monkeypatch.setattr(Session, "fence_quietly", lambda self: None)
    monkeypatch.setattr(sw.Snapshot, "_settle", settle_late)
    monkeypatch.setattr(rounds, "save", save_first)
    hook = register_optimizer_step_post_hook(lambda *_: stepped.set())
    try:
        found = attempted(rounds.adamw_foreach, context)
    finally:
        hook.remove()
    assert found.status == "FAIL"
    assert found.figure.startswith("TornError: tensor '")  # whichever of them was compared first


def test_rounds_compare_every_tensor(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = sw.Checkpointer.restore

    def spoil(self: Any, state: Any, **options: Any) -> Any:
        found = restore(self, state, **options)
        with torch.no_grad():
            state["model"][1].bias[-1] = -0.0
        return found

    monkeypatch.setattr(sw.Checkpointer, "restore", spoil)
    found = rounds.adamw_foreach(context)
    assert found == Outcome("FAIL", "round 1: '1.bias' and 0 more differ from what was saved", "all")


def test_rounds_notice_a_step_that_does_nothing(context: Context) -> None:
    with context.checkpointer() as ckpt:
        one, twin = (rounds.trainer("cpu") for _ in range(2))

        def step() -> None:
            ckpt._session.optimizer_steps += 1

        one.step = step
        assert "changed nothing" in rounds.run_rounds(ckpt, one, twin, 1).figure


def test_bits_are_compared(context: Context) -> None:
    zero, minus, nan = torch.zeros(1), -torch.zeros(1), torch.full((1,), float("nan"))
    assert rounds.differing({"a": zero}, {"a": minus}) == ["a"]
    assert rounds.differing({"a": nan}, {"a": nan.clone()}) == []
    assert rounds.differing({"a": zero}, {"a": zero, "b": zero}) == ["b"]


@pytest.mark.parametrize("run", [guard.counted_update, guard.uncounted_update])
def test_update_without_a_fence_is_caught(run: Any, context: Context) -> None:
    assert run(context) == Outcome("PASS", "caught", "caught")


def test_guard_that_notices_nothing_fails(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sw.Snapshot, "_changed", lambda self, capture: ([], []))
    assert guard.counted_update(context) == Outcome("FAIL", "committed, with bytes of two steps", "caught")


def test_update_that_comes_too_late_proves_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    save = guard.save

    def save_and_wait(*arguments: Any) -> sw.Snapshot:
        snapshot = save(*arguments)
        snapshot.wait()
        return snapshot

    monkeypatch.setattr(guard, "save", save_and_wait)
    monkeypatch.setattr(thresholds, "TRIES", 2)
    assert guard.counted_update(context).status == "WARN"


def ended_with(code: int, step: int) -> Any:
    """Children whose one child has saved this step and ended so."""

    def start(job: str, *, directory: str, device: str, how: str) -> None:
        with sw.Checkpointer(directory, pool="2MiB", slab="1MiB") as ckpt:
            ckpt.save(step, {"w": processes._filled(step, device)})

    child = SimpleNamespace(start=start, join=lambda seconds: Ended(None, code))
    return SimpleNamespace(take=lambda: child)


@pytest.mark.parametrize(
    ("run", "code", "step", "status"),
    [
        (processes.hard_exit, 7, 1, "PASS"),
        (processes.hard_exit, -signal.SIGSEGV, 1, "FAIL"),
        (processes.soft_exit, 7, 2, "PASS"),
        (processes.soft_exit, 7, 1, "FAIL"),
        (processes.soft_exit, 0, 2, "FAIL"),
    ],
)
def test_exit_needs_its_status_and_its_step(run: Any, code: int, step: int, status: str, tmp_path: Path) -> None:
    assert run(Context(tmp_path, children=ended_with(code, step))).status == status


def test_forked_process_that_cannot_end_well_fails(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.fork_during_a_save(context).status == "PASS"
    monkeypatch.setattr(processes, "_nothing", lambda: os._exit(5))
    assert processes.fork_during_a_save(context).figure == "the forked process ended with status 5"


def test_latency_warns_beyond_the_ratio_and_the_floor() -> None:
    def status(idle: float, busy: float, kind: str) -> str:
        return interference.latency(interference.Timings([idle] * 200, [busy] * 200), kind).status

    assert status(1e-5, 9e-4, "cuda") == "PASS"  # below the floor
    assert status(1e-3, 2.9e-3, "cuda") == "PASS"
    assert status(1e-3, 3.1e-3, "cuda") == "WARN"
    assert status(1e-3, 24e-3, "cpu") == "PASS"
    assert status(1e-3, 26e-3, "cpu") == "WARN"


def test_rate_warns_below_the_share() -> None:
    assert interference.rate(interference.Timings([1.0] * 3, [1.2] * 3), "cuda", 5.0, "GB/s").status == "PASS"
    found = interference.rate(interference.Timings([1.0] * 3, [2.0] * 3), "cuda", 5.0, "GB/s")
    assert found == Outcome("WARN", "5 -> 2.5 GB/s", "80% of idle or more")


def test_save_that_takes_long_warns(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "SAVE_MS", 0.0)
    monkeypatch.setattr(thresholds, "SAVE_TRIES", 2)
    assert interference.save_cost(context).status == "WARN"


def test_warning_on_a_busy_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Outcome("WARN", "9 ms", "1 ms", "another remedy")
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "load 99" in runner._beside_load(slow).figure
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert runner._beside_load(slow) == slow


def test_older_torch_and_rocm_warn(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    assert versions.version(context).status == "WARN"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "AMD GPUs are not supported yet" in versions.version(context).remedy
    assert runner.cuda_device(0) is None


def test_outcome_of_ranks_is_the_worst_and_names_the_rank() -> None:
    good, bad = Outcome("PASS", "good"), Outcome("FAIL", "bad")
    assert worst({0: good, 1: good}) == good
    assert worst({0: good, 1: bad}) == Outcome("FAIL", "rank 1: bad")


# The runner and its children


def planned(context: Context, gpu: str | None) -> tuple[runner.Runner, list[Line]]:
    said: list[Line] = []
    return runner.Runner(context, said.append, 0, gpu, "", alone=True), said


def test_check_that_raises_becomes_a_line_and_the_next_one_runs(context: Context, monkeypatch: Any) -> None:
    def crash(context: Context) -> Outcome:
        raise RuntimeError("the first line\nthe second")

    good = Outcome("PASS", "good")
    table = (Check("crash", crash, "what to do", "once"), Check("good", lambda context: good, where="once"))
    monkeypatch.setattr(runner, "TABLE", table)
    made, said = planned(context, None)
    made.run_here("here")
    failed = Outcome("FAIL", "RuntimeError: the first line", "", "what to do")
    assert said == [Line("crash", failed), Line("good", good)]


def test_checks_run_on_the_gpu_too(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Outcome("PASS", "")
    table = (
        Check("one", lambda context: Outcome("PASS", context.device)),
        Check("two", lambda context: where, where="cuda"),
        Check("three", lambda context: where, where="once"),
    )
    monkeypatch.setattr(runner, "TABLE", table)
    made, said = planned(context, "cuda:3")
    made.run_here("here")
    assert [line.check for line in said] == ["one", "one (CUDA)", "two", "three"]
    assert said[1].outcome.figure == "cuda:3"


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()
    gc.unfreeze()


def running(pid: int) -> bool:
    """Whether it is there, and not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def hang(note: str) -> None:
    """With a process that it has started, as a compiler does, and whose number it notes down."""
    pid = os.fork()
    if pid != 0:
        Path(note).write_text(f"{pid}\n")
    time.sleep(900)


def test_children_answer_crash_and_hang(children: Children, tmp_path: Path) -> None:
    jobs = {
        "add": lambda one, other: one + other,
        "raise": lambda: 1 / 0,
        "crash": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "hang": hang,
    }
    children.fork(4, jobs)
    taken = [children.take() for _ in jobs]
    taken[0].start("add", one=1, other=2)
    assert taken[0].join(900) == Ended(3, 0)
    taken[1].start("raise")
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        taken[1].join(900)
    taken[2].start("crash")
    assert taken[2].join(900) == Ended(None, -signal.SIGKILL)
    note = tmp_path / "note"
    taken[3].start("hang", note=str(note))
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"), "the child has started another process")
    with pytest.raises(ChildError, match="took too long"):
        taken[3].join(0.01)
    wait_until(lambda: not running(int(note.read_text())), "what the child started is ended too")
    with pytest.raises(ChildError, match="no child process is left"):
        children.take()


def joined_in_child(context: Context, children: Children, job: Callable[..., Any]) -> Outcome:
    """A check that runs in a child, as the line that it becomes."""
    children.fork(1, {"check": job})
    said: list[Line] = []
    made = runner.Runner(dataclasses.replace(context, children=children), said.append, 0, None, "", alone=True)
    made.start_children()
    made.join_children()
    [line] = said
    return line.outcome


@pytest.mark.parametrize(
    ("job", "status", "figure"),
    [
        (lambda **_: vars(Outcome("PASS", "well")), "PASS", "well"),
        (lambda **_: 1 / 0, "FAIL", "ChildError: ZeroDivisionError: division by zero"),
        (lambda **_: os._exit(4), "FAIL", "the process of this check ended with status 4"),
        (lambda **_: time.sleep(900), "SKIP", "the compiler took longer than 0 s"),
    ],
    ids=["well", "raises", "crashes", "hangs"],
)
def test_compiler_in_a_child(
    job: Any, status: str, figure: str, context: Context, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TABLE", (Check("compiled", lambda context: Outcome("PASS", ""), phase="child"),))
    if status == "SKIP":
        monkeypatch.setattr(thresholds, "COMPILE_SECONDS", 0.0)
    found = joined_in_child(context, children, job)
    assert (found.status, found.figure) == (status, figure)


# CUDA-only checks, with stubs of torch.cuda and tensors in host memory: that they run, not that a GPU is right


class Graph:
    """torch.cuda.CUDAGraph: its replay updates the parameters past every hook."""

    parameters: ClassVar[list[torch.Tensor]] = []

    def capture_begin(self) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        for parameter in self.parameters:
            parameter.data.add_(1)


@pytest.fixture
def stubbed_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    class Capture:
        def __init__(self, graph: Graph) -> None:
            self.graph = graph

        def __enter__(self) -> None:
            self.graph.capture_begin()
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

        def __exit__(self, *error: object) -> None:
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
            self.graph.capture_end()

    class Block:
        def __init__(self, stream: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, stub in {
        "CUDAGraph": Graph,
        "graph": Capture,
        "Stream": lambda device: stream,
        "stream": Block,
        "current_stream": lambda device: stream,
        "is_initialized": lambda: torch.cuda.is_current_stream_capturing(),
        "is_current_stream_capturing": lambda: False,
        "empty_cache": lambda: None,
        "memory_reserved": lambda device: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stub)


def test_hand_captured_step_is_fenced_by_its_replay(context: Context, monkeypatch: Any, stubbed_cuda: None) -> None:
    trainer = compiled.trainer

    def on_the_host(device: str, **options: Any) -> rounds.Trainer:
        made = trainer(device)
        Graph.parameters = Graph.parameters or list(made.model.parameters())  # of the first one
        return made

    monkeypatch.setattr(Graph, "parameters", [])
    monkeypatch.setattr(compiled, "trainer", on_the_host)
    assert compiled.captured_step(context).figure.startswith("3 rounds equal")
    monkeypatch.setattr(GraphFences, "_replay", lambda self, original: original)
    monkeypatch.setattr(Graph, "parameters", [])
    assert attempted(compiled.captured_step, context).status == "FAIL"


def test_full_gpu_is_filled_and_saved(context: Context, monkeypatch: Any, stubbed_cuda: None) -> None:
    left = [100 * MIB, 100 * MIB, 8 * MIB]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (left.pop(0), 100 * MIB))
    assert memory.full_gpu(context) == Outcome("PASS", "saved with 8 MiB left", "8 MiB or more")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * MIB, 8 << 30))
    assert memory.full_gpu(context).status == "SKIP"


@pytest.mark.parametrize(
    ("figure", "status"), [("12 rounds equal, expandable segments", "PASS"), ("12 rounds equal", "WARN")]
)
def test_expandable_segments_run_in_a_process_of_their_own(
    figure: str, status: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, env: dict[str, str], **options: Any) -> Any:
        assert command[-3:] == ["--only", "AdamW foreach (CUDA)", "--quick"]
        assert env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
        assert env["CUDA_VISIBLE_DEVICES"] == "7"
        assert "RANK" not in env
        line = Line("AdamW foreach (CUDA)", Outcome("PASS", figure, "all")).as_json()
        return SimpleNamespace(returncode=0, stdout=line + "\n", stderr="")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(memory.subprocess, "run", run)
    on_gpu = Context(context.directory, True, "cuda:1")
    assert memory.expandable_segments(on_gpu).status == status


def test_no_compiler_skips_the_compiled_step(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "which", lambda name: None)
    assert compiled.compiled_step(context).status == "SKIP"
