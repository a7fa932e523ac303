"""What the adapters for Transformers, Accelerate and Lightning share.

A loader without state can continue in the middle of an epoch if two random states are saved. The first is the one from
right before the loader was iterated (``EpochStart``). It gives the same order again, and the batches that were seen are
skipped. The second is the one of the checkpoint (``LateRandom``). It is set last, because iterating and skipping draw
random numbers that the uninterrupted run drew earlier.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from ..checkpointer import Checkpointer
from ..errors import UsageError
from ..rng import Rng, is_generator
from ..state.names import an

RESUME = "slackwater"  # what trainers take as the name of the newest checkpoint


class EpochStart:
    """The random states from right before the loader of the current epoch was iterated.

    It also saves the loader's own generators as they are at the checkpoint, for one that is between two epochs.
    """

    def __init__(self) -> None:
        self._start: dict[str, Any] = {}
        self._own: dict[str, Any] = {}  # what was restored
        self._generators: Mapping[str, Any] = {}

    def take(self, generators: Mapping[str, Any]) -> None:
        self._start, self._generators = Rng(**generators).state_dict(), generators

    def replay(self, generators: Mapping[str, Any]) -> None:
        """Sets them again, so that the loader gives the same order. On another number of ranks there are none."""
        self._generators = generators
        if self._start:
            _set({**self._start, "generators": {}}, {})
            self._set_own(self._start.get("generators", {}), generators)

    def catch_up(self, generators: Mapping[str, Any]) -> None:
        """Sets the loader's own generators to what they were at the checkpoint."""
        self._set_own(self._own, generators)

    @staticmethod
    def _set_own(saved: Mapping[str, Any], generators: Mapping[str, Any]) -> None:
        known = {name: generators[name] for name in saved if name in generators}
        if known:  # Rng sets the global ones too: to what they are
            _set({**Rng().state_dict(), "generators": {name: saved[name] for name in known}}, known)

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "own": Rng(**self._generators).state_dict().get("generators", {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._own = state["start"], state["own"]


def _set(state: dict[str, Any], generators: Mapping[str, Any]) -> None:
    Rng(**generators).load_state_dict(state)


class LateRandom:
    """Restores a state now, and sets its random states once more when ``apply`` is called first."""

    def __init__(self) -> None:
        self._pending = contextlib.ExitStack()

    def restore(
        self, checkpointer: Checkpointer, state: MutableMapping[Any, Any], step: int | None = None, **options: Any
    ) -> int | None:
        """The step that was restored, or None if there is nothing to restore."""
        start = self._pending.enter_context(checkpointer.resume(state, step, **options))
        return start if checkpointer.restored is not None else None

    def apply(self) -> None:
        self._pending.close()


class Held:
    """Takes whatever was saved in its place, for a trainer that restores from dicts."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


def generators_of(loader: Any) -> dict[str, Any]:
    """The generators that decide a loader's order, by a name that a later process gives them too.

    A sampler that seeds its generator by the epoch (Accelerate's seedable one) needs none.
    """
    found: dict[str, Any] = {}
    for where, owner in _parts_of(loader):
        if hasattr(owner, "initial_seed"):
            continue
        generator = getattr(owner, "generator", None)
        if is_generator(generator) and not any(generator is other for other in found.values()):
            found[where] = generator
    return found


def _parts_of(loader: Any) -> Iterator[tuple[str, Any]]:
    """A loader, its samplers, down to the innermost, and its dataset."""
    yield "loader", loader
    yield "dataset", getattr(loader, "dataset", None)
    for first in ("sampler", "batch_sampler"):
        part, name = getattr(loader, first, None), first
        for _ in range(8):  # none is nested deeper
            if part is None:
                break
            yield name, part
            inner = "batch_sampler" if getattr(part, "batch_sampler", None) is not None else "sampler"
            part, name = getattr(part, inner, None), f"{name}_{inner}"


def asked_step(name: Any) -> int | None:
    """The step of "slackwater@40", and None for "slackwater", the newest."""
    text = str(name).removeprefix(RESUME)
    if not text:
        return None
    if text[0] == "@" and text[1:].isascii() and text[1:].isdigit():
        return int(text[1:])
    raise UsageError(f"'{name}' names no checkpoint; it is '{RESUME}', the newest, or '{RESUME}@40', that of step 40")


def is_resume_name(name: Any) -> bool:
    return isinstance(name, str) and (name == RESUME or name.startswith(f"{RESUME}@"))


def path_and_options(given: Any, argument: str) -> tuple[str, dict[str, Any]]:
    """What a trainer was given as its directory: a path, or a dict of a path and options of ``sw.Checkpointer``."""
    options = dict(given) if isinstance(given, Mapping) else {"path": given}
    path = options.pop("path", None)
    if not isinstance(path, (str, os.PathLike)):
        shown = "a dict without 'path'" if isinstance(given, Mapping) and path is None else an(type(path).__name__)
        raise UsageError(f"{argument} is {shown}; give a directory such as 'runs/gpt', or {{'path': ..., 'keep': 3}}")
    return os.path.abspath(os.path.expanduser(os.fspath(path))), options


def refuse_later_steps(checkpointer: Checkpointer, begins: int, how: str) -> None:
    """Two runs are never mixed. Without this, the first save would be the one to say so."""
    latest = checkpointer.latest_step()
    if latest is not None and latest > begins:
        raise UsageError(
            f"'{checkpointer.path}' has checkpoints up to step {latest}, and this run begins at step {begins}; "
            f"{how}, or give another directory"
        )
