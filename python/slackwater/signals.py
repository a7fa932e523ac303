"""SignalSaver: one last committed checkpoint when a scheduler stops the job (``Checkpointer.save_on_signal``).

The signal handler only takes a note. The next ``save()`` is a step boundary: it saves the step whatever ``every`` says,
waits for its commit, and ends the process as the user chose. A thread of its own watches the time: if no ``save()``
comes, the newest committed step is what remains, and it says so.

Several ranks get the signal at different times. The first one writes the number of its step to the job's store, and all
ranks stop at their first later step. In a step the ranks wait for each other, so none can have passed that step
without seeing the number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, Literal

from .errors import Error, UsageError
from .ranks import transport
from .session import Session
from .snapshot import Snapshot

logger = logging.getLogger("slackwater")

Then = Literal["signal", "exit", "return"]
_KEY = "slackwater/stop"
_NO_STEP = "none yet"
_NOTHING = "no checkpoint has been committed"
_LEAST_SECONDS = 0.1


def save_on_signal(session: Session, number: int, within: float, then: Then) -> SignalSaver:
    """Makes the saver of a session, with a client of the job's store if there are several ranks."""
    session.check_open()
    if session.rank_info.world == 1:
        return SignalSaver(session, number, within, then, None)
    distributed = transport.distributed()
    store = None if distributed is None else transport.private_client(distributed)
    if store is None:
        raise UsageError(
            "save_on_signal() with several ranks needs the store of torch.distributed, by which they agree on the last "
            "step; call init_process_group() first"
        )
    return SignalSaver(session, number, within, then, store)


class SignalSaver:
    """One for each checkpointer and signal. ``due`` and ``after_save`` belong to the thread that saves."""

    def __init__(self, session: Session, number: int, within: float, then: Then, store: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("save_on_signal() must be called on the main thread, because Python runs handlers there")
        if then not in ("signal", "exit", "return"):
            raise UsageError(f"then is {then!r}; it is 'signal', 'exit' or 'return'")
        if not within > 0:
            raise UsageError(f"within is {within!r}; it is the number of seconds that the scheduler gives")
        self.requested = False
        self._session = session
        self._number = signal.Signals(number)
        self._within = within
        self._then = then
        self._store = store
        self._pid = os.getpid()
        self._deadline = 0.0
        self._own_step: int | None = None  # at which this rank told the others
        self._stop_after: int | None = None  # all ranks stop at their first step after this one
        self._ended = False
        self._leaving = False  # the watcher wants the main thread to end the program
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()  # a handler may put, whatever it has interrupted
        self._previous = signal.getsignal(self._number)
        self._watcher = threading.Thread(target=self._watch, name="slackwater-signal", daemon=True)
        self._watcher.start()
        signal.signal(self._number, self._handle)

    # The signal

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:  # a forked worker: it ends as it would without us
            self._restore_handler()
            os.kill(os.getpid(), number)
            return
        if self._leaving:
            self._leave()
        if self.requested:
            return  # torchrun sends it too
        self._deadline = time.monotonic() + self._within
        self.requested = True
        self._events.put("signal")

    def _restore_handler(self) -> None:
        if signal.getsignal(self._number) == self._handle:
            signal.signal(self._number, signal.SIG_DFL if self._previous is None else self._previous)

    def _seconds_left(self) -> float:
        return max(_LEAST_SECONDS, self._deadline - time.monotonic())

    @property
    def stopped(self) -> bool:
        """A loop that asks between the signal and the next save must not end: that save is the last one."""
        return self.requested and self._ended

    # Saves

    def due(self, step: int) -> bool:
        """Whether this step is the last one, which is saved whatever ``every`` says."""
        last = not self._ended and self._is_last(step)
        if last:
            self._session.forget_failures()  # on_error="raise" must not keep it from being saved
        return last

    def _is_last(self, step: int) -> bool:
        if self._store is None:
            return self.requested
        with contextlib.suppress(Exception):  # the store is gone: each rank is on its own
            if self.requested and self._own_step is None:
                self._own_step = step
                self._stop_after = int(self._store.compare_set(_KEY, "", str(step)))  # the first rank's step holds
            elif self._stop_after is None:
                found = self._store.compare_set(_KEY, _NO_STEP, _NO_STEP)  # changes nothing
                self._stop_after = None if found == _NO_STEP.encode() else int(found)
        return self._stop_after is not None and step > self._stop_after

    def after_save(self, snapshot: Snapshot | None, due: bool) -> None:
        """Waits for the commit of the last step, and ends the process as the user chose."""
        came_meanwhile = self._store is None and self.requested and not self._ended
        if snapshot is None or not (due or came_meanwhile):
            return
        if not self.requested:  # another rank got the signal
            self._deadline = time.monotonic() + self._within
            self.requested = True
        self._ended = True
        try:
            snapshot.wait("committed", self._seconds_left())
            logger.info("%s: step %d is committed", self._number.name, snapshot.step)
        except Error as error:
            self._tell(f"step {snapshot.step} was not committed ({error})")
        self._events.put("done")
        self._end()

    # The end

    def closed(self, by_exception: bool) -> None:
        """The checkpointer was closed. A signal that nothing has answered yet ends the program now."""
        pending, self._ended = self.requested and not self._ended, True
        self._events.put("done")
        if not pending or by_exception:
            if os.getpid() == self._pid and threading.current_thread() is threading.main_thread():
                self._restore_handler()
            return
        self._tell("the checkpointer was closed before another step")
        self._end()

    def _newest(self) -> str:
        try:
            versions = self._session.engine.versions()
        except Error:
            return "the committed checkpoints cannot be listed"
        return f"the newest committed checkpoint: step {versions[-1].step}" if versions else _NOTHING

    def _tell(self, what: str) -> None:
        logger.warning("%s: %s; %s", self._number.name, what, self._newest())

    def _end(self) -> None:
        if self._then == "return":
            return
        self._session.close_quietly(self._seconds_left())
        self._leave()

    def _leave(self) -> None:
        """Any thread: the previous handler, or the end of the process, as if we had not been there."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # the signal's own end would lose what is buffered
        on_main = threading.current_thread() is threading.main_thread()
        if self._then == "exit" or self._previous is signal.SIG_IGN:
            if on_main:
                self._restore_handler()
                raise SystemExit(128 + self._number)
            self._leave_on_main()
        elif on_main:
            self._restore_handler()
            os.kill(self._pid, self._number)
        elif self._previous in (signal.SIG_DFL, None):
            # Only the main thread may set handlers, and it may be stuck in a kernel or a collective.
            _die_by(self._number)
        else:
            self._leave_on_main()

    def _leave_on_main(self) -> None:
        self._leaving = True
        os.kill(self._pid, self._number)

    # The watcher

    def _watch(self) -> None:
        if self._events.get() != "signal":
            return
        logger.warning(
            "%s: the next save() is the last one; %.0f s are left for it", self._number.name, self._seconds_left()
        )
        try:
            while self._events.get(timeout=self._seconds_left()) != "done":
                pass
        except queue.Empty:
            if self._ended:
                return  # save() is ending it
            self._ended = True
            self._tell(f"no save() came within {self._within:.0f} s")
            if self._then != "return":
                self._leave()


def _die_by(number: signal.Signals) -> None:
    """Ends this process by a signal whose handler another thread has set: in C, because Python would refuse."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.signal(int(number), None)  # SIG_DFL
    os.kill(os.getpid(), number)
