"""SlackwaterWriter: DCP's ``StorageWriter``.

The calls of one save, and what they do here:

  set_up_storage_writer  all ranks     a new save begins on this thread
  prepare_global_plan    coordinator   locks the directory, claims an attempt, makes the version's directory
  write_data             all ranks     one part each: through the pool, written, synced, recorded
  finish                 coordinator   the part of rank 0 (tree, DCP's metadata), the index, and then the manifest

DCP's coordinator gathers the ranks' results already, so the engine's ranks do not vote again. A save that fails, on any
rank, never reaches ``finish``: nothing of it is visible, and the next save into the directory removes it.

Thread rule: DCP makes all calls of one save on one thread. Several saves may run on several threads.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import re
import threading
import uuid
import weakref
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ... import _core
from ...errors import AbortedError, UnsupportedError, UsageError
from .. import torch_state
from . import contents, parts, staging

logger = logging.getLogger("slackwater")

_RUN_NAME = "torch.distributed.checkpoint"
_PART = "__slackwater_part__"  # the result that carries a rank's part
_NUMBER = re.compile(r"(\d+)$")
_LARGEST_STEP = (1 << 63) - 1
# Of FileSystemWriter, in its order: accepted, so that one writer can replace the other. The engine has threads and
# syncs of its own.
_OF_FILE_SYSTEM_WRITER = (
    "single_file_per_rank",
    "sync_files",
    "thread_count",
    "per_thread_copy_ahead",
    "cache_staged_state_dict",
    "overwrite",
    "_extensions",
    "serialization_format",
)


class _Save:
    """One save, on its thread. The coordinator holds the lock of the directory from planning to the commit."""

    def __init__(self, root: str, rank: int, stage: staging.Staging | None) -> None:
        self.root = root
        self.rank = rank  # in the version; 0 is the coordinator's own part
        self.staging = stage
        self.coordinator: _core.PartCommitter | None = None
        self.place: _core.PartPlace | None = None  # on the coordinator
        self.replaced = False  # by a later save of this process into the same directory

    def find_place(self, rank: int) -> _core.PartPlace:
        """On disk, because DCP's plan cache may keep back what the coordinator sends along with a plan."""
        place = _core.find_place(self.root, rank)
        if self.replaced or (self.place is not None and self.place.run != place.run):
            raise self.aborted()
        return place

    def aborted(self) -> AbortedError:
        return AbortedError(f"a later save went into '{self.root}', and replaces this one", path=self.root)

    def close(self) -> None:
        self.coordinator = None  # releases the lock
        if _coordinated.get(self.root) is self:
            del _coordinated[self.root]


# Saves of this process that hold the lock of a directory. DCP does not tell a writer that a save has failed on another
# rank. So a save is held only by the thread that made it: its lock goes with the thread.
_coordinated: weakref.WeakValueDictionary[str, _Save] = weakref.WeakValueDictionary()


