"""Checkpointer: what a training script uses."""

from __future__ import annotations

import logging
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal

from . import _core, lifecycle
from .errors import (
    DamagedError,
    Error,
    InDoubtError,
    NoSpaceError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UsageError,
)
from .names import Pattern
from .placement import Placement
from .ranks import Means, find_ranks
from .reader import read_copies
from .session import Session
from .snapshot import Level, Snapshot
from .streams import all_producers

logger = logging.getLogger("slackwater")

_UNDEFINED = "the state was partly overwritten and is undefined"


class _Restore:
    """One restore(). The engine passes over what it finds damaged; tensors that are read aside may add to that."""

    def __init__(self, session: Session, path: str, plan: Callable[[_core.Contents], Placement]) -> None:
        self.touched = False  # whether the given state may have been written to
        self._session = session
        self._path = path
        self._plan = plan
        self._placement: Placement | None = None
        self._refusal: BaseException | None = None  # of the plan: ends the restore, even where it looks like damage

    def run(self, wanted: int | None, *, fallback: bool) -> int | None:
        session = self._session
        damaged: list[str] = []
        while True:
            step = wanted  # of the version in hand
            try:
                restored = session.engine.restore(wanted, self._targets, all_producers())
                if restored is None:
                    return None
                step = restored[0].step
                assert self._placement is not None
                self.touched = self.touched or bool(self._placement.copies)
                read_copies(self._path, step, self._placement)
                break
            except Error as error:
                if not fallback or step is None or self._refusal is not None or not _is_damage(error):
                    raise
                damaged.append(f"step {step}: {error}")
                older = [version.step for version in session.engine.versions() if version.step < step]
                if not older:
                    raise DamagedError("no checkpoint could be restored:\n  " + "\n  ".join(damaged)) from error
                wanted = older[-1]
                logger.error("step %d is damaged and is passed over for step %d: %s", step, wanted, error)
            finally:
                session.drain_log()
        self.touched = True
        self._placement.finish()
        return step

    def _targets(self, contents: _core.Contents) -> list[Any]:
        try:
            self._placement = self._plan(contents)
            targets = self._placement.targets()
        except BaseException as error:
            self._refusal = error
            raise
        self.touched = self.touched or bool(targets)
        return targets


def _is_damage(error: Error) -> bool:
    """What the engine passes over, too: another try, or another setting, would not help."""
    if isinstance(error, (InDoubtError, NoSpaceError, PermissionDeniedError)):
        return False
    return isinstance(error, (DamagedError, StorageError, NotFoundError))


