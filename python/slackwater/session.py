"""Session: all that a Checkpointer owns (engine, settler thread, snapshots in flight), without a reference back to it.

Thread rule: save and restore belong to one thread. Fences and close may be called from any thread. A signal handler may
call close in the middle of any other call. The settler thread settles snapshots whose fence has not come yet, and
passes the engine's log lines to Python's logging. Engine threads never take the GIL.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _core, lifecycle
from .errors import ClosedError, Error, TimeoutError
from .in_flight import Failure, InFlight
from .integrations.fence_hooks import FencedMethods, register_step_hook
from .integrations.streams import producers, stream_pairs
from .ranks.sharding import RankInfo
from .ranks.transport import StoreThread
from .settler import Settler
from .snapshot import Level, Snapshot
from .state.capture import Capturer
from .tiers import Tier
from .watch import SaveWatch

logger = logging.getLogger("slackwater")


class Session:
    def __init__(
        self,
        path: str,
        settings: dict[str, str],
        *,
        allow_pickle: bool,
        raise_errors: bool,
        stall_timeout: float,
        store: Any = None,
        tiers: Sequence[Tier] = (),
    ) -> None:
        self.ownership = lifecycle.Ownership(stall_timeout)
        self.path = path
        self.made_at = lifecycle.caller()
        self.closed = False
        self.closed_because = "this checkpointer is closed; make a new one to go on saving"
        self.optimizer_steps = 0  # seen by the hook so far
        self.mailbox = _core.Mailbox()
        self._store = None if store is None else StoreThread(store)  # the ranks talk through it
        relay = None if self._store is None else self._store.relay
        below = [tier.settings() for tier in tiers]
        self.engine = _core.Engine.open(list(settings.items()), path, self.mailbox, relay, below)
        if self._store is not None:
            self._store.start()
        self.methods = FencedMethods()
        self._capturer = Capturer(allow_pickle, int(settings.get("rank", 0)), int(settings.get("world", 1)))
        self._watch = SaveWatch()
        self._raise_errors = raise_errors
        self._arriving: Snapshot | None = None  # the engine is accepting it now; only the saving thread changes it
        self._in_flight = InFlight()
        self._remove_hook: Callable[[], None] | None = None
        self._draining = threading.Lock()
        self._closing = threading.RLock()  # held by close(); a signal handler may call it again on the same thread
        self._settler = Settler(self.mailbox, self._settle_in_background)
        lifecycle.register(self)
        # Now, not at the first save: a CUDA graph may capture an optimizer step before that.
        self.watch_optimizers(sys.modules.get("torch") is not None)
        self.drain_log()

    @property
    def rank_info(self) -> RankInfo:
        return self._capturer.rank_info

    # Saving

    def save(
        self,
        step: int,
        state: Any,
        metadata: dict[str, str],
        after: Iterable[Any] | None = None,
        *,
        metrics: dict[str, float] | None = None,
        pin: bool = False,
        never_skip: bool = False,
        capturer: Capturer | None = None,
    ) -> Snapshot | None:
        """``capturer``: for a caller whose states take turns, each with one of its own."""
        self.check_open()
        self._join_in_flight(self._arriving)  # a snapshot whose save() was interrupted
        failed = self._in_flight.forget_finished()
        if failed is not None and self._raise_errors:
            raise failed
        if not self._settler.started:
            self.fence()  # nobody else settles the snapshots in flight, and the engine may wait for that
        start = time.perf_counter()
        named = None if after is None else stream_pairs(after)
        capture = (capturer or self._capturer).capture(state, compute=named is None)
        flatten_seconds = time.perf_counter() - start - capture.user_seconds
        self.watch_optimizers(capture.has_torch)
        self.methods.wrap_mode_switches(self, capture.optimizers)
        streams = producers(capture.devices, capture.lent, named)
        snapshot = Snapshot([], capture, self.ownership, flatten_seconds)
        arrived, self._arriving = snapshot._arrived, snapshot
        try:
            self.engine.save(
                step,
                capture.structure,
                capture.addresses,
                capture.tree,
                metadata,
                capture.held,
                arrived,
                streams,
                metrics or {},
                pin,
                never_skip,
                capture.values,
                capture.replicated,
                reading=capture.reading,
            )
        finally:  # also after Ctrl-C: a snapshot that the engine accepted must be settled
            snapshot._save_seconds = time.perf_counter() - start
            self._join_in_flight(snapshot)
            self._arriving = None
            if self.closed:  # close() was called during this save
                self._remove_step_hook()
                self._in_flight.settle_all()  # close() may wait for this step, and the settler may be gone
        self.drain_log()
        self._watch.check(step, state, capture.optimizers, self.optimizer_steps)
        return snapshot if snapshot._arrived else None

    def prepare(self, state: Any, *, wait: bool) -> None:
        self.check_open()
        # compute=False: nothing is packed on a device only to learn its size.
        capture = self._capturer.capture(state, compute=False)
        self.engine.prepare(capture.structure, capture.addresses, capture.tree, capture.reading)
        if wait:
            self.engine.wait_prepared()
        self.drain_log()

    def watch_optimizers(self, has_torch: bool) -> None:
        """From now on, fence before every optimizer step, and count the steps."""
        if has_torch and self._remove_hook is None:
            self._remove_hook = register_step_hook(self)

    def may_save(self) -> bool:
        """False in a signal handler that interrupted a save."""
        return self._arriving is None

    def _join_in_flight(self, snapshot: Snapshot | None) -> None:
        """Adds a snapshot that the engine has accepted to those in flight.

        Called by save(), and by close(), which a signal handler may call before save() gets here. It may be interrupted
        at any point and called again, and may run on two threads at the same time. A snapshot that the engine is still
        accepting on another thread is left to save().
        """
        if snapshot is None or not snapshot._arrived:
            return
        self._in_flight.add(snapshot)
        self._settler.wake()

    def forget_failures(self) -> None:
        """Keeps the next save() from raising the failures so far."""
        self._in_flight.forget_finished()

    @property
    def failures(self) -> list[Failure]:
        return self._in_flight.failures

    # Fences

    def fence(self, streams: Iterable[Any] | None = None, *, host: bool = False) -> None:
        chosen = None if streams is None else stream_pairs(streams)
        self._in_flight.fence_each(lambda snapshot: snapshot.fence(chosen, host=host))

    def fence_quietly(self) -> None:
        """For hooks: never raises, so that training goes on."""
        if self.ownership.disowned or self._in_flight.all_settled:
            return
        try:
            self._in_flight.fence_each(Snapshot._fence_step)
        except Exception:
            logger.exception("the fence failed; the snapshots in flight may be lost, training goes on")

    # Waiting

    def wait(self, level: Level, timeout: float | None) -> None:
        self.check_open()
        left = self._in_flight.wait(level, timeout)
        self.drain_log()
        self.engine.wait(level, left)  # does not wait any more; raises an error that was not reported yet

    def wait_copied(self, timeout: float | None) -> None:
        self.check_open()
        left = self._in_flight.wait("committed", timeout)
        self.drain_log()
        self.engine.wait_copied(left)

    # Closing

    def close(self, timeout: float | None) -> None:
        """The first call closes. Other calls wait until it has ended, and report nothing."""
        if self.ownership.disowned:
            return
        if self._settler.is_this_thread():
            if not self._closing.acquire(blocking=False):
                return  # the thread that closes waits for this one
        elif not self._closing.acquire(timeout=_lock_timeout(timeout)):
            raise TimeoutError("another thread is closing this checkpointer, and has not ended yet")
        try:
            if not self.closed:
                self._close(timeout)
        finally:
            self._closing.release()

    def _close(self, timeout: float | None) -> None:
        self._join_in_flight(self._arriving)
        try:
            left = self._in_flight.wait("committed", timeout)
        except TimeoutError:
            left = 0.0
        except BaseException as interrupt:  # Ctrl-C: give up what is in flight
            try:
                self._shut_down(0.0)
            except Error as error:
                interrupt.add_note(f"slackwater: {error}")
            raise
        self._shut_down(left)

    def _shut_down(self, timeout: float | None) -> None:
        self.closed = True
        lifecycle.forget(self)
        self._remove_step_hook()
        self.methods.unwrap_all()
        try:
            self.engine.close(timeout)
        except TimeoutError:
            raise
        except Error as error:
            # A run whose newest step is safe has ended well. Earlier steps that failed are in the log.
            newest = self._in_flight.newest
            if newest is None or newest._core.progress().level != "committed":
                raise
            lost = ", ".join(str(failure.step) for failure in self.failures[-10:])
            what = f"not checkpointed: step {lost} (see Checkpointer.failures)" if lost else str(error)
            logger.warning("closed with step %d committed; %s", newest.step, what)
        finally:
            if self._store is not None:
                self._store.close()
            self._settler.stop()
            self.drain_log()

    def _remove_step_hook(self) -> None:
        remove, self._remove_hook = self._remove_hook, None
        if remove is not None:
            remove()

    def keep_memory(self) -> None:
        """The program ends without close(), perhaps in a crash: a keeper (memory=True) holds on to its memory."""
        if not self.closed and not self.ownership.disowned:
            self.engine.keep_memory()

    def close_quietly(self, timeout: float | None) -> None:
        try:
            self.keep_memory()
            self.close(timeout)
        except Exception as error:
            logger.error("closing the checkpointer: %s", error)

    def take_over(self, by: str) -> None:
        """Close this session, because another one of this process (made in ``by``) takes its directory."""
        self.closed_because = (
            f"this checkpointer of '{self.path}' was taken over (take_over=True) by the one made in {by}; use that one"
        )
        self.close_quietly(None)

    def check_owner(self) -> None:
        if self.ownership.disowned:
            raise ClosedError(
                "this checkpointer belongs to the parent process; a forked child can neither save nor restore with it"
            )

    def check_open(self) -> None:
        self.check_owner()
        if self.closed:
            raise ClosedError(self.closed_because)
        self.drain_log()

    # The settler thread

    def _settle_in_background(self) -> None:
        self._in_flight.settle_all()
        self.drain_log()

    def drain_log(self) -> None:
        """Passes the engine's log lines to logging, and drops objects that it no longer reads, on a Python thread."""
        if not self._draining.acquire(blocking=False):
            return  # the thread that is draining takes all lines
        try:
            while lines := self.mailbox.collect():
                for level, line in lines:
                    logger.log(level, "%s", line)
        finally:
            self._draining.release()


def _lock_timeout(seconds: float | None) -> float:
    """The time-out in the form that ``Lock.acquire`` takes."""
    return -1 if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
