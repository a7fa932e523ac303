"""Stubs: directories ``checkpoint-N`` in Trainer's output directory, one for each checkpoint of ours.

A stub has ``trainer_state.json``, as Trainer writes it, and ``slackwater.json``, which says where the checkpoint is.
Stubs are made when a step is saved, and go when its version goes, or was never committed. A directory without
``slackwater.json`` is not ours and is never touched. Trouble with stubs is logged and never stops training, because
nothing is restored from them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

from ..checkpointer import Checkpointer
from ..errors import UsageError
from ..snapshot import Snapshot

logger = logging.getLogger("slackwater")

_MARK = "slackwater.json"


class Stubs:
    """One process of the run, or of each node, writes them."""

    def __init__(self, checkpointer: Checkpointer, output_dir: str) -> None:
        self._checkpointer = checkpointer
        self._output_dir = output_dir
        self._in_flight: dict[int, Snapshot] = {}

    def path(self, step: int) -> str:
        return os.path.join(self._output_dir, f"checkpoint-{step}")

    @staticmethod
    def is_one(directory: str) -> bool:
        return os.path.isfile(os.path.join(directory, _MARK))

    @staticmethod
    def step_of(directory: str, path: str) -> int:
        """The step that a stub stands for, if it is in this directory of checkpoints."""
        try:
            said: Any = json.loads(Path(directory, _MARK).read_text(encoding="utf-8"))
            where, step = os.path.abspath(os.path.join(directory, said["path"])), said["step"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"'{os.path.join(directory, _MARK)}' cannot be read: {error}") from error
        if os.path.realpath(where) != os.path.realpath(path) or not isinstance(step, int):
            raise UsageError(
                f"'{directory}' stands for step {step} of '{where}', and this trainer has slackwater='{path}'; "
                "give it that directory"
            )
        return step

    @staticmethod
    def copy_others(directory: str, where: str) -> None:
        """What other classes (TRL's) have put into a stub, for them to load."""
        if not Stubs.is_one(directory):
            return
        try:
            shutil.copytree(directory, where, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_MARK))
        except (OSError, shutil.Error) as error:
            logger.warning("not all files of the stub '%s' can be read: %s", directory, error)

    def add(self, snapshot: Snapshot, text: str) -> None:
        self._in_flight[snapshot.step] = snapshot
        self.write(snapshot.step, text)
        self.tidy(self._in_flight)

    def write(self, step: int, text: str) -> None:
        directory = Path(self.path(step))
        where = os.path.relpath(self._checkpointer.path, directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _replace(directory / _MARK, json.dumps({"path": where, "step": step}) + "\n")
            _replace(directory / "trainer_state.json", text)
        except OSError as error:
            logger.warning("the stub '%s' cannot be written: %s; nothing is restored from it", directory, error)

    def tidy(self, in_flight: dict[int, Snapshot]) -> None:
        """Removes the stubs whose version is gone, or was not committed."""
        self._in_flight = {step: one for step, one in in_flight.items() if not _is_over(one)}
        keep = {*self._checkpointer.steps(), *self._in_flight}
        try:
            found = list(Path(self._output_dir).glob("checkpoint-*"))
        except OSError:
            return
        for directory in found:
            number = re.fullmatch(r"checkpoint-(\d+)", directory.name)
            if number and int(number[1]) not in keep and self.is_one(str(directory)) and self._is_ours(directory):
                shutil.rmtree(directory, ignore_errors=True)

    def _is_ours(self, directory: Path) -> bool:
        try:
            self.step_of(str(directory), self._checkpointer.path)
        except UsageError:
            return False
        return True


def _is_over(snapshot: Snapshot) -> bool:
    progress = snapshot.progress
    return progress.failed or progress.level == "committed"


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
