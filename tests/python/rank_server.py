"""The process of rank_processes.py that has the libraries loaded, and forks each run, which spares each the loading.

Orders come on stdin, one JSON object a line: a program, its arguments, its environment, and after how many seconds it
is killed. The answer is all that it wrote.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import tempfile
import types
from typing import Any


def fork(order: dict[str, Any], out: int, err: int) -> bool:
    """True in the new process, which ends with this one, and is as a Python that was started with this program."""
    pid = os.fork()
    if pid != 0:
        os.waitpid(pid, 0)
        return False
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(int(order["seconds"]))
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c", *order["arguments"]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return True


def written(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


if __name__ == "__main__":
    import slackwater.integrations.torch_ranks
    import torch
    import torch._dynamo  # which the first optimizer of a process loads, and FSDP
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.nn.parallel  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # nobody forked from here looks through torch for garbage: that is a second of each one's end
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            if fork(order, out.fileno(), err.fileno()):
                # Nothing catches what the program raises, not even SystemExit. So it ends as any program does, and its
                # exit handlers run.
                exec(compile(order["program"], "<program>", "exec"), vars(sys.modules["__main__"]))
                sys.exit()
            print(json.dumps({"out": written(out), "err": written(err)}), flush=True)
