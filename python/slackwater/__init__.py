"""Slackwater: a checkpoint at every iteration, at almost no cost to training.

>>> import slackwater as sw
>>> with sw.Checkpointer("runs/gpt") as ckpt:
...     state = {"model": model, "optim": optim, "rng": sw.Rng()}
...     start = ckpt.restore(state) or 0
...     for step in range(start + 1, steps + 1):
...         train()
...         ckpt.save(step, state)
"""

from ._core import version as __version__
from .checkpointer import Checkpointer
from .errors import (
    AbortedError,
    BusyError,
    ClosedError,
    DamagedError,
    DeviceError,
    Error,
    InDoubtError,
    InternalError,
    MismatchError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    PermissionDeniedError,
    StorageError,
    TimeoutError,
    TornError,
    UnknownOptionError,
    UnsupportedError,
    UsageError,
)
from .in_flight import Failure
from .metadata import Best
from .ranks.sharding import Replicated, Shard
from .reader import Reader, load, open
from .restore.report import RestoreReport
from .rng import Rng
from .snapshot import Progress, Snapshot, SnapshotStats
from .tiers import Tier

__all__ = [
    "AbortedError",
    "Best",
    "BusyError",
    "Checkpointer",
    "ClosedError",
    "DamagedError",
    "DeviceError",
    "Error",
    "Failure",
    "InDoubtError",
    "InternalError",
    "MismatchError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "Progress",
    "Reader",
    "Replicated",
    "RestoreReport",
    "Rng",
    "Shard",
    "Snapshot",
    "SnapshotStats",
    "StorageError",
    "Tier",
    "TimeoutError",
    "TornError",
    "UnknownOptionError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "load",
    "open",
]
