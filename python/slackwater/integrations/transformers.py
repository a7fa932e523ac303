"""Transformers: ``SlackwaterTrainer``, and ``SlackwaterMixin`` for other trainers that derive from ``Trainer`` (TRL).

A ``TrainerCallback`` cannot do this. It runs after the batches to skip were computed, and gets the unwrapped model. So
the methods of ``Trainer`` that save and load are overridden here. ``TrainerRun`` has what one call of ``train()`` owns.
The thread that trains uses both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import transformers

from ..errors import DamagedError, UnsupportedError, UsageError
from .trainer_shared import path_and_options
from .transformers_run import TrainerRun

__all__ = ["SlackwaterMixin", "SlackwaterTrainer"]

# Methods of Trainer that call each other as this module expects. Releases before 5 have one long loop instead.
_NEEDED = ("_run_epoch", "_init_training_state", "_load_scaler", "_maybe_log_save_evaluate")


class SlackwaterMixin:
    """Put it before a class that derives from ``transformers.Trainer``. ``slackwater``: the directory, or a dict of
    ``path`` and options of ``sw.Checkpointer``. Without it, the trainer is as ever."""

    _slackwater_run: TrainerRun | None = None  # while train() runs

    def __init__(self, *args: Any, slackwater: Any = None, **kwargs: Any) -> None:
        self._slackwater = None if slackwater is None else path_and_options(slackwater, "slackwater")
        super().__init__(*args, **kwargs)
        if self._slackwater is not None:
            _check(self)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As ever. ``resume_from_checkpoint`` may also be "slackwater", the newest checkpoint, which begins a new run
        if there is none; or "slackwater@40". True takes the newest one, whoever wrote it."""
        rest = {"trial": trial, "ignore_keys_for_eval": ignore_keys_for_eval, **kwargs}
        if self._slackwater is None:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **rest)
        path, options = self._slackwater
        run = TrainerRun(self, path, options, trial)
        self._slackwater_run = run
        try:
            found: Any = run.begin(resume_from_checkpoint)
            while True:
                try:
                    result = super().train(resume_from_checkpoint=found, **rest)
                    break
                except DamagedError as error:
                    found = run.before_damaged(error)
        except BaseException:
            run.abandon()
            raise
        finally:
            self._slackwater_run = None
        run.close()
        return result

    # What Trainer calls, in this order when it resumes

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        run = self._slackwater_run
        if run is None or not run.owns(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        # Ours is restored in _load_optimizer_and_scheduler, once everything it goes into exists.

    def _init_training_state(
        self, max_steps: Any, num_update_steps_per_epoch: Any, num_train_epochs: Any, resume: Any, trial: Any
    ) -> tuple[int, int]:
        run = self._slackwater_run
        place = super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, resume, trial)
        return place if run is None else run.place(place, resume)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        run = self._slackwater_run
        if run is None or not run.owns(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
        else:
            with _instead_of("_load_optimizer_and_scheduler", lambda *_: run.restore()):
                super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        run = self._slackwater_run
        if run is None or not run.owns(checkpoint):
            super()._load_scaler(checkpoint)

    def _run_epoch(self, **kwargs: Any) -> None:
        run = self._slackwater_run
        if run is None or run.begin_epoch(**kwargs):
            super()._run_epoch(**kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        run = self._slackwater_run
        if run is None or not run.owns(checkpoint):
            super()._load_rng_state(checkpoint)
        else:
            run.random.apply()  # after the batches that were seen are skipped

    # What it calls when it saves

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        run = self._slackwater_run
        if run is not None:
            run.before_save()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = self._slackwater_run
        if run is None:
            super()._save_checkpoint(model, trial)
        else:
            with _instead_of("_save_checkpoint", lambda _, model, trial: run.save(model)):
                super()._save_checkpoint(model, trial)

    def _load_best_model(self) -> None:
        run = self._slackwater_run
        if run is None or not run.load_best():
            super()._load_best_model()


class SlackwaterTrainer(SlackwaterMixin, transformers.Trainer):
    """``transformers.Trainer(..., slackwater="runs/gpt")``: checkpoints are Slackwater's."""


@contextlib.contextmanager
def _instead_of(name: str, ours: Callable[..., None]) -> Iterator[None]:
    """Within the block, Trainer's own method is ours. So what classes between the mixin and Trainer do before and after
    it is still done: TRL's trainers write files of their own."""
    original = getattr(transformers.Trainer, name)
    setattr(transformers.Trainer, name, ours)
    try:
        yield
    finally:
        setattr(transformers.Trainer, name, original)


def _check(trainer: Any) -> None:
    missing = [name for name in _NEEDED if not hasattr(transformers.Trainer, name)]
    if missing:
        raise UnsupportedError(
            f"SlackwaterTrainer needs a newer Transformers: {transformers.__version__} has no Trainer.{missing[0]}"
        )
    if trainer.is_deepspeed_enabled:
        raise UnsupportedError(
            "SlackwaterTrainer does not save DeepSpeed's state; use Trainer, and the key 'datastates_ckpt' in "
            "DeepSpeed's config"
        )
    fsdp = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_fsdp_enabled and getattr(fsdp, "fsdp_version", 1) != 2:
        raise UnsupportedError("SlackwaterTrainer cannot save FSDP's flat parameters; set fsdp_version to 2")
    args = trainer.args
    if args.push_to_hub and str(getattr(args.hub_strategy, "value", args.hub_strategy)) != "end":
        raise UsageError(
            "push_to_hub at every save needs the weights in output_dir, where SlackwaterTrainer writes none; "
            "use hub_strategy='end'"
        )
