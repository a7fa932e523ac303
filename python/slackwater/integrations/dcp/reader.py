"""SlackwaterReader: DCP's ``StorageReader``. Every block is verified before its bytes are placed.

Boxes are read by where they lie in the global tensor, so it does not matter which ranks wrote them. Plain values are
typed JSON. DCP's planner unpickles what ``load_bytes`` gets, so the reader decodes the value first and hands over a
pickle that it made itself: no pickle of the file is ever run unless ``allow_pickle=True``.
"""

from __future__ import annotations

import dataclasses
import io
import os
import uuid
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ... import _core
from ...errors import MismatchError, NotFoundError, UnsupportedError, UsageError
from .. import torch_state
from . import contents
from .writer import box_name, is_local, rank_root

_COPIED_AT_ONCE = 256 << 20  # bytes that are read into host memory first: other dtypes, other devices


class MissingCheckpointError(NotFoundError, FileNotFoundError):
    """There is no checkpoint in the directory, or none that is committed."""


class SlackwaterReader(StorageReader):
    """Loads what ``SlackwaterWriter`` saved, on any number of ranks. ``allow_pickle``: load values that were pickled,
    which runs code from the file."""

    def __init__(
        self, path: str | os.PathLike[str], _extension_registry: Any = None, *, allow_pickle: bool = False
    ) -> None:
        super().__init__()
        if _extension_registry is not None:
            raise UnsupportedError("Slackwater's reader has no stream extensions; leave _extension_registry out")
        self.path: str | os.PathLike[str] = path
        self.load_id = str(uuid.uuid4())
        self._allow_pickle = bool(allow_pickle)
        self._root = ""  # what is open
        self._checkpoint: _core.Checkpoint | None = None
        self._infos: dict[str, _core.TensorInfo] = {}  # tensors of the checkpoint
        self._contents: contents.DcpValues | None = None

    # The interface of StorageReader

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.path = checkpoint_id
        self.load_id = str(uuid.uuid4())
        self._checkpoint = self._contents = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """``rank``: that of a checkpoint that every rank saved for itself (``use_collectives=False``)."""
        root = os.path.abspath(os.path.expanduser(os.fspath(self.path)))
        rank = kwargs.get("rank")
        if rank is not None:
            root = rank_root(root, rank)
        self._checkpoint = None  # another one may have been saved here since the last load
        found = self._open(root)
        metadata = dataclasses.replace(found.metadata, state_dict_metadata=dict(found.metadata.state_dict_metadata))
        metadata.storage_meta = StorageMeta(checkpoint_id=self.path, load_id=self.load_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._checkpoint is None:
            self.read_metadata(**({} if kwargs.get("use_collectives", True) else {"rank": kwargs.get("rank")}))

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        direct: list[_Read] = []
        copied: list[_Read] = []
        for item in plan.items:
            if item.type == LoadItemType.TENSOR:
                read = self._plan_read(item, planner)
                (direct if read.source is read.target else copied).append(read)
        self._read(direct)
        while copied:
            batch, size = [], 0
            while copied and (not batch or size + copied[-1].size_bytes <= _COPIED_AT_ONCE):
                batch.append(copied.pop())
                size += batch[-1].size_bytes
            self._read(batch)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes_of(item.storage_index.fqn))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_local(checkpoint_id)

    # What is on disk

    def _open(self, root: str) -> contents.DcpValues:
        if self._checkpoint is not None and self._root == root and self._contents is not None:
            return self._contents
        try:
            checkpoint = _core.Checkpoint.open(root)
        except NotFoundError as error:
            raise MissingCheckpointError(str(error), path=root) from None
        infos = {info.name: info for info in checkpoint.contents().tensors}
        blob = f"rank-00000/{contents.TENSOR}"
        if blob not in infos:
            raise UsageError(
                f"'{root}' was not saved through torch.distributed.checkpoint; load it with slackwater.load() or a "
                "Checkpointer",
                path=root,
            )
        bytes_of = torch.empty(tuple(infos[blob].shape), dtype=torch.uint8)
        checkpoint.read([torch_state.memory_of(bytes_of, blob).target(blob)])
        self._contents = contents.load_metadata(bytes_of.numpy().tobytes(), root, self._allow_pickle)
        self._checkpoint, self._root = checkpoint, root
        self._infos = infos
        return self._contents

    def _plan_read(self, item: ReadItem, planner: LoadPlanner) -> _Read:
        name = item.storage_index.fqn
        stored = self._stored(name)
        if not isinstance(stored, TensorStorageMetadata):
            raise MismatchError(f"'{name}' is a plain value in the checkpoint, and a tensor in the state")
        offset = item.storage_index.offset
        start = torch.Size([0] * len(stored.size)) if offset is None else offset
        if name in self._infos:
            shape, place = tuple(stored.size), tuple(a + b for a, b in zip(start, item.storage_offsets, strict=True))
        else:  # one of the boxes that a single rank saved of a tensor
            sizes = next((chunk.sizes for chunk in stored.chunks if tuple(chunk.offsets) == tuple(start)), None)
            if sizes is None:
                raise MismatchError(f"the checkpoint has no box of '{name}' at {tuple(start)}")
            name = f"rank-00001/{box_name(name, start, sizes)}"
            shape, place = tuple(sizes), tuple(item.storage_offsets)
        return _Read(item, planner, name, shape, place, self._infos[name].dtype)

    def _read(self, reads: list[_Read]) -> None:
        wanted = [read for read in reads if read.source.numel() > 0]
        if wanted:
            assert self._checkpoint is not None, "set_up_storage_reader() comes first"
            self._checkpoint.read([read.engine_target() for read in wanted])
            torch_state.bump_versions([read.source for read in wanted])
        for read in reads:
            read.place()

    def _stored(self, name: str) -> Any:
        assert self._contents is not None, "read_metadata() comes first"
        stored = self._contents.metadata.state_dict_metadata.get(name)
        if stored is None:
            raise NotFoundError(f"the checkpoint in '{self._root}' has no '{name}'")
        return stored

    def _bytes_of(self, name: str) -> io.BytesIO:
        """For load_bytes(): a pickle of a value that was decoded here."""
        assert self._contents is not None, "read_metadata() comes first"
        value = self._contents.values.get(name)
        if value is None:
            raise MismatchError(f"'{name}' is a tensor in the checkpoint, and a plain value in the state")
        if value.kind == "opaque":
            if not self._allow_pickle:
                raise UnsupportedError(
                    f"'{name}' was saved by a planner of your own as bytes, which DCP's planner unpickles; pass "
                    "SlackwaterReader(..., allow_pickle=True) if you trust whoever wrote it"
                )
            return io.BytesIO(contents.decode_value(value, {}, False))
        tensors = {inside: self._whole_tensor(inside) for inside in value.tensors}
        data = io.BytesIO()
        torch.save(contents.decode_value(value, tensors, self._allow_pickle), data)
        data.seek(0)
        return data

    def _whole_tensor(self, name: str) -> torch.Tensor:
        info = self._infos[name]
        new: torch.Tensor = torch_state.empty(info.dtype, info.shape)
        if new.numel() > 0:
            assert self._checkpoint is not None
            self._checkpoint.read([torch_state.memory_of(new, name).target(name)])
        return new


