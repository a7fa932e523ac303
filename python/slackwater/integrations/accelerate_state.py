"""SavedStates: ``accelerator.save_state`` and ``accelerator.load_state`` through Slackwater.

Each directory that ``save_state`` is given becomes a directory of checkpoints of its own, with one step. So it can be
moved, copied and removed as Accelerate's can. Its rotation (``total_limit``) happens once the new one is committed.
``save_state`` returns then, because programs expect to find it, unless they ask for the background.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import accelerate

from .. import _core
from ..checkpointer import Checkpointer
from ..errors import Error, MismatchError, UsageError
from ..reader import open as open_checkpoint
from .trainer_shared import local_path
from .unlocked import Unlocked

logger = logging.getLogger("slackwater")

_CUSTOM = "custom_objects"  # in the metadata: how many
_OF_A_RANK = re.compile(r"^rank-\d+/")
_REPLACED = "replaced_models"  # in the metadata: how many of them a hook gave other weights
_TAKES = (
    "accelerator.save_state writes directories; AccelerateCheckpointer(accelerator, 's3://bucket/run') takes a store"
)


# Options of sw.Checkpointer that belong to the directory of a run, not to one that has a single checkpoint.
_OF_A_RUN = frozenset({"tiers", "memory", "memory_versions", "memory_timeout", "keeper", "keep_every", "keep_best"})


class SavedStates:
    """Replaces the two methods of one accelerator, until ``close``."""

    def __init__(
        self,
        accelerator: accelerate.Accelerator,
        state: Callable[[], dict[str, Any]],
        load: Callable[[Checkpointer | Unlocked, list[str], Mapping[str, Any]], None],
        options: Mapping[str, Any],
    ) -> None:
        self.background = False
        self._options = {name: value for name, value in options.items() if name not in _OF_A_RUN}
        self._accelerator = accelerator
        self._state = state
        self._load = load
        self._in_flight: tuple[Checkpointer, Path] | None = None
        self._failed: Error | None = None  # of a save in the background
        accelerator.save_state = self.save_state
        accelerator.load_state = self.load_state

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **options: Any) -> Path:
        """As Accelerate's. ``options`` are those of ``sw.Checkpointer``."""
        accelerator = self._accelerator
        self._settle()
        directory = self._directory(output_dir)
        state = self._state()
        replaced = self._call_hooks(state, str(directory))
        checkpointer = Checkpointer(directory, **{**self._options, **options, "keep": 1, "every": 1})
        try:
            # What the directory has already goes once this is committed.
            latest = checkpointer.latest_step()
            count = len(accelerator._custom_objects)
            checkpointer.save(
                0 if latest is None else latest + 1, state, metadata={_CUSTOM: count, _REPLACED: replaced}
            )
        except BaseException:
            checkpointer.close()
            raise
        self._in_flight = (checkpointer, directory)
        if not self.background:
            self.finish()
        accelerator.project_configuration.iteration += 1
        return directory

    def _directory(self, output_dir: Any) -> Path:
        """Where to save, as Accelerate decides it."""
        accelerator = self._accelerator
        project = accelerator.project_configuration
        if not project.automatic_checkpoint_naming:
            if output_dir is None:
                raise ValueError("No output_dir provided and automatic checkpoint naming is disabled.")
            directory = Path(local_path(output_dir, _TAKES))
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        parent = Path(accelerator.project_dir, "checkpoints")
        parent.mkdir(parents=True, exist_ok=True)
        directory = parent / f"checkpoint_{accelerator.save_iteration}"
        if directory.exists() and _is_committed(directory) is not False:
            raise ValueError(
                f"Checkpoint directory {directory} ({accelerator.save_iteration}) already exists. Please manually "
                "override `self.save_iteration` with what iteration to start with."
            )
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            directory.mkdir(exist_ok=True)  # one that was never committed is used again
        accelerator.wait_for_everyone()
        return directory

    def _rotate(self, newest: Path) -> None:
        """Removes what is older than the ``total_limit`` newest checkpoints, of which ``newest`` is one."""
        project = self._accelerator.project_configuration
        limit = project.total_limit
        if not project.automatic_checkpoint_naming or limit is None or not self._accelerator.is_main_process:
            return
        folders = _folders(newest.parent)
        whole = [folder for folder in folders if folder != newest and _is_committed(folder) is not False] + [newest]
        oldest = whole[-max(limit, 1) :][0]
        for folder in folders[: folders.index(oldest)]:
            if folder == newest:  # its number is lower than that of others
                continue
            logger.warning("removing '%s': total_limit is %d", folder, limit)
            shutil.rmtree(folder, ignore_errors=True)

    def _call_hooks(self, state: dict[str, Any], directory: str) -> int:
        """A hook of ``register_save_state_pre_hook`` saves a model itself, and then removes its weights; or it puts
        other weights in their place (LoRA, another dtype), which are saved as they are. Returns how many."""
        accelerator = self._accelerator
        hooks = list(accelerator._save_model_state_pre_hook.values())
        if not hooks:
            return 0
        weights = [accelerator.get_state_dict(model, unwrap=False) for model in accelerator._models]
        given = list(weights)
        weights = _Weights(given)
        for hook in hooks:
            hook(accelerator._models, weights, directory)
        replaced = weights.by_model()
        for number in range(len(given)):
            if number not in replaced:
                state.pop(_model_key(number))
            elif replaced[number] is not given[number]:
                state[_model_key(number)] = replaced[number]
        return sum(one is not given[number] for number, one in replaced.items())

    def load_state(self, input_dir: Any = None, load_kwargs: Any = None, **options: Any) -> None:
        accelerator = self._accelerator
        self._settle()
        if input_dir is None and accelerator.project_configuration.automatic_checkpoint_naming:
            input_dir = _newest_of(Path(accelerator.project_dir, "checkpoints"))
        directory = None if input_dir is None else os.path.expanduser(input_dir)
        if directory is None or not is_checkpoint_directory(directory):
            type(accelerator).load_state(accelerator, directory, load_kwargs, **options)
            return
        models = list(accelerator._models)
        for hook in accelerator._load_model_state_pre_hook.values():
            hook(models, directory)  # takes out of the list what it has loaded itself
        left_out = [number for number, one in enumerate(accelerator._models) if not any(one is kept for kept in models)]
        with open_checkpoint(directory) as checkpoint:
            metadata, world = checkpoint.metadata, checkpoint._version.world
            found = {_OF_A_RANK.sub("", name).partition(".")[0] for name in checkpoint}
        self._check_custom_objects(directory, metadata.get(_CUSTOM))
        taken = [_model_key(number) for number in left_out]
        # Accelerate loads weights of another dtype too, if a hook has saved them so.
        how: dict[str, Any] = {"cast": bool(metadata.get(_REPLACED, 0)), "strict": bool(options.get("strict", True))}
        if both := [key for key in taken if key in found]:
            how["exclude"] = both
        if accelerator.num_processes == 1 and world == 1:
            unlocked = Unlocked(directory, allow_pickle=bool(self._options.get("allow_pickle", False)))
            self._load(unlocked, taken, how)
            return
        checkpointer = Checkpointer(directory, **self._options)  # the ranks agree on what they read
        try:
            self._load(checkpointer, taken, how)
        finally:
            checkpointer.close()

    def _check_custom_objects(self, directory: str, found: Any) -> None:
        registered = len(self._accelerator._custom_objects)
        if found != registered:
            raise CustomObjectsError(
                f"'{directory}' has {found} objects of register_for_checkpointing, and {registered} are "
                "registered here; register the same ones"
            )

    def finish(self) -> None:
        """Waits until the last save is committed. Raises what a save in the background has not reported yet."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            checkpointer, directory = in_flight
            checkpointer.close()
            self._rotate(directory)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _settle(self) -> None:
        """As ``finish``, but trouble with the storage does not end training: ``finish`` and ``close`` report it."""
        earlier, self._failed = self._failed, None
        try:
            self.finish()
        except Error as error:
            logger.error("the last save_state was not committed: %s", error)
            earlier = earlier or error
        self._failed = earlier

    def close(self) -> None:
        for method in ("save_state", "load_state"):
            self._accelerator.__dict__.pop(method, None)
        self.finish()


class CustomObjectsError(MismatchError, RuntimeError):
    """Accelerate raises a RuntimeError."""


def _model_key(number: int) -> str:
    return "model" if number == 0 else f"model_{number}"


class _Weights(list[Any]):
    """The weights of the models, which hooks change as they like. ``owners`` has the number of the model of each."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__(given)
        self.owners: list[int | None] = list(range(len(given)))

    def pop(self, index: Any = -1) -> Any:
        self.owners.pop(index)
        return super().pop(index)

    def remove(self, value: Any) -> None:
        del self[next(number for number, one in enumerate(self) if one is value)]

    def clear(self) -> None:
        del self[:]

    def __delitem__(self, index: Any) -> None:
        del self.owners[index]
        super().__delitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            value = list(value)
            if len(self.owners[index]) != len(value):
                self.owners[index] = [None] * len(value)
        super().__setitem__(index, value)

    def by_model(self) -> dict[int, Any]:
        if len(self.owners) != len(self) or None in self.owners:
            raise UsageError(
                "a hook of register_save_state_pre_hook put weights into the list that belong to no model of the "
                "accelerator; save them in the hook, or give them to register_for_checkpointing"
            )
        return {owner: one for owner, one in zip(self.owners, self, strict=True) if owner is not None}


def _is_committed(directory: Path) -> bool | None:
    """False: it is ours, and was never committed. None: it cannot be told now."""
    if not is_checkpoint_directory(directory):
        return any(directory.iterdir())  # Accelerate's own
    try:
        return bool(_core.list_versions(str(directory)))
    except Error as error:
        logger.warning("'%s' cannot be looked into: %s", directory, error)
        return None


def _newest_of(parent: Path) -> Path | None:
    """The newest folder whose checkpoint is whole."""
    folders = _folders(parent)
    for folder in reversed(folders):
        if _is_committed(folder) is not False:
            return folder
        logger.warning("'%s' was never committed, and is passed over", folder)
    return folders[-1] if folders else None


def is_checkpoint_directory(directory: Any) -> bool:
    return os.path.isdir(os.path.join(directory, ".slackwater"))


def _folders(parent: Path) -> list[Path]:
    """checkpoint_0, checkpoint_1, ... in this order."""
    numbered = [(re.fullmatch(r"\D*(\d+)", one.name), one) for one in parent.iterdir()] if parent.is_dir() else []
    return [one for number, one in sorted((int(match[1]), one) for match, one in numbered if match)]