class SlackwaterWriter(staging.SlackwaterStager, StorageWriter):
    """Saves through Slackwater's pool, its I/O and its atomic commit. ``path`` is one checkpoint, as for
    ``FileSystemWriter``; ``dcp.save(..., checkpoint_id=...)`` replaces it for one save.

    ``overwrite``: False refuses a directory that holds a checkpoint. True replaces it, once the new one is committed.
    ``positional`` are the options of ``FileSystemWriter`` in its order.
    ``allow_pickle``: pickle values that have no exact plain form, instead of refusing them.
    ``options`` are those of the engine: ``pool``, ``slab``, ``copy_threads``, ``io_backend`` and so on.
    """

    def __init__(
        self, path: str | os.PathLike[str], *positional: Any, allow_pickle: bool = False, **options: Any
    ) -> None:
        options = {**_named(positional, options), **options}
        self.path: str | os.PathLike[str] = path
        self.overwrite = bool(options.pop("overwrite", True))
        self.save_id = str(uuid.uuid4())
        self._allow_pickle = bool(allow_pickle)
        self._settings = _settings(options)
        self._local = threading.local()
        self._newest = None

    @property
    def engine(self) -> parts.PartEngine:
        return parts.engine_for(self._settings)

    @property
    def _engine(self) -> parts.PartEngine:  # type: ignore[override]
        return self.engine

    # The interface of StorageWriter

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.save_id = str(uuid.uuid4())
        if checkpoint_id:
            self.path = checkpoint_id
            self._local.path = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._drop_save()
        path = getattr(self._local, "path", None) or self.path
        self._local.path = None
        root = _root(path)
        rank = kwargs.get("rank")
        if rank is None:
            rank = _process_rank()
        if not kwargs.get("use_collectives", True):  # every rank saves a checkpoint of its own
            root = rank_root(root, rank)
            rank = 0
        self._local.save = _Save(root, rank + 1, staging.staging_of_this_save())

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        os.makedirs(os.path.dirname(self._save.root) or ".", exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        save = self._save
        _make_way(save)
        save.coordinator = _core.PartCommitter.open(save.root, _RUN_NAME, self.engine.mailbox)
        _coordinated[save.root] = save
        try:
            if not self.overwrite and save.coordinator.has_version():
                raise UsageError(f"Checkpoint already exists and self.overwrite=False: '{save.root}'")
            save.place = save.coordinator.begin(_step(save.root), len(plans) + 1)
        except BaseException:
            save.close()
            raise
        if len(plans) > 1:
            return plans
        # One process that saves shards alone, with no_dist or without collectives, may not have all of a tensor.
        return [dataclasses.replace(plan, storage_data=_partial(plan)) if plan.usable else plan for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        save = self._save
        stage = save.staging
        try:
            place = save.find_place(save.rank)
            collected = _Collected(plan, planner, self._allow_pickle)
            text = self.engine.write(
                place,
                collected.names,
                collected.tensors,
                collected.shards,
                streams=None if stage is None else stage.streams,
                changed=list if stage is None else stage.changed,
                on_staged=None if stage is None else stage.finish,
            )
        except BaseException as error:
            self._drop_save()
            if save.replaced and not isinstance(error, AbortedError):
                raise save.aborted() from error
            raise
        results = [*collected.results, WriteResult(MetadataIndex(_PART), len(text), text)]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        save = self._save
        try:
            coordinator = save.coordinator
            place = save.find_place(0)
            if coordinator is None:
                raise UsageError("finish() was called without prepare_global_plan(); DCP calls both on the coordinator")
            texts: list[str] = []
            values: dict[str, contents.Value] = {}
            for of_rank in results:
                for result in of_rank:
                    if result.index.fqn == _PART:
                        texts.append(result.storage_data)
                    elif isinstance(result.storage_data, contents.Value):
                        values.setdefault(result.index.fqn, result.storage_data)
                    else:
                        _correct_dtype(metadata, result)
            metadata.storage_meta = self.storage_meta()
            metadata.storage_data = {}
            blob = contents.dump_metadata(metadata, values, self._allow_pickle)
            texts.append(
                self.engine.write(
                    place,
                    [contents.TENSOR],
                    [torch.frombuffer(bytearray(blob), dtype=torch.uint8)],
                    [None],
                    tree=contents.make_tree(metadata, values),
                )
            )
            coordinator.commit(texts)
        finally:
            self._drop_save()
            self.engine.drain_log()

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        return getattr(self._local, "path", None) or self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_local(checkpoint_id)

    # The interface of AsyncStager: see SlackwaterStager

    def stage(self, state_dict: dict[str, Any]) -> staging.Staging:  # type: ignore[override]
        staging.refuse_other_process()
        return self._stage(state_dict)

    def __reduce__(self) -> NoReturn:
        raise UsageError(staging.REFUSED)

    # One save

    @property
    def _save(self) -> _Save:
        save: _Save | None = getattr(self._local, "save", None)
        if save is None:
            raise UsageError("set_up_storage_writer() comes first, on the same thread; dcp.save() calls it")
        return save

    def _drop_save(self) -> None:
        save: _Save | None = getattr(self._local, "save", None)
        self._local.save = None
        if save is not None:
            save.close()


@dataclasses.dataclass(frozen=True)
class _Partial:
    """Tensors of which the only rank has just some boxes. Each of those becomes a tensor of its own."""

    names: frozenset[str]


def _partial(plan: SavePlan) -> _Partial:
    missing: dict[str, int] = {}
    for item in plan.items:
        if item.tensor_data is not None:
            missing.setdefault(item.index.fqn, item.tensor_data.size.numel())
            missing[item.index.fqn] -= torch.Size(item.tensor_data.chunk.sizes).numel()
    return _Partial(frozenset(name for name, count in missing.items() if count != 0))


class _Collected:
    """What a rank writes: its boxes, and its plain values as text."""

    def __init__(self, plan: SavePlan, planner: SavePlanner, allow_pickle: bool) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.shards: list[parts.Shard | None] = []
        self.results: list[WriteResult] = []
        partial = plan.storage_data.names if isinstance(plan.storage_data, _Partial) else frozenset()
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                self._add_value(item, planner, allow_pickle)
            else:
                self._add_tensor(item, planner, item.index.fqn in partial)

    def _add_tensor(self, item: WriteItem, planner: SavePlanner, is_partial: bool) -> None:
        name, data = item.index.fqn, item.tensor_data
        assert data is not None, "DCP plans a tensor without its data"
        tensor = planner.resolve_data(item)
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"the planner gave {type(tensor).__name__} for the tensor '{name}'")
        if tensor.shape != data.chunk.sizes:
            raise UsageError(
                f"'{name}' has the shape {tuple(tensor.shape)}, and the plan says {tuple(data.chunk.sizes)}; a plan "
                "cache may be stale: use SlackwaterSavePlanner"
            )
        if is_partial:
            self._store(box_name(name, data.chunk.offsets, data.chunk.sizes), tensor, None)
        else:
            self._store(name, tensor, parts.box(data.size, data.chunk.offsets))
        size = tensor.numel() * tensor.itemsize
        self.results.append(WriteResult(item.index, size, torch_state.dtype_name(tensor.dtype, name)))

    def _add_value(self, item: WriteItem, planner: SavePlanner, allow_pickle: bool) -> None:
        name = item.index.fqn
        if gives_objects(planner):
            value, tensors = contents.encode_value(planner.lookup_object(item.index), name, allow_pickle)
            for inside, tensor in tensors.items():
                self._store(inside, tensor, parts.whole(tensor.shape))
        else:  # bytes in a form that only this planner knows
            data = planner.resolve_data(item)
            if not isinstance(data, io.BytesIO):
                raise UsageError(f"the planner gave {type(data).__name__} for '{name}', not a BytesIO")
            value = contents.opaque_value(data.getvalue())
        self.results.append(WriteResult(item.index, len(value.text), value))

    def _store(self, name: str, tensor: torch.Tensor, shard: parts.Shard | None) -> None:
        self.names.append(name)
        self.tensors.append(tensor)
        self.shards.append(shard)


def gives_objects(planner: Any) -> bool:
    """Whether the planner pickles plain objects in the usual way. Then the objects themselves are taken instead."""
    kind = type(planner)
    return (
        isinstance(planner, DefaultSavePlanner)
        and kind.resolve_data is DefaultSavePlanner.resolve_data
        and kind.transform_object is DefaultSavePlanner.transform_object
    )


def _correct_dtype(metadata: Metadata, result: WriteResult) -> None:
    """DCP's plan cache ignores dtypes, so a plan may name one that a tensor had earlier. What was written counts."""
    stored = metadata.state_dict_metadata.get(result.index.fqn)
    if isinstance(stored, TensorStorageMetadata):
        dtype = getattr(torch, result.storage_data)
        if stored.properties.dtype != dtype:
            stored.properties = dataclasses.replace(stored.properties, dtype=dtype)


def _make_way(save: _Save) -> None:
    """The newest save into a directory wins. DCP does not tell a writer that a save has failed on another rank, so an
    earlier one of this process may hold the lock although it is over. If it is not over, its finish() fails."""
    earlier = _coordinated.get(save.root)
    if earlier is not None:
        earlier.replaced = True
        earlier.close()


# Names


def box_name(name: str, offsets: Any, sizes: Any) -> str:
    return f"{name}[{','.join(f'{start}:{start + size}' for start, size in zip(offsets, sizes, strict=True))}]"


def rank_root(root: str, rank: int) -> str:
    return os.path.join(root, f"rank-{rank:05d}")


def _root(path: str | os.PathLike[str]) -> str:
    if not is_local(path):
        raise UsageError(f"'{os.fspath(path)}' is no local path; Slackwater's writer saves to directories")
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


def is_local(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, Path) or (bool(os.fspath(path)) and "://" not in str(path))


def _step(root: str) -> int:
    """Directories are called "step-100" more often than not. Others hold step 0."""
    found = _NUMBER.search(os.path.basename(root))
    return min(int(found.group(1)), _LARGEST_STEP) if found else 0


def _process_rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _named(positional: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Positional options by their names in FileSystemWriter."""
    named = dict(zip(_OF_FILE_SYSTEM_WRITER, positional, strict=False))
    twice = named.keys() & options.keys()
    if len(positional) > len(named) or twice:
        raise TypeError(f"SlackwaterWriter got {min(twice) + ' twice' if twice else 'too many positional options'}")
    return named


def _check_format(options: dict[str, Any]) -> None:
    """What FileSystemWriter can do to its files, and we cannot."""
    if options.pop("_extensions", None):
        raise UnsupportedError("Slackwater's writer has no stream extensions; leave _extensions out")
    kind = options.pop("serialization_format", None)
    if kind is not None:  # either value: our files are safetensors, and hold what torch.save would
        logger.info("serialization_format has no meaning for Slackwater's writer, whose files are safetensors")


def _settings(options: dict[str, Any]) -> dict[str, str]:
    _check_format(options)
    known = {row["name"] for row in _core.option_table()} - {
        "rank",
        "world",
        "node_local",
        "keep",
        "keep_every",
        "keep_best",
        "run_name",
    }
    settings = {}
    for name, value in options.items():
        if name in _OF_FILE_SYSTEM_WRITER:
            logger.info("%s has no meaning for Slackwater's writer, and is ignored", name)
        elif name not in known:
            raise UsageError(f"the writer has no option '{name}'; it has: {', '.join(sorted(known))}")
        elif value is not None:
            settings[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return settings