class _Read:
    """One box on its way into a tensor: straight into its memory, or by way of another tensor if that cannot be."""

    def __init__(
        self,
        item: ReadItem,
        planner: LoadPlanner,
        name: str,
        shape: tuple[int, ...],
        offset: tuple[int, ...],
        dtype: str,
    ) -> None:
        self.item = item
        self.planner = planner
        self.name = name
        self.shape = shape
        self.offset = offset
        self.target: torch.Tensor = planner.resolve_tensor(item).detach()
        if self.target.shape != item.lengths:
            raise MismatchError(
                f"'{name}': the planner gave a tensor of shape {tuple(self.target.shape)} for a box of "
                f"{tuple(item.lengths)}"
            )
        wanted = torch_state._known_dtype(dtype)
        self.source = self.target if self._takes_bytes(wanted) else torch.empty(tuple(item.lengths), dtype=wanted)

    @property
    def size_bytes(self) -> int:
        return self.source.numel() * self.source.itemsize

    def _takes_bytes(self, dtype: torch.dtype) -> bool:
        target = self.target
        return (
            target.dtype == dtype
            and target.device.type == "cpu"
            and target.layout is torch.strided
            and not torch_state.is_wrapper(target)
            and not torch_state.must_be_copied_into(target)
            and not torch_state.memory_of(target, self.name).overlaps_itself
        )

    def engine_target(self) -> tuple[Any, ...]:
        return torch_state.memory_of(self.source, self.name).target(self.name, (self.shape, self.offset))

    def place(self) -> None:
        if self.source is not self.target:
            with torch.no_grad():
                self.target.copy_(self.source)
            self.source = self.target  # frees what was read
        self.planner.commit_tensor(self.item, self.target)
