"""Random states come back last: what a restore does with ``sw.Rng`` and with data loaders.

A loader that is iterated draws a seed for its workers from the global generator, and its sampler may draw more. A run
that was not interrupted drew these when the epoch began, before the checkpoint. One that is resumed in the middle of
the epoch makes the iterator after it. So the draws of the first iterator that a restored loader makes are taken back,
and one that stands in the middle of an epoch sets the random states of the checkpoint once more: there, nothing comes
between the checkpoint and the next batch. (At the end of an epoch the program goes on with whatever it does between
epochs.)

torchdata's StatefulDataLoader tells which it is, and makes its iterators in ``_get_iterator``: that is the one thing
overridden here, on the restored loader alone and for one call. See docs/decisions/0010-random-states-last.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..errors import UnsupportedError
from ..rng import Rng
from ..state.names import an

logger = logging.getLogger("slackwater")

_ITERATION = "slackwater_iteration"  # beside the keys of the loader's own state


class RandomStates:
    """Those that one restore brings back, and the objects restored beside them."""

    def __init__(self) -> None:
        self._saved: list[tuple[Rng, dict[str, Any]]] = []
        self._objects: list[Any] = []

    def add(self, rng: Rng, state: dict[str, Any]) -> None:
        self._saved.append((rng, state))

    def beside(self, restored: Any) -> None:
        """An object whose load_state_dict() will have been called."""
        self._objects.append(restored)

    def finish(self) -> None:
        """After everything else was restored."""
        self.apply()
        turn = _Turn(self)
        for owner in self._objects:
            for loader in _loaders_in(owner):
                loader._get_iterator = _FirstIterator(loader, owner, turn)

    def apply(self) -> None:
        for rng, state in self._saved:
            rng.load_state_dict(state)

    def now(self) -> RandomStates:
        """The same generators, as they are at this moment."""
        result = RandomStates()
        result._saved = [(rng, rng.state_dict()) for rng, _ in self._saved]
        return result


class _Turn:
    """Only the first loader that goes on in the middle of its epoch sets the random states of the checkpoint."""

    def __init__(self, random: RandomStates) -> None:
        self.random = random
        self.taken = False


class _FirstIterator:
    """Stands in for ``_get_iterator`` of a restored loader, once."""

    def __init__(self, loader: Any, owner: Any, turn: _Turn) -> None:
        replaced = loader.__dict__.get("_get_iterator")
        self._loader = loader
        self._owner = owner
        self._replaced = replaced._replaced if isinstance(replaced, _FirstIterator) else replaced
        self._turn = turn

    def __call__(self) -> Any:
        loader, turn = self._loader, self._turn
        if self._replaced is None:
            del loader._get_iterator
        else:
            loader._get_iterator = self._replaced
        state = loader.next_iter_state
        within = _within_epoch(state) and not turn.taken
        states = turn.random if within else turn.random.now()
        turn.taken = turn.taken or within
        iterator = loader._get_iterator()
        if isinstance(state, dict) and state.get("_iterator_finished"):
            _forget_place(getattr(loader, "sampler", None))
        # Workers are sent ahead, and a sampler that meets its end counts the epoch itself.
        if _counts_epochs(self._owner):
            self._owner.set_epoch(self._owner.iteration)
        states.apply()
        return iterator


def _loaders_in(value: Any) -> Iterator[Any]:
    """A StatefulDataLoader that has been given a state, or those that an object (Accelerate's loaders) wraps."""
    for found in (value, *getattr(value, "__dict__", {}).values()):
        own = getattr(found, "__dict__", None)
        if isinstance(own, dict) and isinstance(own.get("next_iter_state"), dict) and hasattr(found, "_get_iterator"):
            yield found


def _forget_place(sampler: Any) -> None:
    """The iterator of an epoch that had ended never asks the sampler for anything. torchdata's
    StatefulDistributedSampler then keeps its place, the end, for the next epoch, which would be empty."""
    if "next_yielded" in getattr(sampler, "__dict__", {}):
        sampler.next_yielded = None


def _within_epoch(state: Any) -> bool:
    """Whether the state of a StatefulDataLoader is one between two batches: some were fetched, the end was not met."""
    if not isinstance(state, dict) or state.get("_iterator_finished"):
        return False
    snapshot = state.get("_snapshot")  # with workers
    if isinstance(snapshot, dict):
        return bool(snapshot.get("_snapshot_step", 0) + state.get("_steps_since_snapshot", 0))
    return bool(state.get("_num_yielded"))


# Accelerate's loaders leave the number of the epoch, which seeds their sampler, out of their state.


def _counts_epochs(loader: Any) -> bool:
    own = getattr(loader, "__dict__", {})
    counts = isinstance(own.get("iteration"), int) and isinstance(own.get("dl_state_dict"), dict)
    return "base_dataloader" in own and counts


def state_of(value: Any, name: str) -> Any:
    """``value.state_dict()``, with the epoch that one of Accelerate's loaders will go on in."""
    own = getattr(value, "__dict__", {})
    if "base_dataloader" in own and "dl_state_dict" not in own:
        raise UnsupportedError(
            f"'{name}' is a loader of Accelerate around {an(type(own['base_dataloader']).__name__)}, which keeps no "
            "state; prepare it with DataLoaderConfiguration(use_stateful_dataloader=True), or leave it out of the state"
        )
    state = value.state_dict()
    if not _counts_epochs(value) or not isinstance(state, dict):
        return state
    # While the last batch is worked on, the state is that of the end, from which the next epoch begins.
    active = any(other is value for other in getattr(value.gradient_state, "dataloader_references", ()))
    return {**state, _ITERATION: value.iteration + (1 if active and state.get("_iterator_finished") else 0)}


def load_state(value: Any, state: Any, **options: Any) -> None:
    """``value.load_state_dict(state)``, with what ``state_of`` has added."""
    if isinstance(state, dict) and _ITERATION in state:
        state = dict(state)
        iteration = state.pop(_ITERATION)
        if _counts_epochs(value):
            value.iteration = iteration
            value.dl_state_dict = state  # what a save before the first batch takes
    value.load_state_dict(state, **options)
