"""Random states come back last: what a restore does with ``sw.Rng`` and with data loaders.

When a loader is iterated, it draws a seed for its workers from the global generator, and its sampler may draw more. An
uninterrupted run drew these when the epoch began, before the checkpoint. A run that is resumed in the middle of the
epoch makes the iterator after the restore. So what the first iterator of a restored loader draws is undone. If the
loader is in the middle of an epoch, the random states of the checkpoint are set once more, because nothing comes
between the checkpoint and the next batch. (At the end of an epoch, the program goes on with whatever it does between
epochs.)

torchdata's StatefulDataLoader knows which case it is, and makes its iterators in ``_get_iterator``. Only that method is
overridden here, only on the restored loader, and only for one call. See docs/decisions/0010-random-states-last.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..errors import UnsupportedError
from ..rng import Rng
from ..state.names import an

logger = logging.getLogger("slackwater")

_ITERATION = "slackwater_iteration"  # an extra key in the loader's own state


class RandomStates:
    """The random states that one restore brings back, and the objects that are restored with them."""

    def __init__(self) -> None:
        self._saved: list[tuple[Rng, dict[str, Any]]] = []
        self._objects: list[Any] = []

    def add(self, rng: Rng, state: dict[str, Any]) -> None:
        self._saved.append((rng, state))

    def beside(self, restored: Any) -> None:
        """Adds an object whose load_state_dict() is called before finish()."""
        self._objects.append(restored)

    def finish(self) -> None:
        """Call it after everything else was restored."""
        self.apply()
        turn = _Turn(self)
        for owner in self._objects:
            for loader in _loaders_in(owner):
                loader._get_iterator = _FirstIterator(loader, owner, turn)

    def apply(self) -> None:
        for rng, state in self._saved:
            rng.load_state_dict(state)

    def now(self) -> RandomStates:
        """The states of the same generators at this moment."""
        result = RandomStates()
        result._saved = [(rng, rng.state_dict()) for rng, _ in self._saved]
        return result


class _Turn:
    """Only the first loader that continues in the middle of its epoch sets the random states of the checkpoint."""

    def __init__(self, random: RandomStates) -> None:
        self.random = random
        self.taken = False


class _FirstIterator:
    """Replaces ``_get_iterator`` of a restored loader for one call."""

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
        # Workers fetch ahead, and a sampler that reaches its end counts the epoch itself.
        if _counts_epochs(self._owner):
            self._owner.set_epoch(self._owner.iteration)
        states.apply()
        return iterator


def _loaders_in(value: Any) -> Iterator[Any]:
    """A StatefulDataLoader that was given a state, or the loaders that an object (one of Accelerate's) wraps."""
    for found in (value, *getattr(value, "__dict__", {}).values()):
        own = getattr(found, "__dict__", None)
        if isinstance(own, dict) and isinstance(own.get("next_iter_state"), dict) and hasattr(found, "_get_iterator"):
            yield found


def _forget_place(sampler: Any) -> None:
    """torchdata's StatefulDistributedSampler keeps its position at the end of an epoch, because the iterator of a
    finished epoch never asks it for anything. The next epoch would then be empty."""
    if "next_yielded" in getattr(sampler, "__dict__", {}):
        sampler.next_yielded = None


def _within_epoch(state: Any) -> bool:
    """Whether the state of a StatefulDataLoader is between two batches: some were fetched, but not all."""
    if not isinstance(state, dict) or state.get("_iterator_finished"):
        return False
    snapshot = state.get("_snapshot")  # with workers
    if isinstance(snapshot, dict):
        return bool(snapshot.get("_snapshot_step", 0) + state.get("_steps_since_snapshot", 0))
    return bool(state.get("_num_yielded"))


# The number of the epoch seeds the sampler of Accelerate's loaders, but is not part of their state.


def _counts_epochs(loader: Any) -> bool:
    own = getattr(loader, "__dict__", {})
    counts = isinstance(own.get("iteration"), int) and isinstance(own.get("dl_state_dict"), dict)
    return "base_dataloader" in own and counts


def state_of(value: Any, name: str) -> Any:
    """``value.state_dict()``, plus the epoch in which one of Accelerate's loaders will continue."""
    own = getattr(value, "__dict__", {})
    if "base_dataloader" in own and "dl_state_dict" not in own:
        raise UnsupportedError(
            f"'{name}' is a loader of Accelerate around {an(type(own['base_dataloader']).__name__)}, which keeps no "
            "state; prepare it with DataLoaderConfiguration(use_stateful_dataloader=True), or leave it out of the state"
        )
    state = value.state_dict()
    if not _counts_epochs(value) or not isinstance(state, dict):
        return state
    # While the last batch is in use, the state is already that of the end, and the next epoch begins from there.
    active = any(other is value for other in getattr(value.gradient_state, "dataloader_references", ()))
    return {**state, _ITERATION: value.iteration + (1 if active and state.get("_iterator_finished") else 0)}


def load_state(value: Any, state: Any, **options: Any) -> None:
    """``value.load_state_dict(state)``, with what ``state_of`` added."""
    if isinstance(state, dict) and _ITERATION in state:
        state = dict(state)
        iteration = state.pop(_ITERATION)
        if _counts_epochs(value):
            value.iteration = iteration
            value.dl_state_dict = state  # from a save before the first batch
    value.load_state_dict(state, **options)
