"""CheckpointIO of Lightning: ``SlackwaterCheckpointIO`` writes what Lightning hands it into a directory of Slackwater.

Each path becomes a directory that has one checkpoint: checksummed, committed atomically, without pickle. A file that
torch wrote is still read. Lightning hands over state dicts, whose tensors the next batch may change. So
``save_checkpoint`` returns when everything is committed. ``SlackwaterCallback`` does not make training wait.

``RunIO`` is the one inside the callback. It knows the name "slackwater", and leaves the rest to the plugin that the
trainer had.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.fabric.utilities.apply_func import apply_to_collection

from ..checkpointer import Checkpointer
from ..errors import MismatchError
from ..reader import load
from ..state import names
from .files import sync_directory
from .trainer_shared import asked_step, is_resume_name, local_path

_NEW = ".slackwater-new"  # at the end of a name: written here first, because something else has the name
_OLD = ".slackwater-old"


class SlackwaterCheckpointIO(CheckpointIO):
    """``L.Trainer(plugins=[SlackwaterCheckpointIO()])``. ``options`` are those of ``sw.Checkpointer``.

    Any thread may use it: ``AsyncCheckpointIO`` saves in one of its own, while another removes.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._changing = threading.Lock()  # a directory is not removed while it is written
        self._files = TorchCheckpointIO()

    def __reduce__(self) -> tuple[Any, ...]:  # for ddp_spawn: a lock cannot be pickled
        return _remake, (type(self), self._options)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """``storage_options``: a dict of options of ``sw.Checkpointer``, for this checkpoint."""
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise TypeError(
                f"storage_options is of type {type(storage_options).__name__}; for Slackwater it is a dict of options "
                "of sw.Checkpointer, such as {'pool': '64MiB'}"
            )
        path = local_path(path, "this plugin writes directories; SlackwaterCallback('s3://bucket/run') takes a store")
        # Lightning calls this on rank 0 only. A checkpoint that is there already goes once the new one is committed.
        options = {"rank": 0, "world": 1, **self._options, **(storage_options or {}), "keep": 1}
        with self._changing, _in_place_of(path) as where, Checkpointer(where, **options) as checkpointer:
            latest = checkpointer.latest_step()
            step = checkpoint.get("global_step", 0)
            step = step if isinstance(step, int) and (latest is None or step > latest) else (latest or 0) + 1
            checkpointer.save(step, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if not is_checkpoint_directory(path):
            options = {} if map_location is None else {"map_location": map_location}
            return self._files.load_checkpoint(path, weights_only=weights_only, **options)
        found = load(path, allow_pickle=bool(self._options.get("allow_pickle", False)) and not weights_only)
        found = to_checkpoint(found) if "lightning" in found else found
        return found if map_location is None else _mapped(found, map_location)

    def remove_checkpoint(self, path: Any) -> None:
        with self._changing:
            if os.path.islink(path):  # such as last.ckpt; what it points to stays
                os.unlink(path)
            elif is_checkpoint_directory(path):
                shutil.rmtree(path)
            else:
                self._files.remove_checkpoint(path)


@contextlib.contextmanager
def _in_place_of(path: str) -> Iterator[str]:
    """Where to write the checkpoint of ``path``. A directory of ours replaces its own versions. A file of torch stays
    until the new checkpoint is committed, and so does a link (``save_last="link"``): written through, it would replace
    the checkpoint that it points to."""
    if not os.path.islink(path) and not os.path.isfile(path):
        yield path
        return
    new, old = path + _NEW, path + _OLD
    if os.path.isdir(new):
        shutil.rmtree(new)  # of a run that was killed
    yield new
    os.replace(path, old)
    os.rename(new, path)
    sync_directory(os.path.dirname(path))
    os.unlink(old)


def _remake(kind: type[SlackwaterCheckpointIO], options: dict[str, Any]) -> SlackwaterCheckpointIO:
    return kind(**options)


class RunIO(CheckpointIO):
    """Owned by a SlackwaterCallback, from ``setup`` to ``teardown``."""

    def __init__(self, callback: Any, base: CheckpointIO) -> None:
        self._callback = callback
        self.base = base

    def remove(self, strategy: Any) -> None:
        """Takes it out of the chain. Another callback may have put its own around it."""
        io, outer = strategy._checkpoint_io, None
        while isinstance(io, RunIO) and io is not self:
            io, outer = io.base, io
        if io is self:
            if outer is None:
                strategy.checkpoint_io = self.base
            else:
                outer.base = self.base

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.base.save_checkpoint(checkpoint, path, storage_options=storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if is_resume_name(path) and isinstance(self.base, RunIO):
            return self.base.load_checkpoint(path, map_location, weights_only)  # the first callback's
        if is_resume_name(path):
            found = self._callback.load(asked_step(path))
        elif path == self._callback.path or _same_path(path, self._callback.path):
            found = self._callback.load(None)
        elif is_checkpoint_directory(path):
            plugin = SlackwaterCheckpointIO(allow_pickle=self._callback.allow_pickle)
            return plugin.load_checkpoint(path, map_location, weights_only)
        else:
            options = {} if map_location is None else {"map_location": map_location}
            return self.base.load_checkpoint(path, weights_only=weights_only, **options)
        return found if map_location is None or not found else _mapped(found, map_location)

    def remove_checkpoint(self, path: Any) -> None:
        self.base.remove_checkpoint(path)

    def teardown(self) -> None:
        self.base.teardown()


class Nothing(dict[str, Any]):
    """A checkpoint that Lightning restores nothing from: it asks whether it is there."""

    def __init__(self) -> None:
        super().__init__({"pytorch-lightning_version": pl.__version__})

    def __bool__(self) -> bool:
        return False


def own_keys(module: Any) -> dict[str, str]:
    """The keys of a module's state_dict(), by what they are called without wrappers."""
    keys = list(module.state_dict())
    return dict(zip(names.canonical(keys), keys, strict=True))


def to_checkpoint(state: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The dict that Lightning would have saved, from what SlackwaterCallback saved."""
    if not isinstance(state.get("lightning"), dict):
        raise MismatchError("the checkpoint was not saved by SlackwaterCallback")
    found = list(state["module"])
    called = [(keys or {}).get(name, key) for name, key in zip(names.canonical(found), found, strict=True)]
    weights = {key: state["module"][old] for key, old in zip(called, found, strict=True)}
    optimizers = []
    while (name := f"optimizer_{len(optimizers)}") in state:
        optimizers.append(state[name])
    return {**state["lightning"], "state_dict": weights, "optimizer_states": optimizers}


def _same_path(one: Any, other: str) -> bool:
    return os.path.realpath(os.path.expanduser(one)) == os.path.realpath(other)


def is_checkpoint_directory(path: Any) -> bool:
    return os.path.isdir(os.path.join(os.path.expanduser(os.fspath(path)), ".slackwater"))


def _mapped(checkpoint: dict[str, Any], map_location: Any) -> dict[str, Any]:
    """``map_location`` as torch.load takes it. Everything was read into host memory."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        where = map_location
        if isinstance(where, Mapping):
            where = where.get("cpu", "cpu")
        elif callable(where):
            storage = where(tensor.untyped_storage(), "cpu")
            where = "cpu" if storage is None else storage.device
        return tensor.to(where)

    mapped: dict[str, Any] = apply_to_collection(checkpoint, torch.Tensor, move)
    return mapped
