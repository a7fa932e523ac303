"""What happens to open checkpointers when the process forks or ends."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Protocol

from .errors import BusyError

if TYPE_CHECKING:
    from .ranks.sharding import RankInfo

logger = logging.getLogger("slackwater")

EXIT_SECONDS = 60.0  # how long the end of the process may wait for what is in flight


class Ownership:
    """Shared by a session and its snapshots: whether this is still the process that made them."""

    def __init__(self, stall_timeout: float) -> None:
        self.disowned = False
        self.stall_timeout = stall_timeout  # seconds a fence waits without progress


class Closable(Protocol):
    ownership: Ownership
    path: str
    made_at: str  # the place in the user's program

    def take_over(self, by: str) -> None: ...

    @property
    def rank_info(self) -> RankInfo: ...

    def close_quietly(self, timeout: float | None) -> None: ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def register(session: Closable) -> None:
    _open.add(session)


def forget(session: Closable) -> None:
    _open.discard(session)


def find(path: str, rank: int) -> Closable | None:
    """The session of this process that has this directory open, as this rank."""
    for session in list(_open):
        if session.rank_info.rank == rank and _same_directory(session.path, path):
            return session
    return None


def _same_directory(one: str, other: str) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def caller() -> str:
    """Where the program called this package, for messages: 'train.py, line 12'."""
    package = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def _in_child() -> None:
    # The parent's threads do not exist here, and its locks may be held for ever. So only set flags.
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


def make_way(path: str, rank: int, take_over: bool) -> None:
    """This process may already have the directory open, for example if a notebook cell runs again."""
    earlier = find(path, rank)
    if earlier is None:
        return
    if take_over:
        logger.info("taking '%s' over from the checkpointer made in %s", path, earlier.made_at)
        earlier.take_over(caller())
        return
    gc.collect()  # it may be unreachable but for a reference cycle; collecting it closes it
    earlier = find(path, rank)
    if earlier is None:
        logger.info("an earlier checkpointer of '%s', which nothing referred to any more, was closed", path)
        return
    raise BusyError(
        f"this process already has it open: '{path}', by the checkpointer made in {earlier.made_at}; close() that one, "
        "or give take_over=True, which waits for what it has in flight and closes it",
        path=path,
    )
