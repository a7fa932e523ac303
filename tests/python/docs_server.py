"""Runs the Python scripts of the docs. It has the libraries loaded and forks each run, which spares each the loading.

Orders come on stdin, one JSON object a line: a script, its arguments, its directory, on how many ranks of torchrun it
runs, and after which step it is killed. The answer is the exit code of each rank, and all that they wrote.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 900  # for one script: a safety net


class Server:
    """The other side: starts one and gives it orders."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )

    def run(
        self, script: str, *arguments: str, directory: Path, ranks: int | None = None, kill_at: int | None = None
    ) -> tuple[list[int], str]:
        assert self._process.stdin and self._process.stdout
        order = {"script": script, "arguments": arguments, "directory": str(directory)}
        order |= {"ranks": ranks, "kill_at": kill_at}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["codes"], answer["output"]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=SECONDS)


def run_script(order: dict[str, Any], environment: dict[str, str], output: int) -> NoReturn:
    """In a process of its own, which ends with its parent."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        signal.alarm(SECONDS)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.environ |= environment
        os.chdir(order["directory"])
        sys.argv = [order["script"], *order["arguments"]]
        sys.path[0] = str(Path(order["script"]).resolve().parent)
        torch.manual_seed(7)  # scripts that do not seed themselves begin alike
        random.seed(7)
        skip_sleeps()
        if order["kill_at"] is not None:
            kill_once_committed(order["kill_at"])
        runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        run_exit_handlers()
        sys.stdout.flush()
        os._exit(code)


def skip_sleeps() -> None:
    """Where the script itself sleeps, a reader has something to watch. Libraries sleep as they do."""
    sleep = time.sleep

    def skip(seconds: float) -> None:
        if sys._getframe(1).f_globals.get("__name__") != "__main__":
            sleep(seconds)

    time.sleep = skip


def kill_once_committed(step: int) -> None:
    """This process ends by SIGKILL inside the save() of a step, once that is committed."""
    save = slackwater.Checkpointer.save

    def save_and_die(self: Any, number: int, *arguments: Any, **options: Any) -> Any:
        snapshot = save(self, number, *arguments, **options)
        if number == step:
            snapshot.wait("committed")
            os.kill(os.getpid(), signal.SIGKILL)
        return snapshot

    slackwater.Checkpointer.save = save_and_die  # type: ignore[method-assign]


def run_exit_handlers() -> None:
    """What the end of the program does: a Checkpointer that nobody closed waits there for what is in flight."""
    import atexit

    atexit._run_exitfuncs()


def run(order: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        children = []
        hear, tell = os.pipe()
        world = order["ranks"] or 1
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                environment = torchrun_environment(rank, world, int(os.read(hear, 8))) if order["ranks"] else {}
                run_script(order, environment, output.fileno())
            children.append(pid)
        server = None
        if order["ranks"]:  # torchrun's agent hosts the store; here once all are forked, because it has threads
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(tell, f"{server.port:08d}".encode() * world)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        del server
        os.close(hear)
        os.close(tell)
        output.seek(0)
        return {"codes": codes, "output": output.read().decode(errors="replace")}


def torchrun_environment(rank: int, world: int, port: int) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "docs",
    }


if __name__ == "__main__":
    import accelerate  # noqa: F401
    import lightning  # noqa: F401
    import peft  # noqa: F401
    import slackwater
    import torch
    import torch._dynamo  # which the first optimizer of a process loads
    import torch.distributed as dist
    import torch.distributed.fsdp  # noqa: F401
    import torchdata.stateful_dataloader  # noqa: F401
    import transformers.trainer  # noqa: F401

    torch.set_num_threads(1)
    slackwater.ranks.transport._STORE_SECONDS = float(SECONDS)  # no call of the store fails because the machine is busy
    gc.freeze()  # nobody forked from here looks through torch for garbage, and copies its pages for that
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
