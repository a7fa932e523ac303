"""Spool: where the files of this rank are written before they are moved into their tags.

All files of a rank go through one engine, so there is one pool and one set of threads, and ``save`` may be called again
while earlier files are still on their way. An engine writes into one directory, and tags are many. So each process has
a directory of its own below ``<save_dir>/.slackwater-spool``. A finished version is moved from there into its tag with
one rename. Nothing in a spool has ever been reported as saved: what a killed process leaves there is removed.

Thread rule: the trainer's thread, except for ``remove``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
from typing import Any

from ... import lifecycle
from ...checkpointer import Checkpointer
from ...metadata import encode_metadata
from ...snapshot import Snapshot
from ...state.capture import Capturer

logger = logging.getLogger("slackwater")

_FOLDER = ".slackwater-spool"
_KEEP_ALL = 1 << 40  # retention is not the engine's business here


class Spool:
    def __init__(self, save_dir: str, rank: int, options: dict[str, Any]) -> None:
        self.save_dir = save_dir
        folder = os.path.join(save_dir, _FOLDER)
        os.makedirs(folder, exist_ok=True)
        mine = f"rank-{rank:05d}."
        _remove_debris(folder, mine)
        self.path = os.path.join(folder, f"{mine}{os.getpid()}.{secrets.token_hex(4)}")
        # One rank of its own: the ranks agree on tags (board.py), not on files.
        self._checkpointer = Checkpointer(
            self.path, keep=_KEEP_ALL, rank=0, world=1, coordinator="directory", run_name="deepspeed", **options
        )
        self.session = self._checkpointer._session
        self._allow_pickle = bool(options.get("allow_pickle"))
        self._capturers: dict[str, Capturer] = {}  # by file: each keeps what does not change from tag to tag
        self._step = 0

    @property
    def control(self) -> str:
        return os.path.join(self.path, ".slackwater")

    def version_path(self, step: int) -> str:
        return os.path.join(self.path, f"step-{step:010d}.a1")

    def save(self, file: str, state: dict[Any, Any], metadata: dict[str, Any]) -> Snapshot:
        self._step += 1
        capturer = self._capturers.setdefault(file, Capturer(self._allow_pickle))
        texts, metrics = encode_metadata(metadata)
        snapshot = self.session.save(self._step, state, texts, metrics=metrics, never_skip=True, capturer=capturer)
        assert snapshot is not None  # on_busy is "wait"
        return snapshot

    def close(self, timeout: float | None) -> None:
        """The caller has waited for all files. What is left in the directory was given up."""
        self.session.close_quietly(timeout)
        if self.session.ownership.disowned:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another rank's is there
            os.rmdir(os.path.dirname(self.path))


def _remove_debris(folder: str, mine: str) -> None:
    """What killed processes of this rank left behind. One that still lives holds its lock."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not name.startswith(mine) or lifecycle.find(path, 0) is not None:
            continue
        try:
            with open(os.path.join(path, ".slackwater", "lock"), "rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        except FileNotFoundError:
            shutil.rmtree(path, ignore_errors=True)  # killed before it had a lock
        except OSError as error:  # in use, or the file system has no locks
            logger.info("'%s' is left alone, because it may be in use: %s", path, error)
            continue
        logger.info("removed '%s', which a killed process has left behind", path)
