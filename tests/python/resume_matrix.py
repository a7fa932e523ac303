"""The resume matrix: every kind of run is killed with SIGKILL at a random moment, and must end with the same bits.

    python tests/python/resume_matrix.py [--kills N] [--seed S] [--only WORD ...] [--all]

Prints one row for each case: loop, optimizer, loader, parallelism, when it saves, the step it resumed from after each
kill, and whether it ended as a run that was left alone. Exit code 1 if one did not. With --serve it takes its orders
from stdin, one JSON object a line (tests/python/test_loaders.py).

One process loads the libraries and forks the runs, which spares each the loading. The processes of a run are a process
group, so that one signal ends all of them, the workers of its loader included.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from resume_cases import BATCH, SAMPLES, Case, train

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many small files: see scripts/soak.py
STEPS = 2 * SAMPLES // BATCH + 2  # two epochs and a bit
HEADER = (
    f"{'loop':<10} | {'optimizer':<13} | {'loader':<10} | {'ranks':<6} | {'save':<5} | {'resumed from':<16} | "
    "seconds | same bits"
)
LIBRARIES = {"stateful": "torchdata", "accelerate": "accelerate", "schedule-free": "schedulefree"}

SHORT = [
    Case("plain", "adamw", "none"),
    Case("plain", "lbfgs", "none"),
    Case("plain", "muon", "plain"),
    Case("plain", "sgd", "plain", save="epoch"),
    Case("plain", "schedule-free", "stateful-0"),
    Case("plain", "lbfgs", "stateful-0", save="epoch"),
    Case("plain", "sgd", "stateful-2"),
    Case("accelerate", "adamw", "stateful-0"),
    Case("accelerate", "schedule-free", "stateful-2"),
    Case("plain", "adamw", "plain", "ddp"),
    Case("plain", "sgd", "stateful-0", "ddp"),
    Case("accelerate", "adamw", "stateful-0", "ddp"),
    Case("plain", "adamw", "stateful-0", "fsdp2"),
]


def every_case() -> list[Case]:
    """The whole product, without what does not exist: LBFGS and Muon take whole parameters, and LBFGS one loss."""
    found = []
    for parallel in ("single", "ddp", "fsdp2"):
        optimizers = ["adamw", "sgd", "schedule-free"]
        optimizers += ["muon"] * (parallel != "fsdp2") + ["lbfgs"] * (parallel == "single")
        for optimizer in optimizers:
            for loader in ("none", "plain", "stateful-0", "stateful-2"):
                saves = ("step",) if loader == "none" else ("step", "epoch")
                found += [Case("plain", optimizer, loader, parallel, save) for save in saves]
                if loader.startswith("stateful") and parallel != "fsdp2" and optimizer != "lbfgs":
                    found += [Case("accelerate", optimizer, loader, parallel, save) for save in saves]
    return found


def libraries(case: Case) -> list[str]:
    """What a case needs besides torch; `make libraries` installs it."""
    return [library for word, library in LIBRARIES.items() if any(word in part for part in case)]


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


class Outcome:
    """What one run has said. ``end``: of each rank its digest; None if it was killed first."""

    def __init__(self) -> None:
        self.start = 0
        self.committed = 0
        self.ends: dict[int, str] = {}
        self.errors: list[str] = []

    def take(self, line: str) -> None:
        rank, word, *rest = line.split(" ", 2)
        text = rest[0] if rest else ""
        if word == "from":
            self.start = int(text)
        elif word == "step" and rank == "0":
            self.committed = max(self.committed, int(text.split()[1]))
        elif word == "end":
            self.ends[int(rank)] = text
        elif word == "error":
            self.errors.append(text)


def run_once(case: Case, path: Path, steps: int, *, kill_at: int | None = None, moment: Any = None) -> Outcome:
    """Forks a run and hears it out. It kills itself once step ``kill_at`` is committed; ``moment`` is a random.Random
    that chooses when it is killed from here, at any moment after the first commit."""
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _lead(case, path, steps, tell, kill_at)
    os.close(tell)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    outcome = Outcome()
    further = None if moment is None else moment.randint(0, max(1, steps // 3))  # lines after the first commit
    try:
        with os.fdopen(hear) as lines:
            for line in lines:
                outcome.take(line.rstrip("\n"))
                if further is not None and outcome.committed:
                    further -= 1
                    if further < 0:
                        time.sleep(moment.uniform(0, 0.01))  # the moment is what is random here
                        break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return outcome


def _lead(case: Case, path: Path, steps: int, tell: int, kill_at: int | None) -> NoReturn:
    """The first process of a run: the trainer itself, or the parent of its ranks, which hosts their store."""
    code = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        if case.ranks == 1:
            _train(case, path, steps, 0, 0, tell, kill_at)
        else:
            _lead_ranks(case, path, steps, tell, kill_at)
        code = 0
    finally:
        os._exit(code)


def _lead_ranks(case: Case, path: Path, steps: int, tell: int, kill_at: int | None) -> None:
    wait_for_port, announce = os.pipe()
    children = []
    for rank in range(case.ranks):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            _train(case, path, steps, rank, int(os.read(wait_for_port, 8)), tell, kill_at)
            os._exit(0)
        children.append(pid)
    os.close(tell)
    # The store starts threads, so it is made after the last fork.
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(announce, f"{server.port:08d}".encode() * case.ranks)
    for pid in children:
        os.waitpid(pid, 0)


def _train(case: Case, path: Path, steps: int, rank: int, port: int, tell: int, kill_at: int | None) -> None:
    def say(line: str) -> None:
        os.write(tell, f"{rank} {line}\n".encode())

    try:
        train(case, str(path), steps, rank, port, say, kill_at)
    except BaseException:
        say("error " + traceback.format_exc().replace("\n", " // "))
        os._exit(1)


class Result:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.resumed: list[int] = []
        self.seconds = 0.0
        self.trouble = ""


def try_case(case: Case, folder: Path, steps: int, kills: int, chance: random.Random) -> Result:
    """One run that is left alone, and one that is killed again and again, each time in what is left of it."""
    result = Result(case)
    began = time.monotonic()
    expected = run_once(case, folder / "alone", steps)
    if expected.errors or len(expected.ends) != case.ranks:
        result.trouble = "left alone it failed: " + " ".join(expected.errors)
        return result
    for _ in range(kills):
        outcome = run_once(case, folder / "killed", steps, moment=chance)
        result.trouble = " ".join(outcome.errors)
        result.resumed.append(outcome.start)
        if result.trouble or outcome.ends:
            break
    if not result.trouble:
        last = run_once(case, folder / "killed", steps)
        result.resumed.append(last.start)
        if last.errors:
            result.trouble = " ".join(last.errors)
        elif last.ends != expected.ends:
            result.trouble = f"it ended with {last.ends}, not with {expected.ends}"
        elif not any(result.resumed):
            result.trouble = "it was never resumed"
    result.resumed = result.resumed[1:]
    result.seconds = time.monotonic() - began
    return result


def row_of(case: Case, kills: int, steps: int, seed: int) -> tuple[str, str]:
    """A row of the table, and what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="resume-matrix-", dir=IN_MEMORY))
    try:
        result = try_case(case, folder, steps, kills, random.Random(f"{seed} {case}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    resumed = ", ".join(map(str, result.resumed))
    verdict = f"NO: {result.trouble}" if result.trouble else "yes"
    return f"{case} | {resumed:<16} | {result.seconds:7.1f} | {verdict}", result.trouble


def run_matrix(cases: list[Case], kills: int, steps: int, seed: int) -> bool:
    print(f"seed {seed}: give it as --seed to see the same again\n{HEADER}", flush=True)
    good = True
    for case in cases:
        if missing := [library for library in libraries(case) if not is_installed(library)]:
            print(f"{case} | {'':<16} | {'':>7} | NO: `make libraries` installs {', '.join(missing)}", flush=True)
            good = False
            continue
        row, trouble = row_of(case, kills, steps, seed)
        print(row, flush=True)
        good = good and not trouble
    return good


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "matrix" in order:
            row, trouble = row_of(Case(**order["matrix"]), 1, STEPS, order["seed"])
            answer: dict[str, Any] = {"row": row, "trouble": trouble}
        else:
            path = Path(order["path"])
            answer = vars(run_once(Case(**order["case"]), path, order["steps"], kill_at=order.get("kill_at")))
        print(json.dumps(answer), flush=True)


def load_libraries() -> None:
    importlib.import_module("torch._dynamo")  # which the first optimizer of a process loads
    for library in LIBRARIES.values():
        if is_installed(library):
            __import__("torchdata.stateful_dataloader" if library == "torchdata" else library)
    gc.freeze()  # no run that is forked looks through torch for garbage, and copies its pages for that


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1, help="of each case (default: 1)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run (default: two epochs and a bit)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments (default: the time)")
    parser.add_argument("--only", nargs="+", default=[], help="cases with all of these words")
    parser.add_argument("--all", action="store_true", help="the whole product, not the short list")
    parser.add_argument("--serve", action="store_true", help="take orders from stdin")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load_libraries()
    if arguments.serve:
        serve()
        return 0
    cases = every_case() if arguments.all else SHORT
    cases = [case for case in cases if all(any(word in part for part in case) for word in arguments.only)]
    return 0 if run_matrix(cases, arguments.kills, arguments.steps, arguments.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
