"""TorchTitan's checkpoint manager on Slackwater: ``checkpoint=SlackwaterCheckpointManager.Config(enable=True)``.

It implements the five hooks of ``BaseCheckpointManager`` through DCP with Slackwater's writer and reader. A checkpoint
is a directory ``step-N`` in the checkpoint folder, as with TorchTitan's own manager. What that one saved is still
loaded. Saves run in the background. The trainer calls ``maybe_wait_for_staging()`` before each optimizer step: that is
the fence.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import shutil
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer.base import (
    DATALOADER,
    LR_SCHEDULER,
    MODEL,
    OPTIMIZER,
    BaseCheckpointManager,
    ModelWrapper,
)

from .. import _core
from ..errors import Error, StorageError, UsageError
from .dcp import SlackwaterReader, SlackwaterWriter

logger = logging.getLogger("slackwater")

_STEP = re.compile(r"step-(\d+)")
_MANIFEST = "manifest.json"
_STOCK = ".metadata"  # what makes a directory a checkpoint of TorchTitan's own manager


class DirectoryStorage:
    """TorchTitan's storage protocol (``CheckpointStorage``) for local directories."""

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def isfile(self, path: str) -> bool:
        return os.path.exists(path) and not os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def remove(self, path: str) -> None:
        """The decisions go first: whatever ends this half-way leaves nothing that looks like a checkpoint."""
        for manifest in Path(path).glob(f"*/{_MANIFEST}"):
            manifest.unlink()
        shutil.rmtree(path)

    def is_checkpoint(self, path: str) -> bool:
        """Whether the directory holds a committed checkpoint."""
        try:
            return bool(_core.list_versions(path))
        except Error:
            return False


