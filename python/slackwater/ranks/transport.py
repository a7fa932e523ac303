"""Ranks: which of how many processes this one is, and how they reach each other.

torch.distributed tells, once it is initialised, and lends its store; else the environment that torchrun sets tells, and
the ranks talk through the directory they share; else this process is the only one.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import sys
import threading
from typing import Any, Literal

from .. import _core
from ..errors import OutOfMemoryError, StorageError, UsageError

logger = logging.getLogger("slackwater")

Transport = Literal["auto", "torch", "directory"]

_STORE_SECONDS = 10.0  # the longest a call of the store may take
_JOIN_SECONDS = 5.0
_MANY_KEYS = 8  # from here on it pays to ask first whether all are there
_ABSENT = "slackwater: no such key"  # no value of ours


@dataclasses.dataclass(frozen=True)
class Ranks:
    rank: int | None  # None: as the engine's own defaults have it
    world: int | None
    local_ranks: int | None
    store: Any = None  # a client of the job's store for us alone; None: the directory


def find_ranks(transport: Transport, rank: int | None, world: int | None, local_ranks: int | None = None) -> Ranks:
    """What the caller says wins over torch.distributed, and that over the environment."""
    if transport not in ("auto", "torch", "directory"):
        raise UsageError(f"coordinator is {transport!r}; it is 'auto', 'torch' or 'directory'")
    if (rank is None) != (world is None):
        raise UsageError("rank= and world= belong together: give both, or neither to have them found")
    given = rank is not None
    local = _local_ranks() if local_ranks is None else local_ranks
    job = distributed()
    if job is None:
        if transport == "torch":
            raise UsageError(
                "coordinator is 'torch', but torch.distributed is not initialised; call init_process_group() first"
            )
        if not given:
            rank, world = _environment()
        return Ranks(rank, world, local)
    if not given:
        rank, world = job.get_rank(), job.get_world_size()
    # Ranks that the caller counts need not be those of the job: its store is used only where it is asked for.
    if (world or 1) == 1 or transport == "directory" or (given and transport == "auto"):
        return Ranks(rank, world, local)
    store = private_client(job)
    if store is None:
        if transport == "torch":
            raise UsageError(
                "coordinator is 'torch', but the job's store does not support a second client; use TCPStore, or "
                "'directory'"
            )
        logger.warning(
            "the job's store does not support a second client: the ranks talk through the shared directory instead"
        )
    return Ranks(rank, world, local, store)


def distributed() -> Any:
    """torch.distributed if the program has initialised it. Never imports it."""
    found = sys.modules.get("torch.distributed")
    if found is None or not found.is_available() or not found.is_initialized():
        return None
    return found


def _environment() -> tuple[int | None, int | None]:
    rank, world = _whole_number("RANK"), _whole_number("WORLD_SIZE")
    if rank is None or world is None or not 0 <= rank < world:
        return None, None
    return rank, world


def _local_ranks() -> int | None:
    """How many ranks torchrun has started on this machine; None if nobody says."""
    count = _whole_number("LOCAL_WORLD_SIZE")
    return count if count is not None and count >= 1 else None


def _whole_number(name: str) -> int | None:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def private_client(distributed: Any) -> Any:
    """A connection of our own: whoever waits on a shared one makes all others wait. None: this kind has none.

    A HashStore lives in one process, and a FileStore is a file that everybody polls: neither is better than the
    directory.
    """
    store = distributed.distributed_c10d._get_default_store()
    base = store
    while isinstance(base, distributed.PrefixStore):
        base = base.underlying_store
    if isinstance(base, (distributed.HashStore, distributed.FileStore)) or not hasattr(store, "clone"):
        return None
    try:
        client = store.clone()
    except distributed.DistError as error:
        raise StorageError(f"the store of torch.distributed cannot be reached: {_first_line(error)}") from error
    except (NotImplementedError, RuntimeError):  # a store written in Python
        return None
    client.set_timeout(datetime.timedelta(seconds=_STORE_SECONDS))
    return client


class StoreThread:
    """Answers the engine's calls on a c10d store. One thread of its own, which ends with ``close``.

    It holds the relay and the store and nothing else, so that it keeps no checkpointer alive.
    """

    def __init__(self, store: Any) -> None:
        self.relay = _core.StoreRelay(_STORE_SECONDS)
        self._thread = threading.Thread(target=_serve, args=(self.relay, store), name="slackwater-store", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OutOfMemoryError(f"the thread by which the ranks talk cannot be started: {error}") from error

    def close(self) -> None:
        self.relay.close()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)  # it hangs only with the store; the process may end without it


def _serve(relay: _core.StoreRelay, store: Any) -> None:
    while (call := relay.next()) is not None:
        number, verb, keys, value = call
        try:
            answer = _call(store, verb, keys, value)
        except Exception as error:
            timed_out = "timeout" in str(error).lower()
            why = f"the job's store failed; the process that holds it may have ended: {_first_line(error)}"
            relay.fail(number, why, timed_out)
        else:
            relay.answer(number, answer)


def _call(store: Any, verb: str, keys: list[str], value: bytes) -> list[bytes | None]:
    if verb == "set":
        store.set(keys[0], value)
        return []
    if verb == "remove":
        for key in keys:
            store.delete_key(key)
        return []
    if len(keys) >= _MANY_KEYS and store.check(keys):
        values: list[bytes | None] = store.multi_get(keys)
        return values
    return [_get(store, key) for key in keys]


def _get(store: Any, key: str) -> bytes | None:
    """The value, or None: ``get`` would wait for the key. To compare with what is never there changes nothing."""
    found: bytes = store.compare_set(key, _ABSENT, _ABSENT)
    return None if found == _ABSENT.encode() else found


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
