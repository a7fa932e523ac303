"""SavedStates: ``accelerator.save_state`` and ``accelerator.load_state`` through Slackwater.

Each directory that ``save_state`` is given becomes a directory of checkpoints of its own, with one step. So it can be
moved, copied and removed as Accelerate's can, and its own rotation (``total_limit``) works. ``save_state`` returns when
it is committed, because programs expect to find it then, unless they ask for the background.
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

from ..checkpointer import Checkpointer
from ..errors import MismatchError
from ..reader import open as open_checkpoint

logger = logging.getLogger("slackwater")

_CUSTOM = "custom_objects"  # in the metadata: how many


class SavedStates:
    """Replaces the two methods of one accelerator, until ``close``."""

    def __init__(
        self,
        accelerator: accelerate.Accelerator,
        state: Callable[[], dict[str, Any]],
        load: Callable[[Checkpointer, Mapping[str, Any]], None],
        options: Mapping[str, Any],
    ) -> None:
        self.background = False
        self._options = options  # of sw.Checkpointer
        self._accelerator = accelerator
        self._state = state
        self._load = load
        self._in_flight: Checkpointer | None = None
        accelerator.save_state = self.save_state
        accelerator.load_state = self.load_state

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **options: Any) -> Path:
        """As Accelerate's. ``options`` are those of ``sw.Checkpointer``."""
        accelerator = self._accelerator
        self.finish()
        directory = self._directory(output_dir)
        state = self._state()
        self._call_hooks(state, str(directory))
        checkpointer = Checkpointer(directory, **{**self._options, **options, "keep": 1, "every": 1})
        try:
            # What the directory has already goes once this is committed.
            latest = checkpointer.latest_step()
            count = len(accelerator._custom_objects)
            checkpointer.save(0 if latest is None else latest + 1, state, metadata={_CUSTOM: count})
        except BaseException:
            checkpointer.close()
            raise
        self._in_flight = checkpointer
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
            directory = Path(os.path.expanduser(output_dir))
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        parent = Path(accelerator.project_dir, "checkpoints")
        parent.mkdir(parents=True, exist_ok=True)
        folders = _folders(parent)
        surplus = 0 if project.total_limit is None else len(folders) + 1 - project.total_limit
        directory = parent / f"checkpoint_{accelerator.save_iteration}"
        if directory.exists():
            raise ValueError(
                f"Checkpoint directory {directory} ({accelerator.save_iteration}) already exists. Please manually "
                "override `self.save_iteration` with what iteration to start with."
            )
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            for folder in folders[: max(surplus, 0)]:
                logger.warning("removing '%s': total_limit is %d", folder, project.total_limit)
                shutil.rmtree(folder)
            directory.mkdir()
        accelerator.wait_for_everyone()
        return directory

    def _call_hooks(self, state: dict[str, Any], directory: str) -> None:
        """A hook of ``register_save_state_pre_hook`` saves a model itself, and then removes its weights."""
        accelerator = self._accelerator
        hooks = list(accelerator._save_model_state_pre_hook.values())
        if not hooks:
            return
        weights = [accelerator.get_state_dict(model, unwrap=False) for model in accelerator._models]
        given = list(weights)
        for hook in hooks:
            hook(accelerator._models, weights, directory)
        for number, one in enumerate(given):
            if not any(one is kept for kept in weights):
                state.pop("model" if number == 0 else f"model_{number}")

    def load_state(self, input_dir: Any = None, load_kwargs: Any = None, **options: Any) -> None:
        accelerator = self._accelerator
        self.finish()
        if input_dir is None and accelerator.project_configuration.automatic_checkpoint_naming:
            folders = _folders(Path(accelerator.project_dir, "checkpoints"))
            input_dir = folders[-1] if folders else None
        directory = None if input_dir is None else os.path.expanduser(input_dir)
        if directory is None or not is_checkpoint_directory(directory):
            type(accelerator).load_state(accelerator, directory, load_kwargs, **options)
            return
        models = list(accelerator._models)
        for hook in accelerator._load_model_state_pre_hook.values():
            hook(models, directory)  # takes out of the list what it has loaded itself
        left_out = [number for number, one in enumerate(accelerator._models) if not any(one is kept for kept in models)]
        self._check_custom_objects(directory)
        exclude = ["model" if number == 0 else f"model_{number}" for number in left_out]
        checkpointer = Checkpointer(directory, **self._options)
        try:
            self._load(checkpointer, {"exclude": exclude, "strict": False} if exclude else {})
        finally:
            checkpointer.close()

    def _check_custom_objects(self, directory: str) -> None:
        with open_checkpoint(directory) as checkpoint:
            found = checkpoint.metadata.get(_CUSTOM)
        registered = len(self._accelerator._custom_objects)
        if found != registered:
            raise CustomObjectsError(
                f"'{directory}' has {found} objects of register_for_checkpointing, and {registered} are "
                "registered here; register the same ones"
            )

    def finish(self) -> None:
        """Waits until the last save is committed."""
        checkpointer, self._in_flight = self._in_flight, None
        if checkpointer is not None:
            checkpointer.close()

    def close(self) -> None:
        for method in ("save_state", "load_state"):
            self._accelerator.__dict__.pop(method, None)
        self.finish()


class CustomObjectsError(MismatchError, RuntimeError):
    """Accelerate raises a RuntimeError."""


def is_checkpoint_directory(directory: Any) -> bool:
    return os.path.isdir(os.path.join(directory, ".slackwater"))


def _folders(parent: Path) -> list[Path]:
    """checkpoint_0, checkpoint_1, ... in this order."""
    numbered = [(re.fullmatch(r"\D*(\d+)", one.name), one) for one in parent.iterdir()] if parent.is_dir() else []
    return [one for number, one in sorted((int(match[1]), one) for match, one in numbered if match)]
