"""Accelerate: ``AccelerateCheckpointer`` saves and restores what ``accelerator.prepare()`` made.

Exactness asks for five things, which ``batches`` does: the loader is told the number of its epoch, its order is the one
of that epoch, the batches that were seen are skipped, the random states are set after the first batch was fetched
(Accelerate's loaders fetch one ahead), and optimizers are saved without Accelerate's wrapper.

One thread uses it: the one that trains.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import accelerate
from torch.utils.data import DataLoader

from ..checkpointer import Checkpointer
from ..errors import UnsupportedError, UsageError
from ..rng import Rng
from ..snapshot import Snapshot
from ..state.names import an
from . import loaders
from .accelerate_state import SavedStates
from .trainer_shared import EpochStart, Held, LateRandom, generators_of
from .unlocked import Unlocked

__all__ = ["AccelerateCheckpointer"]

logger = logging.getLogger("slackwater")

_OWN_ENGINES = ("DEEPSPEED", "MEGATRON_LM", "XLA")
_RANK_LOCAL = ["epoch_start", "loaders"]


class AccelerateCheckpointer:
    """``for epoch, batch in ck.batches(loader, epochs=3)``, and ``ck.save()`` after each batch.

    Make it after ``accelerator.prepare()``, on all processes. ``state``: more to save, by name, besides what was
    prepared and what ``register_for_checkpointing`` was given. ``rng``: ``sw.Rng(mine=generator)`` if the program has
    generators of its own. Other options are those of ``sw.Checkpointer``. Without ``path``, only
    ``accelerator.save_state`` and ``load_state`` go through Slackwater (``route_save_state``).
    """

    def __init__(
        self,
        accelerator: accelerate.Accelerator,
        path: str | os.PathLike[str] | None = None,
        *,
        state: MutableMapping[str, Any] | None = None,
        rng: Rng | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(accelerator, accelerate.Accelerator):
            raise UsageError(f"accelerator is {an(type(accelerator).__name__)}; give the accelerate.Accelerator")
        _check_engine(accelerator)
        self._accelerator = accelerator
        self._extra = {} if state is None else state  # plain values are set in it
        self._random_states = rng if rng is not None else Rng()
        self._options = options
        self._checkpointer = None if path is None else Checkpointer(path, **options)
        self._epoch_start = EpochStart()
        self._random = LateRandom()
        self._epoch = 0
        self._batch = 0  # batches of this epoch that were handed out
        self._between_epochs = False  # the checkpoint that was restored
        self._loader: Any = None  # that batches() goes through now
        self._looked = False  # for something to restore
        self._saved_states: SavedStates | None = None
        self.step = 0  # optimizer steps so far, as counted by save()
        if path is None:
            self.route_save_state()

    @property
    def checkpointer(self) -> Checkpointer:
        """For everything else: ``steps()``, ``wait()``, ``pin()``, ``failures``."""
        if self._checkpointer is None:
            raise UsageError("this AccelerateCheckpointer has no directory; give one: (accelerator, 'runs/x')")
        return self._checkpointer

    # Training

    def batches(self, loader: Any, epochs: int | None) -> Iterator[tuple[int, Any]]:
        """Each batch with the number of its epoch. Restores the newest checkpoint first, unless ``restore`` was called,
        and continues behind the last batch that was trained on before it.

        ``epochs``: how many in all, with those before the restart. None goes on without an end: leave the loop with
        ``break``. It ends by itself only if the loader gives no batch.
        """
        if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0):
            raise UsageError(f"epochs is {epochs!r}; it is a whole number, 0 or more, or None for no end")
        if self._loader is not None:
            raise UsageError("batches() is under way already; one AccelerateCheckpointer goes through one loader")
        if not self._looked and self._checkpointer is not None:
            self.restore()
        return self._all_batches(loader, epochs)

    def _all_batches(self, loader: Any, epochs: int | None) -> Iterator[tuple[int, Any]]:
        while epochs is None or self._epoch < epochs:
            seen = self._batch
            try:
                for batch in self._batches_of_epoch(loader, seen):
                    self._batch += 1
                    yield self._epoch, batch
            finally:
                self._loader = None
            if self._batch == 0 and epochs is None:
                logger.warning("the loader gave no batch in epoch %d; batches() ends", self._epoch)
                return
            self._epoch, self._batch = self._epoch + 1, 0
        self._random.apply()  # a run that had ended
        self._loader = None

    def _batches_of_epoch(self, loader: Any, seen: int) -> Iterator[Any]:
        generators = generators_of(loader)
        _tell_epoch(loader, self._epoch)
        if getattr(loader, "use_stateful_dataloader", False):
            loader.load_state_dict({})  # prepare() has begun an epoch, before it installed the sampler
        if seen:
            self._epoch_start.replay(generators)
        else:
            self._random.apply()
            if self._between_epochs:
                self._between_epochs = False
                self._epoch_start.catch_up(generators)
            self._epoch_start.take(generators)
        self._loader = _without_first(loader, seen) if seen else loader
        for batch in self._loader:
            self._random.apply()  # what was drawn until here was drawn before the checkpoint
            yield batch
        self._random.apply()

    def save(
        self, *, step: int | None = None, metadata: Mapping[str, Any] | None = None, force: bool = False, **more: Any
    ) -> Snapshot | None:
        """Saves, if the optimizer made its step: None in the middle of gradient accumulation (``sync_gradients``).

        ``step``: the number of the checkpoint; by default, each call is one more. The rest is as in
        ``Checkpointer.save``.
        """
        if not self._accelerator.sync_gradients:
            return None  # gradients are not saved
        self.step = self.step + 1 if step is None else step
        return self.checkpointer.save(self.step, self._state(), metadata=metadata, force=force, **more)

    def restore(self, step: int | None = None, **options: Any) -> int | None:
        """Brings everything back to the newest checkpoint, or to that of ``step``. Returns the step, or None."""
        self._looked = True
        self._random = LateRandom()
        state = self._state()
        options.setdefault("rank_local", _RANK_LOCAL)
        found = self._random.restore(self.checkpointer, state, step, **options)
        if found is not None:
            self._take(self.checkpointer, state)
        return found

    # accelerator.save_state and load_state

    def route_save_state(self, *, background: bool = False) -> None:
        """From now on, ``accelerator.save_state(directory)`` writes a checkpoint of Slackwater there, and
        ``load_state`` reads it. ``load_state`` still reads directories that Accelerate wrote. ``close`` ends it.

        ``save_state`` returns when the checkpoint is committed; with ``background``, at once. Then the next
        ``save_state``, ``load_state``, ``wait`` or ``close`` waits for it.
        """
        if self._saved_states is None:
            self._saved_states = SavedStates(self._accelerator, self._state, self._load, self._options)
        self._saved_states.background = background

    def _load(self, checkpointer: Checkpointer | Unlocked, taken: list[str], options: Mapping[str, Any]) -> None:
        """``taken``: what hooks have loaded themselves."""
        self._looked = True
        self._random = LateRandom()
        state = self._state()
        if self._checkpointer is not None:
            self._checkpointer.fence(host=True)  # what it still copies is overwritten now
        for key in taken:
            state.pop(key)
        self._random.restore(checkpointer, state, rank_local=_RANK_LOCAL, **options)
        self._take(checkpointer, state)

    # The end

    def wait(self, timeout: float | None = None) -> None:
        """Waits until everything saved so far is committed."""
        if self._saved_states is not None:
            self._saved_states.finish()
        if self._checkpointer is not None:
            self._checkpointer.wait(timeout=timeout)

    def close(self, timeout: float | None = None) -> None:
        try:
            if self._saved_states is not None:
                self._saved_states.close()
        finally:
            if self._checkpointer is not None:
                self._checkpointer.close(timeout)

    def __enter__(self) -> AccelerateCheckpointer:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._saved_states is not None:
            with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
                self._saved_states.close()
        if self._checkpointer is not None:
            self._checkpointer.__exit__(kind, error, traceback)

    # The state

    def _state(self) -> dict[str, Any]:
        accelerator = self._accelerator
        state: dict[str, Any] = {}
        for kind, objects in (
            ("model", accelerator._models),
            ("optimizer", [getattr(one, "optimizer", one) for one in accelerator._optimizers]),
            ("scheduler", accelerator._schedulers),
            ("custom", accelerator._custom_objects),
        ):
            state |= {kind if number == 0 else f"{kind}_{number}": one for number, one in enumerate(objects)}
        if not any(key.startswith(("model", "optimizer", "custom")) for key in state) and not self._extra:
            raise UsageError("nothing was prepared; call accelerator.prepare(model, optimizer, ...) first")
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler
        if self._extra:
            state["extra"] = self._extra
        state["loaders"] = Held(self._loader_states())
        state |= {"rng": self._random_states, "epoch_start": self._epoch_start, "accelerate": self._place()}
        return state

    def _loader_states(self) -> list[Any]:
        """Of stateful loaders, unless batches() counts for them."""
        if self._epoch > 0 or self._batch > 0:
            return []
        return [loaders.state_of(loader, "loader") for loader in _stateful(self._accelerator)]

    def _place(self) -> dict[str, Any]:
        accelerator = self._accelerator
        epoch, batch = self._epoch, self._batch
        active = accelerator.gradient_state.active_dataloader
        if active is not None and active is self._loader and active.end_of_dataloader:  # it fetches one batch ahead
            epoch, batch = epoch + 1, 0
        place = {"epoch": epoch, "batch": batch, "step": self.step, "accelerator_step": accelerator.step}
        return {**place, "sampler_seeds": [sampler.initial_seed for sampler in _seedable(accelerator)]}

    def _take(self, checkpointer: Checkpointer | Unlocked, state: Mapping[str, Any]) -> None:
        place = state["accelerate"]
        self._epoch, self._batch = int(place["epoch"]), int(place["batch"])
        self._between_epochs = self._batch == 0
        self.step, self._accelerator.step = int(place["step"]), int(place["accelerator_step"])
        for sampler, seed in zip(_seedable(self._accelerator), place["sampler_seeds"], strict=False):
            sampler.initial_seed = seed
        for loader, saved in zip(_stateful(self._accelerator), state["loaders"].value or [], strict=False):
            loaders.load_state(loader, saved)
            checkpointer._random.beside(loader)
        checkpointer._random.finish()


def _check_engine(accelerator: accelerate.Accelerator) -> None:
    kind = accelerator.distributed_type.name
    if kind in _OWN_ENGINES:
        raise UnsupportedError(f"AccelerateCheckpointer cannot save the state of {kind}; it keeps its own checkpoints")
    if kind == "FSDP" and not getattr(accelerator, "is_fsdp2", False):
        raise UnsupportedError("AccelerateCheckpointer cannot save FSDP's flat parameters; use fsdp_version=2")


def _tell_epoch(loader: Any, epoch: int) -> None:
    """Accelerate's loaders take their order from ``iteration``, and other samplers from ``set_epoch``."""
    if "base_dataloader" in getattr(loader, "__dict__", {}):
        loader.iteration = epoch
        return
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if callable(getattr(owner, "set_epoch", None)):
            owner.set_epoch(epoch)


def _without_first(loader: Any, seen: int) -> Any:
    if isinstance(loader, DataLoader):  # Accelerate's loaders say that they are one
        return accelerate.skip_first_batches(loader, seen)
    return _Rest(loader, seen)


class _Rest:
    """What is left of any iterable."""

    def __init__(self, loader: Any, seen: int) -> None:
        self._loader, self._seen = loader, seen

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        for _ in range(self._seen):
            if next(iterator, self) is self:
                return
        yield from iterator


def _seedable(accelerator: accelerate.Accelerator) -> list[Any]:
    """The samplers that take their order from a seed and the epoch."""
    found = []
    for loader in accelerator._dataloaders:
        get = getattr(loader, "get_sampler", None)
        sampler = get() if callable(get) else None
        if hasattr(sampler, "initial_seed"):
            found.append(sampler)
    return found


def _stateful(accelerator: accelerate.Accelerator) -> list[Any]:
    return [loader for loader in accelerator._dataloaders if getattr(loader, "use_stateful_dataloader", False)]
