"""A checkpoint mechanism for DLIO, the benchmark behind MLPerf Storage.

    ++workload.checkpoint.checkpoint_mechanism_classname=slackwater.integrations.dlio.SlackwaterCheckpointing

DLIO times the call that saves. So it returns when the checkpoint is committed: durable, on all ranks. DLIO calls
``save_state`` once per file; here, what a rank saves in one checkpoint is one state, and all ranks commit it together.
Both interfaces of DLIO are answered: ``checkpoint`` of release 2.0.0, ``save_checkpoint`` and ``load_checkpoint`` of
later ones. Thread rule: as DLIO, one thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import torch
from dlio_benchmark.checkpointing.base_checkpointing import BaseCheckpointing

from .. import reader
from ..checkpointer import Checkpointer
from ..errors import NotFoundError

_KEEP_ALL = 1 << 40  # DLIO keeps all of them, too
_MERGEABLE = getattr(mmap, "MADV_MERGEABLE", 12)


class SlackwaterCheckpointing(BaseCheckpointing):
    _instance: SlackwaterCheckpointing | None = None

    @staticmethod
    def get_instance() -> SlackwaterCheckpointing:
        if SlackwaterCheckpointing._instance is None:
            SlackwaterCheckpointing._instance = SlackwaterCheckpointing()
        return SlackwaterCheckpointing._instance

    def __init__(self) -> None:
        self._collected: dict[str, Any] = {}
        self._checkpointer: Checkpointer | None = None
        self._step = 0
        self._copies: dict[int, Any] = {}
        super().__init__("pt")
        if hasattr(BaseCheckpointing, "checkpoint"):  # not timed: the copies of what release 2.0.0 saves several times
            super().checkpoint(0, 0)
            self._collected = {}

    # Tensors

    def get_tensor(self, size: int) -> Any:
        """Of release 2.0.0: ``size`` bytes."""
        return torch.zeros(size, dtype=torch.int8)

    def get_tensor_core(self, length: int, datatype: str = "int8", randomize: bool = True) -> Any:
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(datatype)
        dtype = dtype or getattr(torch, datatype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"DLIO asks for the datatype '{datatype}', which torch does not have")
        if not randomize:
            return torch.ones(length, dtype=dtype)
        if dtype.is_floating_point:
            return torch.rand(length).to(dtype)
        return torch.randint(0, 2 if dtype == torch.bool else 127, (length,)).to(dtype)

    def set_madvise_mergeable(self, tensor: Any) -> bool:
        """Lets the kernel share equal pages, so that one machine can play many. False: it was not possible."""
        page = mmap.PAGESIZE
        first = -(-tensor.data_ptr() // page) * page
        size = (tensor.data_ptr() + tensor.numel() * tensor.element_size() - first) // page * page
        if size <= 0:
            return False
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        return bool(madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MERGEABLE) == 0)

    # Saving

    def checkpoint(self, epoch: int, step_number: int) -> None:
        self._collected = {}
        super().checkpoint(epoch, step_number)  # calls save_state() for each file
        self._save(epoch, step_number)

    def save_checkpoint(self, epoch: int, step_number: int) -> None:
        self._collected = {}
        super().save_checkpoint(epoch, step_number)
        self._save(epoch, step_number)

    def save_state(self, suffix: str, state: Any, fsync: bool = False) -> None:
        """One file of DLIO's. It is durable when the whole checkpoint is, whether or not ``fsync`` is asked for."""
        new: dict[str, Any] = {}
        _flatten(state, suffix, new)
        seen = {tensor.data_ptr() for tensor in self._collected.values()}
        for name, tensor in new.items():
            if tensor.data_ptr() in seen:
                # DLIO 2.0.0 saves the same tensors for every layer. We would store them once: fewer bytes than DLIO.
                tensor = self._copies.setdefault(len(self._collected), tensor.clone())
            self._collected[name] = tensor

    def _save(self, epoch: int, step_number: int) -> None:
        checkpointer = self._open()
        self._step += 1
        metadata = {"dlio_epoch": int(epoch), "dlio_step": int(step_number)}
        state = {"dlio": self._collected} if self._collected else {}
        checkpointer.save(self._step, state, metadata=metadata)
        self._collected = {}
        checkpointer.wait("committed")

    def _open(self) -> Checkpointer:
        if self._checkpointer is None:
            rank, world = int(self.args.my_rank), int(self.args.comm_size)
            local = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
            self._checkpointer = Checkpointer(
                self.args.checkpoint_folder,
                keep=_KEEP_ALL,
                on_error="raise",
                rank=rank,
                world=world,
                local_ranks=int(local) if local.isdigit() else None,
                coordinator="directory",
                run_name="dlio",
            )
            self._step = max(self._checkpointer.steps(), default=0)
        return self._checkpointer

    # Loading

    def load_checkpoint(self, epoch: int, step_number: int) -> None:
        self._collected = {}
        super().load_checkpoint(epoch, step_number)  # calls load_state() for each file
        targets, self._collected = self._collected, {}
        if targets:
            self._load(epoch, step_number, targets)

    def load_state(self, suffix: str, state: Any) -> None:
        _flatten(state, suffix, self._collected)

    def _load(self, epoch: int, step_number: int, targets: dict[str, Any]) -> None:
        """Into the tensors of DLIO, every byte verified."""
        with reader.open(self.args.checkpoint_folder, self._find(epoch, step_number)) as checkpoint:
            own = "" if int(self.args.comm_size) == 1 else f"rank-{int(self.args.my_rank):05d}/"
            checkpoint._read({f"{own}dlio.{name}": tensor for name, tensor in targets.items()})

    def _find(self, epoch: int, step_number: int) -> int:
        for step in reversed(self._open().steps()):
            with reader.open(self.args.checkpoint_folder, step) as checkpoint:
                found = checkpoint.metadata.get("dlio_epoch"), checkpoint.metadata.get("dlio_step")
            if found == (epoch, step_number):
                return step
        raise NotFoundError(f"there is no checkpoint of epoch {epoch}, step {step_number} in this directory")

    def finalize(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()
        SlackwaterCheckpointing._instance = None
        super().finalize()


def _flatten(state: Any, name: str, found: dict[str, Any]) -> None:
    """The tensors by name. Names keep the suffix of DLIO's file in front."""
    if isinstance(state, torch.Tensor):
        found[name.replace(".", "_")] = state
    elif isinstance(state, dict):
        for key, value in state.items():
            _flatten(value, f"{name}/{key}", found)
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            _flatten(value, f"{name}/{index}", found)
