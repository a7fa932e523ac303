"""CheckpointEngine: what DeepSpeed calls.

DeepSpeed calls ``save`` once per file, and never says that a checkpoint is complete. So this engine finds out: the next
step of an optimizer, the next save, or ``wait()`` closes a tag on this rank. ``checkpoint_calls`` tells whether all its
files were handed over. A hook before every optimizer step also fences: tensors are copied beside the next forward and
backward pass, and never after the update.

Thread rule: ``save``, ``load`` and ``wait`` belong to the trainer's thread.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import AbortedError, ClosedError, Error, TimeoutError, UnsupportedError, UsageError
from ...lifecycle import EXIT_SECONDS
from ..fence_hooks import register_step_hook
from ..files import sync_directory
from . import checkpoint_calls, loading
from .board import Board, next_key
from .finisher import FileJob, Finisher, Tag
from .objects import to_plain, with_buffers_copied
from .settings import Settings
from .spool import Spool
from .tag_directory import TagDirectory

logger = logging.getLogger("slackwater")

_STATES = "_states.pt"  # how the names of DeepSpeed's checkpoint files end
_VALUE = "__deepspeed_value__"  # stands around a state that is no dict, or an empty one


class CheckpointEngine:
    """``"datastates_ckpt"`` in the config of DeepSpeed makes one per rank. docs/integrations/deepspeed.md."""

    def __init__(self, deepspeed_config: Any = None, rank: int = 0) -> None:
        checkpoint_calls.wrap(_writer_of, _settle_all)
        self._writer = _Writer(Settings(deepspeed_config), int(rank))
        self._finalizer = weakref.finalize(self, self._writer.close_quietly)
        self._finalizer.atexit = False  # _at_exit() does that

    def save(self, state_dict: Any, path: str | os.PathLike[str]) -> None:
        """Capture ``state_dict`` and return. The bytes follow in the background.

        The tensors must not change before the next optimizer step, which waits for them by itself. Trouble with the
        storage does not raise here: it is logged, and ``wait(persist=True)`` raises it.
        """
        self._writer.save(state_dict, os.fspath(path))

    def load(self, path: str | os.PathLike[str], map_location: Any = None) -> Any:
        """The state dict saved under ``path``, by this process or another one. Every byte is verified."""
        return self._writer.load(os.fspath(path), map_location)

    def wait(self, persist: bool = False) -> None:
        """Return when tensors may change again. ``persist``: when everything is complete on storage, on all ranks.

        Raises, if ``persist``, the first error that was not reported yet.
        """
        self._writer.wait(bool(persist))

    def commit(self, tag: Any = None) -> bool:
        """For clients that call it. Tags are committed without it."""
        self._writer.wait(False)
        return True

    def close(self) -> None:
        """Wait for everything, and stop. Raises like ``wait``. DeepSpeed need not call it."""
        self._writer.close(None)


class _Writer:
    """All that an engine owns. It has no reference back to the engine, so that dropping the engine closes it."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._board = Board(rank, _world())
        self._finisher = Finisher(self._board, settings)
        self._spool: Spool | None = None
        self._tag: Tag | None = None  # open: files may still come
        self._closed = False
        self.optimizer_steps = 0
        self._remove_hook: Callable[[], None] | None = None
        if settings.at_once_because is not None:
            logger.info("save() copies all tensors at once, because %s", settings.at_once_because)
        _open.add(self)

    # Saving

    def save(self, state: Any, path: str) -> None:
        self._check_usable()
        folder, file = os.path.split(path)
        if not file.endswith(_STATES):
            _save_plain_file(state, path)
            return
        tag = self._tag_of(folder)
        if file in tag.files:
            raise UsageError(f"'{path}' is saved twice in one checkpoint")
        tag.files.add(file)
        try:
            self._save_file(tag, file, state)
        except (UsageError, UnsupportedError) as error:
            tag.fail(error)
            raise
        except (Error, OSError) as error:  # storage: training goes on without this checkpoint
            logger.error("'%s' cannot be saved: %s", path, error)
            tag.fail(error)

    def _save_file(self, tag: Tag, file: str, state: Any) -> None:
        spool = self._spool_in(tag.directory.save_dir)
        version_id = secrets.token_hex(16)
        metadata: dict[str, Any] = {
            "deepspeed_tag": tag.directory.tag,
            "deepspeed_file": file,
            "deepspeed_id": version_id,
            "deepspeed_rank": self._board.rank,
        }
        plain = to_plain(with_buffers_copied(state))
        if not isinstance(plain, Mapping) or not plain:
            plain = {_VALUE: plain}
        snapshot = spool.save(file, plain, metadata)
        if self._settings.at_once_because is not None:
            snapshot.fence(host=True)
        self._finisher.add_file(FileJob(tag, file, snapshot, spool, version_id))

    def _tag_of(self, folder: str) -> Tag:
        """The open tag, if the file belongs to it; otherwise a new one."""
        path = os.path.abspath(folder)
        if self._tag is not None and self._tag.directory.path == path:
            return self._tag
        return self._open_tag(folder)

    def _open_tag(self, folder: str, *, by_all: bool = False) -> Tag:
        self.close_tag()
        self._tag = tag = Tag(TagDirectory(os.path.abspath(folder)), next_key(folder), by_all=by_all)
        tag.exceptions_before = _exceptions()
        if self._remove_hook is None:
            self._remove_hook = register_step_hook(self)
        try:
            self._board.announce(tag.key)
        except Error as error:
            if by_all:  # rank 0 waits for this rank in any case, and the finisher has another connection
                logger.warning("checkpoint '%s': %s", tag.directory.tag, error)
            else:
                tag.fail(error)
        return tag

    def begin_tag(self, folder: str, save_latest: bool) -> Tag | None:
        """DeepSpeed's ``save_checkpoint`` begins, on all ranks."""
        if self._closed or self._pid != os.getpid():
            return None
        tag = self._open_tag(folder, by_all=True)
        tag.save_latest = save_latest
        return tag

    def end_tag(self, tag: Tag | None, error: BaseException | None) -> None:
        if tag is None:
            return
        tag.whole = error is None
        if error is not None:
            tag.fail(AbortedError(f"save_checkpoint() ended with {type(error).__name__}: {error}"))

    def _spool_in(self, save_dir: str) -> Spool:
        if self._spool is not None and self._spool.save_dir != save_dir:
            # Another directory may be on another file system. Two pools at the same time would be too much memory.
            self._finisher.drain(None)
            spool, self._spool = self._spool, None
            spool.close(None)
        if self._spool is None:
            self._spool = Spool(save_dir, self._board.rank, self._settings.options)
        return self._spool

    # Closing a tag

    def fence_quietly(self) -> None:
        """Before every optimizer step. The fence itself is the session's; its hook is registered with it."""
        if self._pid == os.getpid():
            self.close_tag()

    def close_tag(self, sure: bool = True) -> None:
        tag, self._tag = self._tag, None
        if tag is None:
            return
        new = [error for error in _exceptions() if not any(error is known for known in tag.exceptions_before)]
        if new and not tag.whole:  # files may be missing
            tag.fail(ClosedError("the program ended with an exception before it was complete"))
        tag.exceptions_before.clear()  # their frames hold on to much
        tag.sure = sure or tag.whole
        self._finisher.close_tag(tag)

    # Waiting

    def wait(self, persist: bool) -> None:
        if self._pid != os.getpid() or self._closed:
            return
        self.close_tag(sure=False)
        if self._spool is not None:
            self._spool.session.fence(host=True)
        if persist:
            self._finisher.drain(None)
            self._raise_error()

    def drain(self) -> None:
        if self._pid == os.getpid() and not self._closed:
            self._finisher.drain(None)

    def _raise_error(self) -> None:
        error = self._finisher.take_error()
        if error is not None:
            raise error

    def load(self, path: str, map_location: Any) -> Any:
        self._check_usable()
        self.close_tag()
        self._finisher.drain(None)  # it may be on its way
        state = loading.load_file(path, map_location, allow_pickle=self._settings.allow_pickle)
        return state[_VALUE] if isinstance(state, dict) and list(state) == [_VALUE] else state

    # The end

    def close(self, timeout: float | None) -> None:
        _open.discard(self)
        if self._closed or self._pid != os.getpid():
            return
        self.close_tag(sure=False)
        in_time = self._finisher.drain(timeout)
        self._closed = True
        if self._remove_hook is not None:
            self._remove_hook()
        self._finisher.stop(timeout if in_time else 0)
        if self._spool is not None:
            self._spool.close(timeout if in_time else 0)
        if not in_time:
            raise TimeoutError(f"the last checkpoint was not complete within {timeout:.0f} s, and is given up")
        self._raise_error()

    def close_quietly(self, timeout: float | None = None) -> None:
        try:
            self.close(timeout)
        except Exception as error:
            logger.error("closing the checkpoint engine of DeepSpeed: %s", error)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError("this checkpoint engine belongs to the parent process")
        if self._closed:
            raise ClosedError("this checkpoint engine is closed")


_open: weakref.WeakSet[_Writer] = weakref.WeakSet()


@atexit.register  # runs before lifecycle.py ends the sessions, because it was registered later
def _at_exit() -> None:
    for writer in list(_open):
        writer.close_quietly(EXIT_SECONDS)


def _writer_of(deepspeed_engine: Any) -> _Writer | None:
    ours = getattr(getattr(deepspeed_engine, "checkpoint_engine", None), "ckpt_engine", None)
    return ours._writer if isinstance(ours, CheckpointEngine) else None


def _settle_all() -> None:
    """Everything of this rank that is in flight is complete, or given up: its log, and ``wait``, say which."""
    writers = list(_open)
    for writer in writers:  # all first: each waits for other ranks, which may wait for the others of this one
        writer.fence_quietly()
    for writer in writers:
        writer.drain()


def _exceptions() -> list[BaseException]:
    """What ended the program, and what is being handled right here."""
    return [error for error in (getattr(sys, "last_value", None), sys.exc_info()[1]) if error is not None]


def _world() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


def _save_plain_file(state: Any, path: str) -> None:
    """A file that DeepSpeed never loads again, such as that of ``save_16bit_model``: others read it with torch.load."""
    import torch

    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_directory(os.path.dirname(path) or ".")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
