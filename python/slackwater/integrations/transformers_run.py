"""TrainerRun: what one call of ``SlackwaterTrainer.train()`` owns. Used by the thread that trains.

The state of the Trainer itself is part of each checkpoint, as the text of its ``trainer_state.json``. Trainer wants to
read that file from a directory. So a resume writes it into a private one. The directory ``checkpoint-N`` in
``output_dir`` is a stub for people and for other tools (``transformers_stubs.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from ..checkpointer import Checkpointer
from ..errors import DamagedError, Error, NotFoundError, UsageError
from ..metadata import Best
from ..reader import load
from ..reader import open as open_checkpoint
from ..rng import Rng
from .trainer_shared import (
    EpochStart,
    LateRandom,
    SavedSteps,
    asked_step,
    generators_of,
    is_resume_name,
    refuse_later_steps,
)
from .transformers_stubs import Stubs

logger = logging.getLogger("slackwater")

_STATE_FILE = "trainer_state.json"
_BEST = "best_step"  # in the metadata of a step that had the best metric so far


class TrainerRun:
    def __init__(self, trainer: Any, path: str, options: Mapping[str, Any], trial: Any) -> None:
        self._trainer = trainer
        if trial is not None:  # each trial of a search is a run
            path = os.path.join(path, os.path.basename(trainer._get_output_dir(trial)))
        args = trainer.args
        self._options = dict(options)
        if args.save_total_limit is not None and args.save_total_limit > 0:
            self._options.setdefault("keep", args.save_total_limit)
        if args.metric_for_best_model is not None:
            if self._options.get("keep_best") is not None and args.load_best_model_at_end:
                raise UsageError("keep_best cannot be given with load_best_model_at_end=True, which needs it itself")
            self._options.setdefault("keep_best", Best(_BEST, 1, mode="max"))
        self._path = path
        self._checkpointer = Checkpointer(path, **self._options)
        self._saved_steps = SavedSteps(path, self._options)
        self._checkpointer._metric_seen = "keep_best" not in options  # no warning about a metric of ours
        self._output_dir = trainer._get_output_dir(trial)
        self._stubs = Stubs(self._checkpointer, self._output_dir) if args.should_save else None
        self._directory: tempfile.TemporaryDirectory[str] | None = None  # with the file that Trainer reads
        self._resumed: int | None = None  # the step
        self._asked = False  # for this very step
        self._place: dict[str, Any] = {}  # of the checkpoint: which pass over the data, and where in it
        self._loss: Any = None  # of the checkpoint: the sum since the last log
        self._passes = (0, 0, 0)  # this pass, batches that were skipped in it, and the step it began at
        self._deferred: bool | None = None  # whether the last step of an epoch is saved when the epoch has ended
        self._epoch_start = EpochStart()
        self._saved = 0  # the last step
        self.random = LateRandom()
        if str(getattr(args.save_strategy, "value", args.save_strategy)) == "no":
            logger.warning("save_strategy is 'no': the trainer saves no checkpoint into '%s'", path)

    # Resuming

    def begin(self, resume: str | bool | None) -> str | bool | None:
        """What Trainer is to resume from: the directory of ours, or what the caller said."""
        if self._stubs is not None:
            self._stubs.tidy({})
        steps = list(self._saved_steps.find())
        wanted = self._wanted(resume, steps)
        if wanted is None:
            begins = -1
            if isinstance(resume, str) and not is_resume_name(resume):
                begins = _step_of(resume)
            elif resume is True:
                begins = _step_of(get_last_checkpoint(self._trainer.args.output_dir) or "")
            how = "give train(resume_from_checkpoint='slackwater')"
            refuse_later_steps(self._path, steps, max(begins, 0), how)
            return None if is_resume_name(resume) else resume
        return self._point_to(wanted)

    def _wanted(self, resume: Any, steps: list[int]) -> int | None:
        if is_resume_name(resume):
            step = asked_step(resume)
            self._asked = step is not None
            if step is None:
                if not steps:
                    logger.info("'%s' has no checkpoint yet: a new run", self._path)
                return steps[-1] if steps else None
        elif resume is True:
            last = get_last_checkpoint(self._trainer.args.output_dir)
            others = -1 if last is None or Stubs.is_one(last) else _step_of(last)
            return steps[-1] if steps and steps[-1] >= others else None
        elif isinstance(resume, str) and Stubs.is_one(resume):
            self._asked, step = True, Stubs.step_of(resume, self._checkpointer.path)
        else:
            return None
        if step not in steps:
            raise NotFoundError(
                f"'{self._path}' has no committed checkpoint of step {step}; it has "
                f"{', '.join(map(str, steps)) or 'none'}",
                path=self._path,
            )
        return step

    def _point_to(self, step: int) -> str:
        self._resumed = step
        try:
            text, self._place = self._state_of(step)
        except DamagedError as error:
            return self.before_damaged(error)
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="slackwater-")
        where = os.path.join(self._directory.name, f"checkpoint-{step}")
        os.makedirs(where, exist_ok=True)
        Stubs.copy_others(os.path.join(self._output_dir, f"checkpoint-{step}"), where)
        with open(os.path.join(where, _STATE_FILE), "w", encoding="utf-8") as file:
            file.write(text)
        if self._stubs is not None:
            self._stubs.write(step, text)
        return where

    def _state_of(self, step: int) -> tuple[str, dict[str, Any]]:
        """What rank 0 saved about the trainer."""
        with open_checkpoint(self._saved_steps.place_of(step), step) as checkpoint:
            tree = checkpoint.tree(only=["trainer", "trainer_state"])
        text, place = tree.get("trainer_state"), tree.get("trainer")
        if not isinstance(text, str) or not isinstance(place, dict):
            raise UsageError(f"step {step} of '{self._path}' was not saved by SlackwaterTrainer")
        return text, place

    def before_damaged(self, error: DamagedError) -> str:
        """The checkpoint before the one that cannot be read."""
        earlier = [step for step in self._saved_steps.find() if step < (self._resumed or 0)]
        if self._asked or self._resumed is None or not earlier or self._options.get("on_damage") == "raise":
            raise error
        logger.error("step %d cannot be restored: %s; trying step %d", self._resumed, error, earlier[-1])
        return self._point_to(earlier[-1])

    def owns(self, checkpoint: str | None) -> bool:
        return checkpoint is not None and self._directory is not None and checkpoint.startswith(self._directory.name)

    def place(self, place: tuple[int, int], resume: str | None) -> tuple[int, int]:
        """Epoch, and batches of it that were seen. Trainer knows, unless the loader has no length."""
        trainer = self._trainer
        self._saved = 0
        if not self.owns(resume) or trainer.args.ignore_data_skip or not self._place.get("endless"):
            return place
        return int(self._place["pass"]), int(self._place["batches"])

    def restore(self) -> None:
        """Once model, optimizer and scheduler are as they will be trained."""
        trainer = self._trainer
        self.random = LateRandom()
        state = self._state(trainer.model_wrapped)
        state["tr_loss"] = self._loss = torch.tensor(0.0, device=trainer.args.device)
        only = ["model"] if self._place.get("only_model") else None
        self.random.restore(self._checkpointer, state, self._resumed, only=only, rank_local=["tr_loss", "epoch_start"])
        self._saved = self._resumed or 0

    # Epochs

    def begin_epoch(self, **given: Any) -> bool:
        """Right before the loader is iterated. Returns whether there is anything left to train."""
        trainer, state = self._trainer, self._trainer.state
        resumes = self.owns(given["resume_from_checkpoint"]) and given["epoch"] == given["epochs_trained"]
        seen = given["steps_trained_in_current_epoch"] if resumes else 0
        if resumes:
            self._continue_loss()
            if state.max_steps > 0 and state.global_step >= state.max_steps:
                trainer.control.should_training_stop = True
                return False
        generators = generators_of(given["train_dataloader"])
        if seen and not trainer.args.ignore_data_skip:
            self._epoch_start.replay(generators)
        else:
            if resumes:
                self.random.apply()
                self._epoch_start.catch_up(generators)
            self._epoch_start.take(generators)
        self._passes = (given["epoch"], seen, state.global_step)
        self._deferred = None
        return True

    def _continue_loss(self) -> None:
        """The mean loss that is logged next counts from the last log, not from the restart."""
        trainer, loss, self._loss = self._trainer, self._loss, None
        if loss is None or self._place.get("only_model"):
            return
        trainer._tr_loss = loss
        trainer._total_loss_scalar = -float(loss)  # train() reports the mean loss of its own steps
        trainer._globalstep_last_logged = int(self._place["logged"])

    # Saving

    def before_save(self) -> None:
        """The last step of an epoch is saved after what the Trainer does when the epoch has ended, or a run that is
        resumed from it would leave that out."""
        trainer = self._trainer
        control, epoch = trainer.control, trainer.state.epoch
        if self._deferred is not None:  # the second call, after on_epoch_end
            control.should_save = control.should_save or self._deferred
            self._deferred = None
        elif control.should_training_stop or control.should_epoch_stop or (epoch > 0 and epoch == int(epoch)):
            self._deferred, control.should_save = control.should_save, False

    def save(self, model: Any) -> None:
        trainer, state = self._trainer, self._trainer.state
        step = state.global_step
        if step <= self._saved:
            return  # Trainer also saves when it ends
        if trainer.hp_search_backend is None:
            trainer.store_flos()
        text = self._trainer_state()
        best = state.best_global_step == step
        saved = self._state(model)
        saved["tr_loss"] = trainer._tr_loss
        saved["trainer"] = self._place_now()
        saved["trainer_state"] = text if trainer.is_world_process_zero() else ""
        if trainer.args.save_only_model:
            saved = {key: saved[key] for key in ("model", "trainer", "trainer_state")}
        metadata = self._metrics()
        if best:
            metadata[_BEST] = step
        snapshot = self._checkpointer.save(step, saved, metadata=metadata)
        if snapshot is not None:
            self._saved = step
            if self._stubs is not None:
                self._stubs.add(snapshot, text)

    def _state(self, model: Any) -> dict[str, Any]:
        trainer = self._trainer
        state = {"model": _trained_part(trainer.model) or model, "optimizer": trainer.optimizer}
        state |= {"scheduler": trainer.lr_scheduler, "rng": Rng(), "epoch_start": self._epoch_start}
        if getattr(trainer.accelerator, "scaler", None) is not None:
            state["scaler"] = trainer.accelerator.scaler
        return state

    def _place_now(self) -> dict[str, Any]:
        trainer = self._trainer
        number, seen, began = self._passes
        done = (trainer.state.global_step - began) * trainer.args.gradient_accumulation_steps
        endless = _length(trainer.callback_handler.train_dataloader) is None
        place = {"pass": number, "batches": seen + done, "endless": endless}
        return {**place, "logged": trainer._globalstep_last_logged, "only_model": trainer.args.save_only_model}

    def _trainer_state(self) -> str:
        """The text of trainer_state.json, with the callbacks as they are now."""
        trainer = self._trainer
        state, found = trainer.state, {}
        for callback in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(callback, ExportableState):
                found.setdefault(type(callback).__name__, []).append(callback.state())
        state.stateful_callbacks = {name: states[0] if len(states) == 1 else states for name, states in found.items()}
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = os.path.join(self._output_dir, f"checkpoint-{state.global_step}")
        return json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True) + "\n"

    def _metrics(self) -> dict[str, Any]:
        """What was logged at this step, for keep_best and for `slackwater ls`."""
        state = self._trainer.state
        logged = [entry for entry in state.log_history if entry.get("step") == state.global_step]
        found = {key: value for entry in logged for key, value in entry.items() if key != "step"}
        return {key: value for key, value in found.items() if isinstance(value, (int, float, str))}

    def load_best(self) -> bool:
        """Whether the best model is one of ours."""
        trainer = self._trainer
        best = trainer.state.best_model_checkpoint
        step = trainer.state.best_global_step
        if best is None or step not in self._all_steps():
            return False
        self._checkpointer.fence(host=True)
        allow_pickle = bool(self._options.get("allow_pickle", False))
        weights = load(self._saved_steps.place_of(step), step, only="model", allow_pickle=allow_pickle)["model"]
        trainer.model.load_state_dict(weights, strict=_trained_part(trainer.model) is None)
        return True

    def _all_steps(self) -> list[int]:
        """With those in flight, once they are committed. What failed is in the log, and close() reports it."""
        with contextlib.suppress(Error):
            self._checkpointer.wait()
        return list(self._saved_steps.find())

    # The end

    def close(self) -> None:
        try:
            if self._stubs is not None:
                self._all_steps()
                self._stubs.tidy({})
        finally:
            self._clean_up()
            self._checkpointer.close()

    def abandon(self) -> None:
        """After an exception, which is the one to raise."""
        self._clean_up()
        try:
            self._checkpointer.close()
        except Exception as error:
            logger.error("closing the checkpointer: %s", error)

    def _clean_up(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()


def _step_of(directory: str) -> int:
    """N of checkpoint-N, and -1 for other names."""
    number = os.path.basename(os.path.normpath(directory)).rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _trained_part(model: Any) -> dict[str, Any] | None:
    """Of a PEFT model, only what is trained is saved, and buffers. The rest comes from the base model."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, (peft.PeftModel, peft.PeftMixedModel)):
        return None
    buffers = dict(model.named_buffers())
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return found | {name: buffers[name] for name in model.state_dict() if name in buffers}
