"""Scratch: the doctor's temporary directory, which is removed however the doctor ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path

_REMOVE_SECONDS = 10.0
_RETRIES = 50


class Scratch:
    """A directory below another one. A small process of its own removes it.

    That process waits on a pipe that the doctor and all its children hold open. The pipe ends with the last of them,
    even if all were killed. Make it before torch is loaded, so that the process stays small.
    """

    def __init__(self, parent: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=".slackwater-doctor-", dir=parent.resolve()))
        hear, self._held = os.pipe()
        self._ended, tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._held)
            os.close(self._ended)
            _remove_at_the_end(self.path, hear)
        os.close(hear)
        os.close(tell)

    def close(self) -> None:
        """Returns when the directory is gone. Children must have ended."""
        os.close(self._held)
        select.select([self._ended], [], [], _REMOVE_SECONDS)
        os.close(self._ended)
        os.waitpid(self._pid, os.WNOHANG)


def _remove_at_the_end(path: Path, hear: int) -> None:
    """Never returns. Ctrl-C reaches all processes of a terminal, and this one has to outlive them."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # whoever reads the doctor's output must not wait for this process
            os.dup2(nowhere, descriptor)
        os.chdir("/")
        os.read(hear, 1)
        for _ in range(_RETRIES):  # a thread of a process that is ending may still add a file
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
            time.sleep(0.05)
    finally:
        os._exit(0)
