"""Runs a Python program as several ranks of torch.distributed, on loopback, all of them bounded in time.

One process loads torch; the ranks are forked from it, which spares each the loading, and none of them outlives it. It
hosts the job's store, but only once all are forked: a lock that a thread of the store held would stay locked in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

_PRELUDE = """
import ctypes, json, os, signal, sys
import torch, torch.distributed as dist
import slackwater as sw
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


def run_ranks(program: str, world: int, path: Any, *, severed: bool = False, timeout: float = 300) -> dict[str, Any]:
    """``program`` defines main(rank). Its output ("rank: ...") and errors are in the answer, with each exit code and
    the keys that Slackwater has left in the store. ``severed``: a rank dies on the way, so they do not end together.
    """
    script = "\n".join([_PRELUDE, f"SEVERED = {severed}", textwrap.dedent(program), _EPILOGUE])
    result = subprocess.run(
        [sys.executable, "-c", script, str(world), str(path)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    lines = result.stdout.splitlines()
    assert lines, result.stderr
    try:
        summary: dict[str, Any] = json.loads(lines[-1])
    except json.JSONDecodeError:
        raise AssertionError(result.stdout + result.stderr) from None
    return {**summary, "lines": sorted(lines[:-1]), "errors": result.stderr}
