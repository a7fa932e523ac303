"""LoopHooks: when a fit of Lightning saves, and how it continues in the middle of an epoch.

No hook of callbacks comes at a moment when nothing of a batch is left to do: ``on_train_batch_end`` comes before the
validation that may follow, and before schedulers that wait for its metrics. So five methods of the fit's own loops are
replaced, on these objects, until ``remove``. Lightning's own restart (``restarting``) is then left out. It is made for
checkpoints from the middle of a batch, and would repeat or skip parts of it.

A checkpoint is of one of two places: between two batches, or between two epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.utilities.exceptions import SIGTERMException

from . import loaders
from .trainer_shared import generators_of

logger = logging.getLogger("slackwater")


class LoopHooks:
    """Used by the thread that trains, from on_fit_start to on_train_end."""

    def __init__(self, trainer: Any, callback: Any) -> None:
        self._trainer = trainer
        self._callback = callback
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._resumes = callback.resumed is not None  # until the first batch comes
        self._undo: list[Callable[[], None]] = []
        self._replace(self._fit, "_load_combined_loader_states", self._before_first_iteration)
        self._replace(self._fit, "on_advance_start", self._begin_epoch)
        self._replace(self._epoch, "on_run_start", self._begin_batches)
        self._replace(self._epoch, "on_advance_end", self._end_batch)
        self._replace(self._fit, "on_advance_end", self._end_epoch)

    def _replace(self, loop: Any, name: str, method: Callable[..., None]) -> None:
        original = getattr(loop, name)
        active = True

        def replaced(*args: Any) -> None:
            if active:
                method(original, *args)
            else:
                original(*args)

        def undo() -> None:
            nonlocal active
            active = False  # another callback may have replaced it since
            if loop.__dict__.get(name) is replaced:
                del loop.__dict__[name]
                if getattr(loop, name) != original:
                    setattr(loop, name, original)  # which an earlier callback replaced

        setattr(loop, name, replaced)
        self._undo.append(undo)

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # Where an epoch begins

    def _before_first_iteration(self, original: Callable[..., None]) -> None:
        """In setup_data(), right before it iterates the loaders."""
        original()
        if not self._resumes:
            self._take_epoch_start()

    def _begin_epoch(self, original: Callable[..., None]) -> None:
        if self._resumes and not self._within_epoch():
            self._resumes = False
            self._forget_restart()
            self._callback.epoch_start.catch_up(self._generators())
            self._callback.random.apply()  # from here on, everything is as in the run that was not interrupted
        original()

    def _begin_batches(self, original: Callable[..., None], fetcher: Any) -> None:
        """Lightning iterates the loaders in here, except for those that setup_data() has iterated."""
        if self._resumes:
            self._resumes = False
            original(fetcher)
            self._continue(fetcher)
            self._callback.random.apply()
            self._forget_restart()
            return
        if self._trainer.current_epoch > 0 and not self._fit.is_resuming and not self._epoch.restarting:
            self._take_epoch_start()
        original(fetcher)

    def _continue(self, fetcher: Any) -> None:
        """Iterates the loaders again, up to the batch that comes next."""
        seen = self._epoch.batch_progress.current.ready
        if self._have_state() and fetcher.length is not None:
            for loader, state in zip(self._flat_loaders(), self._callback.loader_states, strict=True):
                loaders.load_state(loader, state)
            iter(fetcher)
            fetcher.fetched += seen
            return
        # Without a length, one batch is fetched ahead, and the state of a loader would be behind it.
        self._callback.epoch_start.replay(self._generators())
        iter(fetcher)
        batches = next(fetcher) if isinstance(fetcher, _DataLoaderIterDataFetcher) else fetcher
        for _ in range(seen):
            next(batches)

    def _within_epoch(self) -> bool:
        progress = self._fit.epoch_progress.current
        return bool(progress.started > progress.processed)

    def _forget_restart(self) -> None:
        """From here on, Lightning goes on as if it had not stopped."""
        for loop in (self._fit, self._epoch, self._epoch.val_loop):
            loop.on_iteration_done()

    # Loaders

    def _flat_loaders(self) -> list[Any]:
        combined = self._fit._combined_loader
        return [] if combined is None else list(combined.flattened)

    def _have_state(self) -> bool:
        found = self._flat_loaders()
        states = self._callback.loader_states
        return bool(found) and all(isinstance(loader, _Stateful) for loader in found) and len(states) == len(found)

    def _generators(self) -> dict[str, Any]:
        found = enumerate(self._flat_loaders())
        return {f"{name}_{number}": one for number, loader in found for name, one in generators_of(loader).items()}

    def _take_epoch_start(self) -> None:
        self._callback.epoch_start.take(self._generators())

    def warn_about_loaders(self) -> None:
        without = [loader for loader in self._flat_loaders() if not isinstance(loader, _Stateful)]
        if without:
            logger.warning(
                "%s of the fit keeps no state: a resume within an epoch fetches the batches again that were seen, and "
                "is exact only if they come in the same order; torchdata's StatefulDataLoader needs neither",
                f"a {type(without[0]).__name__}",
            )

    # Where a checkpoint is saved

    def _end_batch(self, original: Callable[..., None], fetcher: Any) -> None:
        try:
            original(fetcher)
        except SIGTERMException:  # raised last, when everything is done
            self._save(force=True)
            raise
        # The last batch of an epoch is saved when the epoch has ended. Where max_steps cuts an epoch short, it is saved
        # here, so that a longer fit continues with the rest of it.
        if not self._epoch._num_ready_batches_reached():
            self._save(last=self._epoch.done)

    def _end_epoch(self, original: Callable[..., None]) -> None:
        try:
            original()
        except SIGTERMException:
            self._save(force=True)
            raise
        self._save(last=self._fit.done if self._callback.save_last else False)

    def _save(self, **how: bool) -> None:
        if not self._epoch._should_accumulate():  # gradients are not saved
            self._callback.save(self._trainer, **how)