class SlackwaterCheckpointManager(BaseCheckpointManager):
    """Saves, loads and purges as TorchTitan's own manager does, through Slackwater's pool and atomic commit."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        asynchronous: bool = True
        """Whether saves run in the background. If not, save() returns when the checkpoint is committed."""

        pool: str = "auto"
        """Memory for checkpoints in flight, such as "8GiB"."""

        allow_pickle: bool = False
        """Whether values without an exact plain form are pickled. Loading them runs code from the file."""

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[torch.nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        if not self.enable:
            return
        self._config = config
        self.folder = os.path.join(base_folder, config.folder)
        for label, place in (("folder", self.folder), ("initial_load_path", config.initial_load_path)):
            if place and not SlackwaterWriter.validate_checkpoint_id(place):
                raise UsageError(f"checkpoint.{label} is '{place}'; Slackwater saves to directories")
        if config.last_save_in_hf and sd_adapter is None:
            raise UsageError("checkpoint.last_save_in_hf needs a state dict adapter of the model (sd_adapter)")
        self.interval = config.interval
        self.keep_latest_k = config.keep_latest_k
        self.sd_adapter = sd_adapter
        self._storage = DirectoryStorage()
        self.states = states
        self.states.update(
            {
                MODEL: ModelWrapper(model_parts),
                OPTIMIZER: optimizers,
                DATALOADER: dataloader,
                LR_SCHEDULER: lr_schedulers,
            }
        )
        # Collectives of a save in the background must not mix with those of training.
        self._group = dist.new_group(backend="gloo") if config.asynchronous and dist.is_initialized() else None
        self._writer = SlackwaterWriter(self.folder, pool=config.pool, allow_pickle=config.allow_pickle)
        self.staging_future: Future[None] | None = None
        self.save_future: Future[Any] | None = None
        self._saving = 0  # the step of it
        self._failed: BaseException | None = None  # of a save in the background: close() raises it
        self._purger = _Purger(self._storage) if self.keep_latest_k > 0 and _is_first() else None

    def __del__(self) -> None:
        self.close()

    # The five hooks

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self.maybe_wait_for_saving()
        where = self._directory(curr_step)
        if last_step and self._config.last_save_in_hf:
            self._save_for_hugging_face(self._last_states(), where)
        elif last_step:
            dcp.save(self._last_states(), checkpoint_id=where, storage_writer=self._writer)
        elif self._config.asynchronous:
            response = dcp.async_save(
                self._flat_states(self.states),
                checkpoint_id=where,
                storage_writer=self._writer,
                process_group=self._group,
            )
            assert not isinstance(response, Future), "DCP gives both futures if the stager gives one"
            self.staging_future, self.save_future = response.staging_completion, response.upload_completion
        else:
            dcp.save(self._flat_states(self.states), checkpoint_id=where, storage_writer=self._writer)
        if self.save_future is None:
            self._purge(curr_step)
        else:
            self._saving = curr_step
        return True

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        config = self._config
        found = self._newest_step() if step == -1 else step
        if found == -1:
            if config.initial_load_in_hf:
                self._load_from_hugging_face()
                return True
            if not config.initial_load_path:
                logger.info("there is no checkpoint in '%s': a fresh start", self.folder)
                return False
            self._load_from(config.initial_load_path, model_only=config.initial_load_model_only)
            return True
        # A checkpoint of step 0 is a seed: it holds the model alone.
        self._load_from(self._directory(found), model_only=found == 0)
        return True

    def _wait_for_saving(self) -> None:
        future, self.save_future = self.save_future, None
        assert future is not None, "called only while a save is in flight"
        try:
            future.result()
        except (Exception, CheckpointException) as error:  # training goes on without this checkpoint
            logger.error("the checkpoint of step %d was not saved: %s", self._saving, error)
            self._failed = self._failed or error
            return
        self._purge(self._saving)

    def _maybe_wait_for_staging(self) -> None:
        future, self.staging_future = self.staging_future, None
        if future is not None:
            future.result()

    def _close(self) -> None:
        try:
            if getattr(self, "save_future", None) is not None:
                self._wait_for_saving()
        finally:
            purger = getattr(self, "_purger", None)
            if purger is not None:
                purger.close()
        failed, self._failed = getattr(self, "_failed", None), None
        if failed is not None:
            raise StorageError(f"a checkpoint in '{self.folder}' was not saved: {failed}") from failed

    # Saving

    def _should_save(self, curr_step: int, last_step: bool) -> bool:
        config = self._config
        if config.load_only:
            return False
        first = curr_step == 1 and config.enable_first_step_checkpoint
        return last_step or first or curr_step % self.interval == 0

    def _flat_states(self, states: dict[str, Any]) -> dict[str, Any]:
        """The tensors of the model stand beside the other states, so that other programs load them by name."""
        flat = {name: state for name, state in states.items() if name != MODEL}
        return {**flat, **states[MODEL].state_dict()} if MODEL in states else flat

    def _last_states(self) -> dict[str, Any]:
        if not self._config.last_save_model_only:
            return self._flat_states(self.states)
        dtype = getattr(torch, self._config.export_dtype)

        def exported(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        return {name: exported(value) for name, value in self.states[MODEL].state_dict().items()}

    def _save_for_hugging_face(self, states: dict[str, Any], where: str) -> None:
        """Through torch's writer: sharded files first if the model has several, then those that other programs load."""
        mapping = self.sd_adapter.fqn_to_index_mapping
        target = os.path.join(where, "sharded") if mapping else where
        writer = dcp.HuggingFaceStorageWriter(
            path=target, save_distributed=True, fqn_to_index_mapping=mapping, enable_consolidation=not mapping
        )
        dcp.save(self.sd_adapter.to_hf(states), storage_writer=writer)
        if mapping:
            from torch.distributed.checkpoint._consolidate_hf_safetensors import (
                consolidate_safetensors_files_on_every_rank,
            )

            consolidate_safetensors_files_on_every_rank(
                input_dir=target, output_dir=where, fqn_to_index_mapping=mapping, num_threads=5
            )

    def _purge(self, committed: int) -> None:
        """After the commit of a step: removes all but the newest committed ones up to it. Directories of others, and
        what was never committed, neither count nor go."""
        if self._purger is None or not self._storage.isdir(self.folder):
            return
        steps = sorted(step for step in self._steps() if step <= committed)
        ours = [step for step in steps if self._storage.is_checkpoint(self._directory(step))]
        for step in ours[: -self.keep_latest_k]:
            self._purger.remove(self._directory(step))

    # Loading

    def _load_from(self, where: str, *, model_only: bool) -> None:
        if not self._storage.isdir(where):
            raise FileNotFoundError(f"there is no checkpoint at '{where}'")
        if model_only:
            state = self.states[MODEL].state_dict()
        else:
            unknown = [name for name in self._config.exclude_from_loading if name not in self.states]
            if unknown:
                raise UsageError(f"checkpoint.exclude_from_loading names {unknown}, which the state does not have")
            excluded = set(self._config.exclude_from_loading)
            state = self._flat_states({name: value for name, value in self.states.items() if name not in excluded})
        if self._is_stock(where):
            logger.info("'%s' was saved by TorchTitan's own manager", where)
            dcp.load(state, storage_reader=dcp.FileSystemReader(where))
        else:
            dcp.load(state, storage_reader=SlackwaterReader(where, allow_pickle=self._config.allow_pickle))
        self.states[MODEL].load_state_dict(state)

    def _load_from_hugging_face(self) -> None:
        adapter = self.sd_adapter
        where = self._config.initial_load_path or getattr(adapter, "hf_assets_path", None)
        if adapter is None or not where:
            raise UsageError("checkpoint.initial_load_in_hf needs a state dict adapter and a path of the model's files")
        state = adapter.to_hf(self.states[MODEL].state_dict())
        reader = adapter.get_hf_storage_reader(where, self._config.initial_load_in_hf_quantized)
        dcp.load(state, storage_reader=reader)
        self.states[MODEL].load_state_dict(adapter.from_hf(state))

    def _directory(self, step: int) -> str:
        return os.path.join(self.folder, f"step-{step}")

    def _steps(self) -> list[int]:
        return [int(found.group(1)) for name in self._storage.listdir(self.folder) if (found := _STEP.fullmatch(name))]

    def _newest_step(self) -> int:
        """Of the checkpoints that are committed; -1 if there is none."""
        if not self._storage.isdir(self.folder):
            return -1
        for step in sorted(self._steps(), reverse=True):
            where = self._directory(step)
            if self._storage.is_checkpoint(where) or self._is_stock(where):
                return step
            logger.warning("'%s' holds no checkpoint that can be continued, and is passed over", where)
        return -1

    def _is_stock(self, where: str) -> bool:
        return self._storage.isfile(os.path.join(where, _STOCK)) and not self._storage.is_checkpoint(where)


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


class _Purger:
    """Removes directories on a thread of its own, so that training does not wait."""

    def __init__(self, storage: DirectoryStorage) -> None:
        self._storage = storage
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="slackwater-purge", daemon=True)
        self._thread.start()

    def remove(self, path: str) -> None:
        self._queue.put(path)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (path := self._queue.get()) is not None:
            try:
                self._storage.remove(path)
                logger.info("removed the checkpoint '%s' (keep_latest_k)", path)
            except FileNotFoundError:
                pass  # asked for twice
            except OSError as error:
                logger.warning("the checkpoint '%s' could not be removed: %s", path, error)
