"""The exceptions of Slackwater. ``slackwater.Error`` catches them all; most are also the built-in one they resemble.

``str(error)`` is one sentence: what was done, what went wrong, what to do. ``path``, ``tensor``, ``errno`` and
``retryable`` are there for programs.
"""

from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "AbortedError",
    "BusyError",
    "ClosedError",
    "DamagedError",
    "DeviceError",
    "Error",
    "InDoubtError",
    "InternalError",
    "MismatchError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "StorageError",
    "TimeoutError",
    "TornError",
    "UnknownOptionError",
    "UnsupportedError",
    "UsageError",
]


class Error(Exception):
    """Base of all exceptions of Slackwater."""

    path: str
    errno: Any  # int; 0 if no system call failed
    retryable: bool
    tensor: str  # name of the tensor it is about; empty if it is about none

    def __init__(
        self, message: str, *, path: str = "", errno: int = 0, retryable: bool = False, tensor: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.errno = errno
        self.retryable = retryable
        self.tensor = tensor

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.path, self.errno, self.retryable, self.tensor)


def _rebuild(kind: type[Error], message: str, path: str, errno: int, retryable: bool, tensor: str = "") -> Error:
    return kind(message, path=path, errno=errno, retryable=retryable, tensor=tensor)


class UsageError(Error, ValueError):
    """The call cannot be right: a wrong type, a step saved twice, an option that does not exist."""


class UnknownOptionError(UsageError, TypeError):
    """A keyword argument that the call does not have. It is also a TypeError, which is what Python itself raises."""


class NotFoundError(Error, LookupError):
    """No such directory, step or tensor."""


class StorageError(Error, OSError):
    """The storage failed: see ``errno`` and ``path``."""

    @property
    def filename(self) -> str | None:
        return self.path or None

    @property
    def strerror(self) -> str:  # type: ignore[override]
        return self.message


class NoSpaceError(StorageError):
    """The disk or the quota is full."""


class PermissionDeniedError(StorageError, PermissionError):
    """The operating system does not allow it."""


class InDoubtError(StorageError):
    """The last sync failed, so nobody knows whether the checkpoint is committed. Nothing older was deleted."""


class DamagedError(Error):
    """Bytes on storage are not the bytes that were saved."""


class DeviceError(Error, RuntimeError):
    """A GPU, or its driver, failed."""


class MismatchError(Error, ValueError):
    """The saved and the given state differ in names, shapes or dtypes."""


class TimeoutError(Error, builtins.TimeoutError):
    """Something did not happen in time."""


class BusyError(Error, RuntimeError):
    """Another run holds the directory."""


class TornError(Error):
    """A tensor changed while it was being captured. The snapshot was not committed."""


class AbortedError(Error):
    """The step was aborted on all ranks, or another run has taken over the directory."""


class ClosedError(Error, RuntimeError):
    """The checkpointer is closed, or it belongs to the parent process."""


class UnsupportedError(Error, TypeError):
    """A format, a type or a facility that this version does not know."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""


class InternalError(Error, RuntimeError):
    """A bug in Slackwater: please report it."""
