"""Ways to take a checkpoint, behind one small interface, so that one training loop can compare them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import slackwater as sw
import torch
import torch.distributed.checkpoint as dcp


class Way:
    """save() after the update, fence() before the next; finish() waits, and tells how long each took to be durable."""

    name = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._durable: list[float] = []

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def save(self, step: int, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def fence(self) -> None:
        pass

    def finish(self) -> list[float]:
        durable, self._durable = self._durable, []
        return durable


class NoCheckpoint(Way):
    name = "without"

    def __init__(self) -> None:
        super().__init__(Path())

    def save(self, step: int, state: dict[str, Any]) -> None:
        pass


class Slackwater(Way):
    name = "slackwater"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._checkpointer = sw.Checkpointer(directory / "run", keep=1)
        self._snapshots: list[sw.Snapshot] = []

    def __exit__(self, *exception: object) -> None:
        self._checkpointer.close()

    def save(self, step: int, state: dict[str, Any]) -> None:
        self._snapshots.append(self._checkpointer.save(step, state))

    def fence(self) -> None:
        self._checkpointer.fence()

    def finish(self) -> list[float]:
        self._checkpointer.wait("committed")
        self._durable = [_durable_seconds(snapshot.stats) for snapshot in self._snapshots]
        self._snapshots.clear()
        return super().finish()


def _durable_seconds(stats: sw.SnapshotStats) -> float:
    """From the start of the call in Python; the engine's clock starts once it has looked at the state."""
    return stats.state_dict_seconds + stats.flatten_seconds + stats.durable_seconds


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() for name, value in state.items()}


class TorchSave(Way):
    """torch.save with fsync; the file before goes once the new one is down."""

    name = "torch.save"

    def save(self, step: int, state: dict[str, Any]) -> None:
        started = time.perf_counter()
        path = self.directory / f"step-{step}.pt"
        with open(path, "xb") as file:
            torch.save(_plain(state), file)
            file.flush()
            os.fsync(file.fileno())
        self._durable.append(time.perf_counter() - started)
        for other in self.directory.glob("step-*.pt"):
            if other != path:
                other.unlink()


class AsyncSave(Way):
    """torch.distributed.checkpoint.async_save, one at a time as it requires, with its file writer that syncs."""

    name = "DCP async_save"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._future: Any = None
        self._done = threading.Event()

    def __exit__(self, *exception: object) -> None:
        self._wait()

    def save(self, step: int, state: dict[str, Any]) -> None:
        self._wait()
        started = time.perf_counter()
        path = self.directory / f"step-{step}"
        self._done.clear()
        writer = dcp.FileSystemWriter(path, sync_files=True)
        self._future = dcp.async_save(_plain(state), storage_writer=writer, no_dist=True)
        self._future.add_done_callback(lambda _: self._finished(path, started))

    def finish(self) -> list[float]:
        self._wait()
        return super().finish()

    def _finished(self, path: Path, started: float) -> None:
        self._durable.append(time.perf_counter() - started)
        for other in self.directory.glob("step-*"):
            if other != path:
                shutil.rmtree(other)
        self._done.set()

    def _wait(self) -> None:
        if self._future is not None:
            self._future.result()
            self._done.wait()
            self._future = None
