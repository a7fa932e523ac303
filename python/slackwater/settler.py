"""Settler: a thread that does the background work of a session that needs the GIL. Engine threads never take the GIL.

It settles snapshots whose fence has not come yet, and passes on log lines. The engine wakes it through the mailbox when
there is something to do: a log line, or a snapshot whose tensors are no longer read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from . import _core

logger = logging.getLogger("slackwater")

_JOIN_SECONDS = 10.0


class Settler:
    """Calls ``settle`` after every poke. Any thread may call ``wake`` and ``stop``, and so may a signal handler."""

    def __init__(self, mailbox: _core.Mailbox, settle: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._settle = settle
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._stopping = False
        self._warned = False

    @property
    def started(self) -> bool:
        return self._thread is not None

    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        with self._starting:
            if self._thread is None:
                self._start()
        self._mailbox.poke()

    def stop(self) -> None:
        self._stopping = True
        self._mailbox.poke()
        if self._thread is not None and not self.is_this_thread():
            self._thread.join(_JOIN_SECONDS)  # it hangs only if the storage hangs; then the process ends without it

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="slackwater-settle", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are allowed; the next save tries again
            if not self._warned:
                logger.warning(
                    "the thread slackwater-settle cannot be started (%s): snapshots are committed only after the next "
                    "fence, wait, save or close",
                    error,
                )
            self._warned = True
            return
        self._thread = thread

    def _run(self) -> None:
        while not self._stopping:
            self._mailbox.wait()
            try:
                self._settle()
            except Exception:
                logger.exception("the thread slackwater-settle met an error and continues")
        self._mailbox.poke()  # a signal handler may have started a second one
