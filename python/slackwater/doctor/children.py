"""Children: processes that were forked when torch was loaded and nothing else had happened.

Loading torch takes seconds, and a process that uses CUDA or OpenMP cannot fork one that uses them too. So the children
are forked early and wait. Each does one job and ends. None outlives the doctor.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .lines import sentence

Job = Callable[..., Any]

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment_alone() -> dict[str, str]:
    """The environment without what makes a process one of several ranks."""
    return {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}


class ChildError(Exception):
    """A child that raised, crashed or took too long."""


class ChildTimeout(ChildError):
    """It took too long, and was killed."""


@dataclasses.dataclass(frozen=True)
class Ended:
    result: Any  # what the job returned; None if it ended the process itself
    exit_code: int  # negative: the signal that killed it


class Child:
    """One process. Belongs to the thread that made it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._pid = pid
        self._connection = connection
        self._exit_code: int | None = None
        self._started = 0.0

    def start(self, job: str, **arguments: Any) -> None:
        self._started = time.monotonic()
        self._connection.sendall(json.dumps({"job": job, "arguments": arguments}).encode() + b"\n")

    def join(self, seconds: float) -> Ended:
        """What became of its job. Raises ChildError if the job raised, ChildTimeout ``seconds`` after its start."""
        answer = self._read(self._started + seconds)
        exit_code = self._wait()
        if not answer:
            return Ended(None, exit_code)
        found = json.loads(answer)
        if "error" in found:
            raise ChildError(found["error"])
        return Ended(found["result"], exit_code)

    def _read(self, deadline: float) -> bytes:
        """Everything it says until it ends. The connection closes with the process, and with nothing else."""
        received = b""
        try:
            while True:
                self._connection.settimeout(max(0.01, deadline - time.monotonic()))
                part = self._connection.recv(1 << 16)
                if not part:
                    return received
                received += part
        except ConnectionError:
            return received
        except TimeoutError:
            self.kill()
            raise ChildTimeout("a child process took too long and was killed") from None

    def _wait(self) -> int:
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._exit_code

    def kill(self) -> None:
        """With what it has started: a compiler works in processes of its own."""
        if self._exit_code is None:
            os.killpg(self._pid, signal.SIGKILL)
            self._wait()
        self._connection.close()


class Children:
    """Those that wait for a job. ``fork`` them before any thread is started; ``close`` ends all of them."""

    def __init__(self) -> None:
        self._all: list[Child] = []
        self._idle: list[Child] = []

    def fork(self, count: int, jobs: Mapping[str, Job]) -> None:
        """In a child this never returns."""
        gc.freeze()  # the end of a child need not look at all of torch
        for _ in range(count):
            here, there = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                here.close()
                for other in self._all:
                    other._connection.close()
                _serve(there, jobs)
            there.close()
            os.setpgid(pid, pid)  # kill() ends the whole group
            self._all.append(Child(pid, here))
        self._idle = list(self._all)

    def take(self) -> Child:
        if not self._idle:
            raise ChildError("no child process is left for this check")
        return self._idle.pop(0)

    def close(self) -> None:
        for child in self._all:
            child.kill()
        self._all, self._idle = [], []


def _serve(connection: socket.socket, jobs: Mapping[str, Job]) -> NoReturn:
    """A job may end the process itself, in any way it likes. Otherwise nothing is left to do after the answer."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the doctor ends it
    for name in _RANK_VARIABLES:
        os.environ.pop(name, None)
    order = connection.makefile("rb").readline()
    if order:
        connection.sendall(json.dumps(_answer(json.loads(order), jobs)).encode())
    os._exit(0)


def _answer(order: dict[str, Any], jobs: Mapping[str, Job]) -> dict[str, Any]:
    try:
        return {"result": jobs[order["job"]](**order["arguments"])}
    except Exception as error:
        traceback.print_exc()
        return {"error": sentence(error)}
