"""Finisher: the thread that moves finished files into their tag, and commits the tag when all ranks are done.

It works in the order of ``save``. A file: wait until its version is committed, move it into the tag, write its stub. A
tag that is closed: sync, report to rank 0; rank 0 waits for the reports of all ranks that take part, writes the tag's
manifest, moves ``latest``, applies ``keep``, and tells the others.

An error gives up the tag, on all ranks. It is logged once, on each rank, and kept for ``wait()``. Training goes on.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from dataclasses import dataclass, field

from ...errors import AbortedError, Error, StorageError
from ...snapshot import Snapshot
from .board import Board
from .settings import Settings
from .spool import Spool
from .stub import stub_bytes
from .tag_directory import Placed, TagDirectory, read_latest, replace_file, tags_of, write_latest

logger = logging.getLogger("slackwater")


@dataclass
class Tag:
    """One save of a tag, on this rank."""

    directory: TagDirectory
    key: str  # on the board
    placed: list[Placed] = field(default_factory=list)
    error: Exception | None = None  # the first
    sure: bool = True  # False: closed at a moment when not all ranks may have announced themselves
    files: set[str] = field(default_factory=set)
    by_all: bool = False  # every rank takes part: DeepSpeed's save_checkpoint() was called
    whole: bool = False  # it has returned, so this rank has handed over all its files
    save_latest: bool = True
    exceptions_before: list[BaseException] = field(default_factory=list)  # when the tag was opened: none, normally

    def fail(self, error: Exception) -> None:
        self.error = self.error or error


@dataclass
class FileJob:
    tag: Tag
    file: str
    snapshot: Snapshot
    spool: Spool
    id: str


class Finisher:
    """Any thread may call ``add_file``, ``close_tag``, ``drain`` and ``take_error``."""

    def __init__(self, board: Board, settings: Settings) -> None:
        self._board = board
        self._settings = settings
        self._jobs: queue.SimpleQueue[FileJob | Tag | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None  # the first that wait() has not reported yet
        self._lock = threading.Lock()
        self._orders: dict[str, int] = {}  # by save_dir: the order of its newest tag
        self._ranks_before: set[int] | None = None  # that took part in the last tag
        self._decided: tuple[str, set[int]] | None = None  # the last tag on the board

    def add_file(self, job: FileJob) -> None:
        self._put(job)

    def close_tag(self, tag: Tag) -> None:
        self._put(tag)

    def drain(self, timeout: float | None) -> bool:
        """Waits for everything that was added. False after ``timeout``."""
        if self._thread is None:
            return True
        reached = threading.Event()
        self._put(reached)
        return reached.wait(timeout)

    def stop(self, timeout: float | None) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout)

    def keep_error(self, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error

    def take_error(self) -> Exception | None:
        with self._lock:
            error, self._error = self._error, None
        return error

    def _put(self, job: FileJob | Tag | threading.Event) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slackwater-deepspeed", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    # The thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
            elif isinstance(job, FileJob):
                try:
                    self._finish_file(job)
                except Exception as error:
                    job.tag.fail(error)
            else:
                self._finish_tag(job)

    def _finish_file(self, job: FileJob) -> None:
        job.snapshot.wait("committed")
        tag, step = job.tag, job.snapshot.step
        if tag.error is not None:
            return
        size_bytes = job.snapshot.stats.total_bytes
        found = Placed(job.file, job.file, step, job.id, self._board.rank, size_bytes)
        tag.placed.append(tag.directory.place(job.spool.version_path(step), job.spool.control, found))
        path = os.path.join(tag.directory.path, job.file)
        replace_file(path, stub_bytes(os.path.abspath(tag.directory.path), job.file, job.id))

    def _finish_tag(self, tag: Tag) -> None:
        try:
            if tag.error is None and tag.placed:
                tag.directory.sync(tag.placed)
        except Exception as error:
            tag.fail(error)
        try:
            why = None if tag.error is None else f"{tag.error}"
            if self._board.rank == 0:
                self._decide(tag)
            else:
                self._board.announce_again(tag.key)
                self._board.report(tag.key, {"files": [list(placed) for placed in tag.placed], "error": why})
                self._obey(tag)
        except Exception as error:
            tag.fail(error)
        if tag.error is not None:
            self._give_up(tag, tag.error)

    def _decide(self, tag: Tag) -> None:
        """Rank 0: all or nothing."""
        ranks: set[int] = set()
        try:
            ranks = self._board.announced(tag.key)
            ranks = self._with_missing(tag, ranks)
            placed = list(tag.placed)
            for rank, report in self._board.reports(tag.key, ranks, self._settings.commit_timeout).items():
                if report["error"] is not None:
                    tag.fail(AbortedError(f"rank {rank} could not write its files: {report['error']}"))
                placed += [Placed(*fields) for fields in report["files"]]
            if not placed:
                tag.fail(AbortedError("no rank has handed over a file of it"))
            if tag.error is None:
                self._commit(tag, placed)
        except Exception as error:
            tag.fail(error)
        why = None if tag.error is None else f"{tag.error}"
        self._board.decide(tag.key, {"error": why})
        if self._decided is not None:
            self._board.forget(*self._decided)
        self._decided = (tag.key, ranks)
        if tag.error is None:
            self._ranks_before = ranks

    def _with_missing(self, tag: Tag, ranks: set[int]) -> set[int]:
        """The ranks that took part, and those that must have: one may not have reached the store to say so.

        Without its files the tag would be torn, so rank 0 waits for its report. A program that ends will not send one.
        """
        expected = self._ranks_before or set()
        if tag.by_all or (self._ranks_before is None and self._settings.every_rank_writes):
            expected = set(range(self._board.world))
        missing = sorted(expected - ranks)
        if missing and not tag.sure:
            raise AbortedError(f"the program ends, and rank {missing[0]} has not saved its files of this checkpoint")
        return ranks | expected

    def _commit(self, tag: Tag, placed: list[Placed]) -> None:
        directory = tag.directory
        if directory.save_dir not in self._orders:
            self._orders[directory.save_dir] = max((found.order for _, found in tags_of(directory.save_dir)), default=0)
        self._orders[directory.save_dir] += 1
        directory.commit(placed, self._board.world, self._orders[directory.save_dir])
        if self._settings.write_latest and tag.save_latest:
            write_latest(directory.save_dir, directory.tag)
        logger.info("checkpoint '%s' is complete in %s: %d files", directory.tag, directory.save_dir, len(placed))
        if self._settings.keep > 0:
            try:
                self._remove_old(directory)
            except OSError as error:
                logger.warning("old checkpoints in %s could not be removed: %s", directory.save_dir, error)

    def _remove_old(self, newest: TagDirectory) -> None:
        found = sorted(tags_of(newest.save_dir), key=lambda entry: entry[1].order, reverse=True)
        latest = read_latest(newest.save_dir)  # not always the newest one: save_checkpoint(save_latest=False)
        for directory, _ in found[self._settings.keep :]:
            if directory.tag not in (newest.tag, latest):
                directory.remove()

    def _obey(self, tag: Tag) -> None:
        # Rank 0 waits this long for the slowest rank, and only then decides.
        decision = self._board.decision(tag.key, 2 * self._settings.commit_timeout)
        if decision["error"] is not None:
            tag.fail(AbortedError(str(decision["error"])))

    def _give_up(self, tag: Tag, error: Exception) -> None:
        text = f"checkpoint '{tag.directory.tag}' in '{tag.directory.save_dir}' was not saved: {error}"
        logger.error("%s", text)
        if isinstance(error, Error):
            reported: Exception = type(error)(text, path=error.path, errno=error.errno, tensor=error.tensor)
        elif isinstance(error, OSError):
            reported = StorageError(text, path=str(error.filename or ""), errno=error.errno or 0)
        else:
            reported = StorageError(text)
        reported.__cause__ = error
        self.keep_error(reported)
        tag.directory.discard(tag.placed)
