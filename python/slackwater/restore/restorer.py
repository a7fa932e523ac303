"""Restorer: one call of ``restore()``, from the choice of a version to the report.

The engine chooses the version, and skips those that are damaged. It asks this class where tensors go, and lets it read
what the engine cannot place. The engine also judges the damage that is found there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import Error
from ..integrations.loaders import RandomStates
from ..integrations.streams import all_producers
from ..session import Session
from .converted import read_copies
from .report import RestoreReport
from .restore_plan import RestorePlan


class Restorer:
    """Used for one call."""

    def __init__(self, session: Session, path: str, make_plan: Callable[[_core.Contents], RestorePlan]) -> None:
        self.report: RestoreReport | None = None
        self.random = RandomStates()  # the random states that were restored
        self._session = session
        self._path = path
        self._make_plan = make_plan
        self._plan: RestorePlan | None = None  # for the version that is being tried
        self._step = 0  # of that version
        self._touched = False  # whether the given state may have been written to
        self._raised: BaseException | None = None  # raised by a function that the engine called
        self._of_engine: Error | None = None  # the engine's own error that ended the restore

    def run(self, wanted: int | None) -> int | None:
        start = time.perf_counter()
        try:
            restored = self._session.engine.restore(wanted, self._targets, self._read_rest, all_producers())
        except Error as error:
            self._of_engine = None if error is self._raised else error
            raise
        finally:
            self._session.drain_log()
        if restored is None:
            return None
        version, damaged = restored
        assert self._plan is not None
        self._touched = True
        self._plan.finish()
        self.random = self._plan.random
        self.report = self._plan.report.build(time.perf_counter() - start, damaged)
        self.report.log()
        return version.step

    def say_undefined(self, error: BaseException) -> None:
        """Adds a note if the given state was partly overwritten. The engine's own errors say it themselves."""
        if self._touched and error is not self._of_engine:
            error.add_note("slackwater: the state was partly overwritten and is undefined")

    def _targets(self, contents: _core.Contents) -> list[Any]:
        try:
            self._step = contents.version.step
            self._plan = self._make_plan(contents)
            targets = self._plan.targets()
        except BaseException as error:
            self._raised = error
            raise
        self._touched = self._touched or bool(targets)
        return targets

    def _read_rest(self, progress: Callable[[], None]) -> None:
        assert self._plan is not None
        copies = self._plan.writes.copies
        self._touched = self._touched or bool(copies)
        try:
            read_copies(self._path, self._step, copies, progress)
        except BaseException as error:
            self._raised = error
            raise
