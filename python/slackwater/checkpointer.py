"""Checkpointer: what a training script uses."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal

from . import _core, lifecycle
from .arguments import checks_options, listed, option_text, seconds_or, whole
from .errors import BusyError, UsageError
from .in_flight import Failure
from .integrations.loaders import RandomStates
from .last_step import LastStep
from .memory_tier import keeper_program
from .metadata import Best, Value, best_option, encode_metadata
from .ranks.transport import Transport, find_ranks
from .restore.optimizers import Hyperparameters
from .restore.rank_local import RankLocal
from .restore.rename import Renaming
from .restore.report import RestoreReport
from .restore.restore_plan import RestorePlan
from .restore.restorer import Restorer
from .session import Session
from .signals import SignalSaver, Then, save_on_signal
from .snapshot import Level, Snapshot
from .state.names import Pattern, an
from .tiers import Tier, announce_staging, find_places, make_parents, read_options_file

logger = logging.getLogger("slackwater")


class Checkpointer:
    """Saves the state of a training run at any step, in the background, and restores the newest good one.

    ``path`` is a directory on a local or shared file system. It is created, with its parents, if it does not exist.
    Committed checkpoints are copied to ``tiers`` in the background: ``[sw.Tier("/shared/run", every=50)]``. Without a
    ``path``, the first tier takes its place; ``s3://bucket/prefix`` alone stages through a local directory.
    ``node_local``: ``path`` is another directory on each node, such as a local disk, and only lower tiers are shared.
    Only one run at a time may use it. A checkpointer belongs to the thread that made it, except for ``fence`` and
    ``close``: another thread or a signal handler may close it even during a save. docs/python.md has the options.
    """

    @checks_options("sw.Checkpointer")
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        tiers: Sequence[Tier | str | os.PathLike[str]] | None = None,
        node_local: bool = False,
        memory: bool = False,
        memory_versions: int | None = None,
        memory_timeout: float | None = None,
        keeper: str | os.PathLike[str] | None = None,
        pool: int | str = "auto",
        keep: int = 2,
        keep_every: int | None = None,
        keep_best: Best | tuple[str, int] | tuple[str, int, str] | None = None,
        every: int = 1,
        save_last: bool = False,
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
        copies_ahead: int | str | None = None,
        copies_ahead_operations: int | None = None,
        copy_turn: int | str | None = None,
        batched_copies: bool | None = None,
        rank: int | None = None,
        world: int | None = None,
        commit_timeout: float | None = None,
        fan_in: int | None = None,
        local_ranks: int | None = None,
        copy_timeout: float | None = None,
        coordinator: Transport = "auto",
        run_name: str | None = None,
        take_over: bool = False,
    ) -> None:
        places = find_places(path, tiers, every=every, keep=keep, keep_every=keep_every, node_local=node_local)
        self.path = places.path
        self._every = whole("every", places.every, least=1)
        self._random = RandomStates()  # of the last restore()
        self._allow_pickle = bool(allow_pickle)
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error is {on_error!r}; it is 'warn' or 'raise'")
        best = best_option(keep_best)
        self._best = None if best is None else best[0]
        self._metric_seen = False
        self._saved = False
        ranks = find_ranks(coordinator, rank, world, local_ranks)
        if not ranks.rank:
            announce_staging(places)
        settings = {
            "pool": pool,
            "keep": places.keep,
            "keep_every": places.keep_every,
            "keep_best": None if best is None else best[1],
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
            "copies_ahead": copies_ahead,
            "copies_ahead_operations": copies_ahead_operations,
            "copy_turn": copy_turn,
            "batched_copies": batched_copies,
            "rank": ranks.rank,
            "world": ranks.world,
            "local_ranks": ranks.local_ranks,
            "commit_timeout": commit_timeout,
            "fan_in": fan_in,
            "copy_timeout": copy_timeout,
            "memory": memory,
            "memory_versions": memory_versions,
            "memory_timeout": memory_timeout,
            "keeper": keeper_program(keeper) if memory else None,
            "run_name": run_name,
            "node_local": places.node_local_with(ranks, coordinator),
        }
        given = {name: option_text(name, value) for name, value in settings.items() if value is not None}
        rank_info = ranks.rank or 0
        if save_last and (ranks.world or 1) > 1:
            raise UsageError(
                "save_last=True is for one rank: several may not agree on whether the state has changed; with several, "
                "call save(step, state, force=True) on all of them before the end"
            )
        make_parents(places)
        lifecycle.make_way(self.path, rank_info, take_over)
        try:
            self._session = Session(
                self.path,
                given,
                allow_pickle=self._allow_pickle,
                raise_errors=on_error == "raise",
                stall_timeout=seconds_or(60.0, stall_timeout),
                store=ranks.store,
                tiers=places.lower,
            )
        except BusyError as error:
            if take_over:
                error.add_note("slackwater: take_over=True takes over from this process, never from another one")
            raise
        self._last = LastStep(self._session, self._every, bool(save_last), self._allow_pickle)
        self._restored: RestoreReport | None = None
        self._signals: SignalSaver | None = None
        self._finalizer = weakref.finalize(self, self._session.close_quietly, lifecycle.EXIT_SECONDS)
        self._finalizer.atexit = False  # lifecycle.py does that

    @checks_options("sw.Checkpointer.save")
    def save(
        self,
        step: int,
        state: Mapping[Any, Any],
        *,
        metadata: Mapping[str, Value] | None = None,
        after: Iterable[Any] | None = None,
        force: bool = False,
        pin: bool = False,
    ) -> Snapshot | None:
        """Capture ``state`` as checkpoint ``step`` and return; the bytes follow in the background.

        The tensors must not change before the next fence, which optimizers of torch call automatically. Returns None
        when this step is skipped: it is not divisible by ``every``, or the engine is busy and ``on_busy`` is "skip".
        ``metadata``: texts and numbers about the step. ``force``: save it whatever ``every`` says, and wait where
        ``on_busy`` would skip it. ``pin``: the same, and keep it whatever ``keep`` says.
        ``after``: CUDA streams that produce the tensors, by default torch's current one of each device.
        Trouble with the storage does not raise here (unless ``on_error`` is "raise"): see ``Snapshot.error``, ``wait``.
        """
        self._session.check_open()
        if isinstance(step, Mapping):
            raise UsageError(f"step is {an(type(step).__name__)}; the order is save(step, state)")
        step = whole("step", step, least=0)
        texts, metrics = encode_metadata(metadata, self._best)
        last = self._signals is not None and self._signals.due(step)
        force = force or last
        if step % self._every != 0 and not (force or pin):
            self._last.skip(step, state, texts, metrics)
            return None
        self._last.forget()
        self._saved = True
        self._metric_seen |= self._best is not None and self._best.metric in metrics
        snapshot = self._session.save(step, state, texts, after, metrics=metrics, pin=pin, never_skip=force or pin)
        if snapshot is None and (force or pin):
            logger.warning("step %d is skipped although it was to be saved: the ranks are busy (on_busy='skip')", step)
        if self._signals is not None:
            self._signals.after_save(snapshot, last)
        return snapshot

    def save_on_signal(self, number: int = signal.SIGTERM, *, within: float = 25.0, then: Then = "signal") -> None:
        """After this signal, the next ``save`` is the last: it commits its step within ``within`` seconds and ends.

        ``then``: end by the "signal" itself (a handler that was set before is called), "exit" with 128 + number, or
        "return" from ``save``; see ``stop_requested``. Without a ``save`` in time, the newest committed step remains.
        """
        if self._signals is not None:
            raise UsageError("save_on_signal() was called before; one signal can be watched")
        self._signals = save_on_signal(self._session, number, within, then)

    @property
    def stop_requested(self) -> bool:
        """Whether the signal of ``save_on_signal`` has come and the last ``save`` is over, so that the loop may end."""
        return self._signals is not None and self._signals.stopped

    def prepare(self, state: Mapping[Any, Any], *, wait: bool = False) -> None:
        """Make the pool for ``state`` in the background, before the first ``save`` needs it.

        Returns at once; ``wait=True`` returns when the pool is ready. Give the dict that will be given to ``save``: its
        bytes decide the size of an automatic pool, nothing is copied. ``restore`` also does this. If there is a
        pool already, it stays. With ``on_busy="skip"`` and one rank, ``save`` skips steps until the pool is ready.
        """
        self._session.prepare(state, wait=bool(wait))

    @checks_options("sw.Checkpointer.restore")
    def restore(
        self,
        state: MutableMapping[Any, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        cast: bool = False,
        only: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] | None = None,
        rename: Mapping[str, str] | None = None,
        keep_hyperparameters: bool | str | Iterable[str] = False,
        rank_local: str | Iterable[str] = "random",
    ) -> int | None:
        """Bring ``state`` back, in place, to the newest good checkpoint or to that of ``step``.

        Returns the step; None if there is nothing to restore. ``restored`` then says what was done. ``strict``: tensor
        names, parameters of optimizers and their classes must match. ``cast``: convert dtypes that differ. ``only`` and
        ``exclude``: name patterns such as ``"model.*"``, each of which must match something. ``rename``: names of the
        checkpoint to names of the state, such as ``{"old.*": "new.*"}``. ``keep_hyperparameters``: True, or patterns
        such as ``"lr"`` or ``"optim.lr"``, for values of parameter groups that stay as they are. A damaged checkpoint
        is reported and the one before it used, unless ``step`` or ``on_damage="raise"`` was given.

        ``rank_local``: what belongs to single ranks is left as it is here if another number of ranks saved it. Which of
        it: "random": random states; "drop": all but weights and optimizer state; a list of names: those too; "error":
        nothing. The rest is an error.
        """
        session = self._session
        session.check_open()
        if not isinstance(state, MutableMapping):
            raise UsageError(f"the state is {an(type(state).__name__)}; give the dict that is given to save()")
        left_alone = RankLocal(rank_local)
        wanted = None if step is None else whole("step", step, least=0)
        patterns = [listed(only), listed(exclude), listed(keep_hyperparameters)]
        Pattern(*patterns[:2]), Hyperparameters(patterns[2])  # refuses what cannot be patterns
        renaming = Renaming(rename)
        self._restored = None
        self._last.forget()
        session.fence()
        restore = Restorer(
            session,
            self.path,
            lambda contents: RestorePlan(
                state,
                contents,
                strict=strict,
                cast=cast,
                selected=Pattern(*patterns[:2]),
                allow_pickle=self._allow_pickle,
                rank_info=session.rank_info,
                rank_local=left_alone,
                rename=renaming,
                hyperparameters=Hyperparameters(patterns[2]),
            ),
        )
        try:
            found = restore.run(wanted)
            self._restored, self._random = restore.report, restore.random
            return found
        except BaseException as error:
            restore.say_undefined(error)
            raise

    @property
    def restored(self) -> RestoreReport | None:
        """What the last ``restore`` did, with all names; None if there was none, or it failed or found nothing."""
        return self._restored

    @contextlib.contextmanager
    def resume(self, state: MutableMapping[Any, Any], step: int | None = None, **options: Any) -> Iterator[int]:
        """``with ckpt.resume(state) as start:`` is ``restore``, and sets the random states again when the block ends.

        For whatever a run does only when it starts again, and draws random numbers for: begin an epoch of a DataLoader
        without state, and skip the batches that were seen. ``start`` is the step, 0 if there is nothing to restore;
        then nothing is set. ``options`` are those of ``restore``.
        """
        found = self.restore(state, step, **options)
        random = self._random
        yield 0 if found is None else found
        if found is not None:
            random.apply()

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

    def wait_copied(self, timeout: float | None = None) -> None:
        """Wait until every checkpoint that is due on a lower tier is there. TimeoutError names what is left."""
        self._session.wait_copied(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait until everything in flight is committed and copied, then stop.

        Raises if the newest step was not committed, or if a checkpoint is not on a lower tier yet: it stays, and the
        next run copies it. A tier that makes no progress for ``copy_timeout`` is not waited for.
        Earlier steps that failed are in the log and in ``failures``. What ``save`` returned a snapshot for is
        committed, or named in the error: after ``timeout`` seconds it is given up.
        A ``save`` that comes too late raises ClosedError. A second call waits for the first, and has nothing to report.
        """
        if self._best is not None and self._saved and not self._metric_seen and not self._session.closed:
            logger.warning("keep_best: no step that was saved has '%s' in its metadata", self._best.metric)
        try:
            self._last.save()
        finally:
            self._finalizer.detach()
            try:
                self._session.close(timeout)
            finally:
                if self._signals is not None:
                    self._signals.closed(sys.exc_info()[0] is not None)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, oldest first."""
        self._session.check_open()
        return [version.step for version in self._session.engine.versions()]

    def latest_step(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def pin(self, step: int) -> None:
        """Keep this checkpoint whatever ``keep`` says. One in flight is pinned from the moment it is committed."""
        self._session.check_open()
        self._session.engine.pin(whole("step", step, least=0))

    def delete(self, step: int) -> None:
        """Delete this checkpoint on every tier. One that is out of reach follows later, perhaps in another run."""
        self._session.check_open()
        self._session.engine.remove(whole("step", step, least=0))

    @property
    def failures(self) -> list[Failure]:
        """Steps that ``save`` accepted and that are not checkpointed, oldest first, each with its error."""
        self._session.check_owner()
        return self._session.failures

    @property
    def tiers(self) -> list[_core.TierStatus]:
        """How the copies to each lower tier go: what waits, what was skipped, the last error."""
        self._session.check_owner()
        return self._session.engine.tiers()

    @property
    def stats(self) -> _core.EngineStats:
        """Totals, and what the engine runs on."""
        self._session.check_owner()
        return self._session.engine.stats()

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], **options: Any) -> Checkpointer:
        """Make one as an options file says (JSON; docs/tiers.md). ``options`` replace what is in the file."""
        return cls(**{**read_options_file(file, inspect.signature(cls).parameters), **options})

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if kind is None:
            self.close()
            return
        self._session.keep_memory()  # a crash: the next start goes on from memory
        self._last.forget()  # the state may be half updated
        try:  # what is in flight is still committed, but the exception of the block is the one to raise
            self.close()
        except Exception as closing:
            logger.error("closing the checkpointer: %s", closing)

    def __repr__(self) -> str:
        return f"<slackwater.Checkpointer {self.path!r}{' closed' if self._session.closed else ''}>"
