"""Board: how the ranks tell each other about a tag, through the key-value store of ``torch.distributed``.

Ranks write different numbers of files, and some write none. So each rank *announces* itself when it opens a tag.
DeepSpeed ends ``save_checkpoint`` with a barrier. When rank 0 closes the tag after that, every rank that takes part is
on the board. Each of them then *reports* its files when they are durable, and rank 0 *decides*.

Thread rule: ``announce`` belongs to the trainer's thread, everything else to the finisher's. Each has a connection of
its own, because a call that waits keeps its connection busy.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import json
import sys
import time
from typing import Any

from ...errors import StorageError, TimeoutError
from ...ranks.transport import private_client

_PREFIX = "slackwater/deepspeed"
_SLICE_SECONDS = 1.0
_generations: collections.Counter[str] = collections.Counter()  # of this process: engines may come and go


def next_key(directory: str) -> str:
    """The name of this save of a tag. All ranks count alike, since all of them save together."""
    _generations[directory] += 1
    digest = hashlib.blake2b(directory.encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return f"{_PREFIX}/{digest}/{_generations[directory]}"


class Board:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._trainer: Any = None
        self._finisher: Any = None
        self._server: Any = None  # rank 0 may hold the server: it must not end before we do
        self._waits = False  # whether the store can wait for keys
        if world > 1:
            self._connect()

    def _connect(self) -> None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            raise StorageError(
                f"there are {self.world} ranks, but torch.distributed is not initialised, so they cannot agree on a "
                "checkpoint; call deepspeed.init_distributed() first"
            )
        self._server = distributed.distributed_c10d._get_default_store()
        self._trainer = private_client(distributed) or self._server
        self._finisher = private_client(distributed) or self._server
        self._waits = self._finisher is not self._server

    # What this rank says

    def announce(self, key: str) -> None:
        if self.world > 1:
            self._call(lambda: self._trainer.set(f"{key}/announced/{self.rank}", "yes"))

    def announce_again(self, key: str) -> None:
        """On the finisher's connection, in case the trainer's had failed."""
        if self.world > 1:
            self._call(lambda: self._finisher.set(f"{key}/announced/{self.rank}", "yes"))

    def report(self, key: str, content: dict[str, Any]) -> None:
        if self.world > 1:
            self._call(lambda: self._finisher.set(f"{key}/report/{self.rank}", json.dumps(content)))

    def decide(self, key: str, content: dict[str, Any]) -> None:
        """Rank 0 only."""
        if self.world > 1:
            self._call(lambda: self._finisher.set(f"{key}/decision", json.dumps(content)))

    # What the others have said

    def announced(self, key: str) -> set[int]:
        """The ranks that take part in a tag; rank 0 asks after the barrier that ends ``save_checkpoint``."""
        keys = {f"{key}/announced/{rank}": rank for rank in range(self.world) if rank != self.rank}
        if self.world == 1 or self._call(lambda: self._finisher.check(list(keys))):
            return set(range(self.world))
        return {rank for name, rank in keys.items() if self._call(lambda name=name: self._finisher.check([name]))} | {
            self.rank
        }

    def reports(self, key: str, ranks: set[int], timeout: float) -> dict[int, dict[str, Any]]:
        names = {rank: f"{key}/report/{rank}" for rank in sorted(ranks - {self.rank})}
        self._wait_for(list(names.values()), timeout)
        missing = [
            rank for rank, name in names.items() if not self._call(lambda name=name: self._finisher.check([name]))
        ]
        if missing:
            raise TimeoutError(
                f"rank {', '.join(map(str, missing[:20]))} has not said within {timeout:.0f} s that its files are safe"
            )
        return {
            rank: json.loads(self._call(lambda name=name: self._finisher.get(name))) for rank, name in names.items()
        }

    def decision(self, key: str, timeout: float) -> dict[str, Any]:
        name = f"{key}/decision"
        self._wait_for([name], timeout)
        if not self._call(lambda: self._finisher.check([name])):
            raise TimeoutError(f"rank 0 did not decide about the checkpoint within {timeout:.0f} s")
        return dict(json.loads(self._call(lambda: self._finisher.get(name))))

    def forget(self, key: str, ranks: set[int]) -> None:
        """Rank 0, once a later tag is decided: nobody asks for this one any more."""
        names = [f"{key}/{kind}/{rank}" for rank in ranks for kind in ("announced", "report")]
        with contextlib.suppress(Exception):  # a store that cannot delete keeps a few bytes
            for name in [*names, f"{key}/decision"]:
                self._finisher.delete_key(name)

    def _wait_for(self, names: list[str], timeout: float) -> None:
        """Returns when all names are there, or after ``timeout``."""
        deadline = time.monotonic() + timeout
        pause = 0.01
        while names and not self._call(lambda: self._finisher.check(names)):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._waits:
                with contextlib.suppress(RuntimeError):  # not yet; a store that is gone fails in check()
                    self._finisher.wait(names, datetime.timedelta(seconds=min(left, _SLICE_SECONDS)))
            else:
                time.sleep(min(left, pause))
                pause = min(2 * pause, _SLICE_SECONDS)

    @staticmethod
    def _call(call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise StorageError(
                f"the store of torch.distributed cannot be reached, so the ranks cannot agree: {lines[0]}"
            ) from error