class Checkpointer:
    """Saves the state of a training run at any step, in the background, and restores the newest good one.

    ``path`` is a directory on a local or shared file system; it is made if its parent exists. One run at a time may
    hold it. A checkpointer belongs to the thread that made it, except for ``fence``. docs/python.md has the options.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tiers: Sequence[Any] | None = None,
        pool: int | str = "auto",
        keep: int = 2,
        keep_every: int | None = None,
        every: int = 1,
        in_flight: int = 2,
        on_busy: Literal["wait", "skip"] = "wait",
        on_error: Literal["warn", "raise"] = "warn",
        on_damage: Literal["fallback", "raise"] = "fallback",
        paranoid: bool = False,
        allow_pickle: bool = False,
        slab: int | str | None = None,
        copy_threads: int | None = None,
        queue_depth: int | None = None,
        io_backend: Literal["auto", "uring", "threads"] | None = None,
        direct_io: bool | None = None,
        stall_timeout: float | None = None,
        cuda_driver: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        commit_timeout: float | None = None,
        fan_in: int | None = None,
        local_ranks: int | None = None,
        coordinator: Means = "auto",
        run_name: str | None = None,
    ) -> None:
        self.path = _directory(path)
        _check_tiers(tiers, self.path)
        self._every = _whole("every", every, least=1)
        self._fallback = on_damage == "fallback"
        self._allow_pickle = bool(allow_pickle)
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error is {on_error!r}; it is 'warn' or 'raise'")
        ranks = find_ranks(coordinator, rank, world, local_ranks)
        settings = {
            "pool": pool,
            "keep": keep,
            "keep_every": keep_every,
            "in_flight": in_flight,
            "on_busy": on_busy,
            "on_damage": on_damage,
            "paranoid": paranoid,
            "slab": slab,
            "copy_threads": copy_threads,
            "queue_depth": queue_depth,
            "io_backend": io_backend,
            "direct_io": direct_io,
            "stall_timeout": stall_timeout,
            "cuda_driver": cuda_driver,
            "rank": ranks.rank,
            "world": ranks.world,
            "local_ranks": ranks.local_ranks,
            "commit_timeout": commit_timeout,
            "fan_in": fan_in,
            "run_name": run_name,
        }
        given = {name: _option_text(name, value) for name, value in settings.items() if value is not None}
        self._session = Session(
            self.path,
            given,
            allow_pickle=self._allow_pickle,
            raise_errors=on_error == "raise",
            stall_timeout=60.0 if stall_timeout is None else float(stall_timeout),
            store=ranks.store,
        )
        self._finalizer = weakref.finalize(self, self._session.close_quietly, lifecycle.EXIT_SECONDS)
        self._finalizer.atexit = False  # lifecycle.py does that

    def save(
        self,
        step: int,
        state: Mapping[Any, Any],
        *,
        metadata: Mapping[str, str] | None = None,
        after: Iterable[Any] | None = None,
    ) -> Snapshot | None:
        """Capture ``state`` as checkpoint ``step`` and return; the bytes follow in the background.

        The tensors must not change before the next fence, which optimizers of torch call by themselves. Returns None
        when this step is skipped: it is not divisible by ``every``, or the engine is busy and ``on_busy`` is "skip".
        ``after``: CUDA streams that produce the tensors, by default torch's current one of each device.
        Trouble with the storage does not raise here (unless ``on_error`` is "raise"): see ``Snapshot.error``, ``wait``.
        """
        self._session.check_open()
        step = _whole("step", step, least=0)
        words = _check_metadata(metadata)
        if step % self._every != 0:
            return None
        return self._session.save(step, state, words, after)

    def restore(
        self,
        state: MutableMapping[Any, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        cast: bool = False,
        only: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] | None = None,
        rank_local: Literal["error", "drop"] = "error",
    ) -> int | None:
        """Bring ``state`` back, in place, to the newest good checkpoint or to that of ``step``.

        Returns the step; None if there is nothing to restore. ``strict``: tensor names must match. ``cast``: convert
        dtypes that differ. ``only`` and ``exclude``: name patterns such as ``"model.*"``. A damaged checkpoint is
        reported and the one before it used, unless ``step`` or ``on_damage="raise"`` was given. ``rank_local``: what
        belongs to single ranks, if another number of ranks saved it: an error, or left as it is here.
        """
        session = self._session
        session.check_open()
        if not isinstance(state, MutableMapping):
            raise UsageError(f"the state is a {type(state).__name__}; give the dict that is given to save()")
        if rank_local not in ("error", "drop"):
            raise UsageError(f"rank_local is {rank_local!r}; it is 'error' or 'drop'")
        wanted = None if step is None else _whole("step", step, least=0)
        selected = Pattern(only, exclude)
        session.fence()
        restore = _Restore(
            session,
            self.path,
            lambda contents: Placement(
                state,
                contents,
                strict=strict,
                cast=cast,
                selected=selected,
                allow_pickle=self._allow_pickle,
                seat=session.seat,
                drop_rank_local=rank_local == "drop",
            ),
        )
        try:
            return restore.run(wanted, fallback=self._fallback and wanted is None)
        except BaseException as error:
            if restore.touched and _UNDEFINED not in str(error):  # the engine says it of its own errors
                error.add_note(f"slackwater: {_UNDEFINED}")
            raise

    def fence(self, streams: Iterable[Any] | None = None, *, host: bool = False) -> None:
        """Return when the tensors of everything in flight may be written again. Any thread may call it.

        On a CUDA device: by work queued from now on on ``streams`` (by default torch's current stream of each device),
        while the CPU goes on; ``host=True`` waits until the bytes have left the device.
        """
        session = self._session
        session.check_open()
        session.fence(streams, host=host)

    def fence_on(self, obj: Any, method: str) -> None:
        """Fence before every call of ``obj.method``, for updates that no torch optimizer makes. ``close`` undoes it."""
        self._session.check_open()
        self._session.methods.wrap(self._session, obj, method)

    def wait(self, level: Level = "committed", timeout: float | None = None) -> None:
        """Wait until everything in flight has reached ``level``. Raises the first background error not yet reported."""
        self._session.wait(level, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait until everything in flight is committed, then stop. Raises the first background error not yet reported.

        After ``timeout`` seconds what is not committed is given up and named in the error. A second call does nothing.
        """
        self._finalizer.detach()
        self._session.close(timeout)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, oldest first."""
        self._session.check_open()
        return [version.step for version in self._session.engine.versions()]

    def latest_step(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def pin(self, step: int) -> None:
        """Keep this checkpoint whatever ``keep`` says."""
        self._session.check_open()
        self._session.engine.pin(_whole("step", step, least=0))

    def delete(self, step: int) -> None:
        """Delete this checkpoint."""
        self._session.check_open()
        self._session.engine.remove(_whole("step", step, least=0))

    @property
    def stats(self) -> _core.EngineStats:
        """Totals, and what the engine runs on."""
        self._session.check_owner()
        return self._session.engine.stats()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if kind is None:
            self.close()
            return
        try:  # what is in flight is still committed, but the exception of the block is the one to be seen
            self.close()
        except Exception as closing:
            logger.error("closing the checkpointer: %s", closing)

    def __repr__(self) -> str:
        return f"<slackwater.Checkpointer {self.path!r}{' closed' if self._session.closed else ''}>"


def _directory(path: Any) -> str:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"path is a {type(path).__name__}; give the directory as a text or a pathlib.Path") from None
    if not text:
        raise UsageError("path is empty; give a directory such as 'runs/gpt'")
    if "://" in text:
        raise UsageError(f"'{text}' is not a local directory; object stores are not available yet")
    return os.path.abspath(text)  # a later chdir() must not move it


def _check_tiers(tiers: Sequence[Any] | None, path: str) -> None:
    if not tiers:
        return
    same = len(tiers) == 1 and isinstance(tiers[0], (str, os.PathLike)) and os.path.abspath(tiers[0]) == path
    if not same:
        raise UsageError(
            "tiers= is not available yet: this version keeps checkpoints in the one directory given as path"
        )


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < least or number >= 1 << 63:
        raise UsageError(f"{name} is {value!r}; it is a whole number, {least} or more")
    return number


def _option_text(name: str, value: Any) -> str:
    """Options as the engine's table takes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6f}"
    try:
        return str(operator.index(value))
    except TypeError:
        raise UsageError(f"{name} is a {type(value).__name__}, which no option takes") from None


def _check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(
        isinstance(part, str) for item in metadata.items() for part in item
    ):
        raise UsageError("metadata maps texts to texts; put other values into the state")
    return dict(metadata)
