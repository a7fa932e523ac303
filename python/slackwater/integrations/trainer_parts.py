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
    """The random states from right before the loader of the current epoch was iterated."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {}

    def take(self, generators: Mapping[str, Any]) -> None:
        self._state = Rng(**generators).state_dict()

    def replay(self, generators: Mapping[str, Any]) -> None:
        """Sets them again, so that the loader gives the same order. Nothing was taken on another number of ranks."""
        if not self._state:
            return
        saved = self._state.get("generators", {})
        known = {name: generators[name] for name in saved if name in generators}
        state = {key: value for key, value in self._state.items() if key != "generators"}
        if known:
            state["generators"] = {name: saved[name] for name in known}
        Rng(**known).load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


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
