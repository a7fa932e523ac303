"""Lightning: ``SlackwaterCallback`` checkpoints a ``fit``, and ``ckpt_path="slackwater"`` resumes it.

``SlackwaterCheckpointIO`` (lightning_io.py) writes the files that Lightning itself asks for, one at a time. The
callback does more: it saves live objects, so that nothing tears and training goes on meanwhile, and it saves and
restores random states, which Lightning does not. lightning_loops.py knows when to do so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..checkpointer import Checkpointer
from ..errors import UnsupportedError, UsageError
from ..reader import load
from ..reader import open as open_checkpoint
from ..rng import Rng
from . import lightning_metrics
from .lightning_io import Nothing, RunIO, SlackwaterCheckpointIO, own_keys, to_checkpoint
from .lightning_loops import LoopHooks
from .trainer_shared import EpochStart, Held, LateRandom, SavedSteps, path_and_options, refuse_later_steps

__all__ = ["SlackwaterCallback", "SlackwaterCheckpointIO"]

logger = logging.getLogger("slackwater")

_RANK_LOCAL = ["epoch_start", "lightning", "loaders", "metrics"]


class SlackwaterCallback(Callback):
    """``L.Trainer(callbacks=[SlackwaterCallback("runs/x", every=1)])``, then ``fit(..., ckpt_path="slackwater")``.

    ``every``: optimizer steps between two checkpoints. ``save_last``: also save when the fit has ended. ``rng``:
    ``sw.Rng(mine=generator)`` if the program has generators of its own. Other options are those of ``sw.Checkpointer``.
    The thread that trains uses it. All ranks have one, with the same directory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int = 1,
        *,
        save_last: bool = False,
        rng: Rng | None = None,
        **options: Any,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"every is {every!r}; it is a whole number, 1 or more")
        self.path = path_and_options(path, "path")[0]
        self.every = every
        self.save_last = bool(save_last)
        self._random_states = rng if rng is not None else Rng()
        self._options = options
        self._saved_steps = SavedSteps(self.path, options)
        self._checkpointer: Checkpointer | None = None  # while a fit saves
        self._io: RunIO | None = None
        self._loops: LoopHooks | None = None
        self._trainer: Any = None
        self._saved = 0  # the last step that was saved or restored
        self.random = LateRandom()
        self.epoch_start = EpochStart()
        self.loader_states: Any = None  # of the checkpoint that is being resumed
        self._metrics: Any = None  # of it
        self.resumed: int | None = None  # its step

    @property
    def allow_pickle(self) -> bool:
        return bool(self._options.get("allow_pickle", False))

    @property
    def checkpointer(self) -> Checkpointer | None:
        """While a fit runs: for ``steps()``, ``wait()``, ``pin()`` and ``failures``."""
        return self._checkpointer

    # The hooks of Lightning, in the order of a run

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._trainer, self._saved, self.resumed = trainer, 0, None
        self.random, self.epoch_start, self.loader_states = LateRandom(), EpochStart(), None
        saves = stage == "fit" and not trainer.fast_dev_run
        if saves:
            _check_strategy(trainer)
            self._checkpointer = Checkpointer(self.path, **self._options)
        strategy = trainer.strategy
        self._io = RunIO(self, strategy.checkpoint_io)
        strategy.checkpoint_io = self._io

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._checkpointer is None:
            return
        self._loops = LoopHooks(trainer, self)
        if self.resumed is not None:
            trainer.num_sanity_val_steps = 0  # it would change the progress that was restored

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._checkpointer is None or self._loops is None:
            return
        if self.resumed is None:
            steps = self._saved_steps.find()
            refuse_later_steps(self.path, steps, trainer.global_step, "give fit(ckpt_path='slackwater')")
            self._saved = trainer.global_step
        else:
            lightning_metrics.put_back(trainer, self._metrics)
        self._metrics = None
        self._loops.warn_about_loaders()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._remove_loops()
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()  # before the strategy takes the model off its device

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._remove_loops()
        checkpointer, self._checkpointer = self._checkpointer, None
        if self._io is not None:
            self._io.remove(trainer.strategy)
        self._io = self._trainer = None
        if checkpointer is not None:  # nothing was trained
            checkpointer.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._remove_loops()
        checkpointer, self._checkpointer = self._checkpointer, None
        if self._io is not None:
            self._io.remove(trainer.strategy)
        self._io = self._trainer = None
        if checkpointer is not None:
            try:  # what is in flight is still committed, but that exception is the one to raise
                checkpointer.close()
            except Exception as error:
                logger.error("closing the checkpointer: %s", error)

    def _remove_loops(self) -> None:
        if self._loops is not None:
            self._loops.remove()
            self._loops = None

    # Saving

    def save(self, trainer: pl.Trainer, *, last: bool = False, force: bool = False) -> None:
        """Called between two batches, when nothing of the last one is left to do."""
        step = trainer.global_step
        if self._checkpointer is None or step <= self._saved:
            return
        due = step // self.every > self._saved // self.every
        if due or force or (last and self.save_last):
            self._checkpointer.save(step, self._state(trainer), metadata=self._metadata(trainer), force=True)
            self._saved = step

    def _state(self, trainer: pl.Trainer) -> dict[str, Any]:
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        weights, optimizers = checkpoint.pop("state_dict"), checkpoint.pop("optimizer_states")
        fit_loop = checkpoint["loops"]["fit_loop"]["state_dict"]
        module: Any = trainer.strategy.model
        live: list[Any] = list(trainer.optimizers)
        if self._is_changed(trainer, weights):  # by somebody's on_save_checkpoint
            module, live = weights, optimizers
        state = {f"optimizer_{number}": one for number, one in enumerate(live)}
        return {
            "module": module,
            **state,
            "loaders": Held(fit_loop.pop("combined_loader", [])),
            "lightning": Held(checkpoint),
            "metrics": Held(lightning_metrics.take(trainer)),
            "epoch_start": self.epoch_start,
            "rng": self._random_states,
        }

    def _is_changed(self, trainer: pl.Trainer, weights: Mapping[str, Any]) -> bool:
        module = trainer.lightning_module
        hooked = is_overridden("on_save_checkpoint", module) or any(
            is_overridden("on_save_checkpoint", callback, parent=Callback) for callback in trainer.callbacks
        )
        if not hooked:
            return False
        own = trainer.strategy.lightning_module_state_dict()
        return own.keys() != weights.keys() or any(own[key].data_ptr() != weights[key].data_ptr() for key in own)

    def _metadata(self, trainer: pl.Trainer) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in trainer.callback_metrics.items():
            if getattr(value, "numel", lambda: 0)() == 1 and (
                value.device.type == "cpu" or "keep_best" in self._options
            ):
                found[name] = float(value)
        return {**found, "epoch": trainer.current_epoch, "optimizers": len(trainer.optimizers)}

    # Loading

    def load(self, step: int | None) -> dict[str, Any]:
        """What Lightning restores from, for ckpt_path="slackwater". False if there is no checkpoint yet."""
        if self._checkpointer is None:  # only reads: validate, test, predict, fast_dev_run
            return to_checkpoint(self._read(step), own_keys(self._trainer.lightning_module))
        if not self._saved_steps.find():
            logger.info("'%s' has no checkpoint yet: a new run", self.path)
            return Nothing()
        with open_checkpoint(self._saved_steps.place_of(step), step) as checkpoint:
            count = int(checkpoint.metadata.get("optimizers", 0))
        names = ["module", *(f"optimizer_{number}" for number in range(count)), "loaders", "lightning", "metrics"]
        held = {name: Held() for name in names}
        self.random = LateRandom()
        state = {**held, "epoch_start": self.epoch_start, "rng": self._random_states}
        found = self.random.restore(self._checkpointer, state, step, rank_local=_RANK_LOCAL)
        assert found is not None
        self.resumed = self._saved = found
        values = {name: one.value for name, one in held.items()}
        if values["lightning"] is None:  # another number of ranks, which did not all save the same
            values["lightning"] = self._read(found, only="lightning")["lightning"]
        self.loader_states = values["loaders"] or []
        self._metrics = values["metrics"]
        return to_checkpoint(values, own_keys(self._trainer.lightning_module))

    def _read(self, step: int | None, **options: Any) -> Any:
        return load(self._saved_steps.place_of(step), step, allow_pickle=self.allow_pickle, **options)


def _check_strategy(trainer: pl.Trainer) -> None:
    strategy = trainer.strategy
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        raise UnsupportedError(
            f"SlackwaterCallback knows Lightning's single-device and DDP strategies, not {type(strategy).__name__}; "
            "use one of those, or save with sw.Checkpointer in a loop of your own"
        )
