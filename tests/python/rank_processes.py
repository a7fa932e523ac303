"""Runs a Python program as several ranks of torch.distributed, on loopback, all of them bounded in time.

One process of a test run loads torch (rank_server.py). It forks one process per program, and that one forks the ranks,
which spares each the loading. None of them outlives its parent. The parent of the ranks hosts the job's store, but only
once all are forked: a lock that a thread of the store held would stay locked in them.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_PRELUDE = """
import ctypes, json, os, signal, sys
import torch, torch.distributed as dist
import slackwater as sw
sw.ranks._STORE_SECONDS = 300.0  # no call of the store fails because the machine is busy
torch.set_num_threads(1)
world, path = int(sys.argv[1]), sys.argv[2]
def print(text, flush=True):
    os.write(1, f"{text}\\n".encode())  # at once, so that lines of several ranks never mix

SMALL = {"pool": "2MiB", "slab": "1MiB"}

def client():
    return dist.TCPStore("127.0.0.1", port, is_master=False)

def join(rank):
    store = client()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return store

def ours(store):
    return sorted(key for key in store.list_keys() if "slackwater" in key)
"""

_EPILOGUE = """
children = {}
hear, tell = os.pipe()
for rank in range(world):
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        port = int(os.read(hear, 8))
        main(rank)
        if dist.is_initialized() and not SEVERED:
            dist.barrier()
        sys.exit(0)
    children[pid] = rank
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.write(tell, f"{server.port:08d}".encode() * world)
codes = {}
while len(codes) < world:
    pid, status = os.wait()
    codes[children[pid]] = os.waitstatus_to_exitcode(status)
print(json.dumps({"codes": [codes[rank] for rank in range(world)], "left": ours(server)}), flush=True)
os._exit(0)
"""


class Server:
    """The other side of rank_server.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, program: str, *arguments: str, seconds: float, **environment: str) -> tuple[str, str]:
        """What it wrote to stdout and to stderr."""
        assert self._process.stdin and self._process.stdout
        order = {"program": program, "arguments": arguments, "seconds": seconds}
        order |= {"environment": {**os.environ, **environment}}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["out"], answer["err"]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def server() -> Server:
    """Of this test run. conftest.py closes it."""
    return Server()


def run_ranks(program: str, world: int, path: Any, *, severed: bool = False, seconds: float = 900) -> dict[str, Any]:
    """``program`` defines main(rank). Its output ("rank: ...") and errors are in the answer, with each exit code and
    the keys that Slackwater has left in the store. ``severed``: a rank dies on the way, so they do not end together.
    """
    script = "\n".join([_PRELUDE, f"SEVERED = {severed}", textwrap.dedent(program), _EPILOGUE])
    out, err = server().run(
        script, str(world), str(path), seconds=seconds, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"
    )
    lines = out.splitlines()
    assert lines, err
    try:
        summary: dict[str, Any] = json.loads(lines[-1])
    except json.JSONDecodeError:
        raise AssertionError(out + err) from None
    return {**summary, "lines": sorted(lines[:-1]), "errors": err}
