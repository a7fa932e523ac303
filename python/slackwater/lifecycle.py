"""What happens to open checkpointers when the process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

logger = logging.getLogger("slackwater")

EXIT_SECONDS = 60.0  # how long the end of the process may wait for what is in flight


class Ownership:
    """Shared by a session and its snapshots: whether this is still the process that made them."""

    def __init__(self, stall_timeout: float) -> None:
        self.disowned = False
        self.stall_timeout = stall_timeout  # seconds a fence waits without progress


class Closable(Protocol):
    ownership: Ownership

    def close_quietly(self, timeout: float | None) -> None: ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def register(session: Closable) -> None:
    _open.add(session)


def forget(session: Closable) -> None:
    _open.discard(session)


def _in_child() -> None:
    # Threads and locks of the parent do not exist here: only flags are set.
    for session in list(_open):
        session.ownership.disowned = True
    _open.clear()


def _at_exit() -> None:
    for session in list(_open):
        logger.info(
            "the program ends with a checkpointer open: waiting up to %.0f s for what is in flight", EXIT_SECONDS
        )
        session.close_quietly(EXIT_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
