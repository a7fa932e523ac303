"""What the adapters for Transformers, Accelerate and Lightning share.

A loader without state can continue in the middle of an epoch if two random states are saved. The first is the one from
right before the loader was iterated (``EpochStart``). It gives the same order again, and the batches that were seen are
skipped. The second is the one of the checkpoint (``LateRandom``). It is set last, because iterating and skipping draw
random numbers that the uninterrupted run drew earlier.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from .. import _core, tiers
from ..checkpointer import Checkpointer
from ..errors import Error, NotFoundError, UsageError
from ..rng import Rng, is_generator
from ..state.names import an
from .unlocked import Unlocked

logger = logging.getLogger("slackwater")

RESUME = "slackwater"  # what trainers take as the name of the newest checkpoint
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # also what pathlib leaves of one


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
        self,
        checkpointer: Checkpointer | Unlocked,
        state: MutableMapping[Any, Any],
        step: int | None = None,
        **options: Any,
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
    if tiers.is_object_location(path):
        return str(path), options
    return local_path(path, f"{argument} takes a directory, or s3://bucket/run as a text"), options


def local_path(path: str | os.PathLike[str], takes: str) -> str:
    """Absolute. A URL is refused: as a path, it would be a directory below the current one."""
    text = os.path.expanduser(os.fspath(path))
    if _URL.match(text):
        raise UsageError(f"'{text}' is not a directory; {takes}")
    return os.path.abspath(text)


class SavedSteps:
    """The committed checkpoints of a run, wherever they are: in its directory, or only on a tier below it."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = path
        given = options.get("tiers")
        places = tiers.find_places(path, given, every=1, keep=2, keep_every=None, node_local=False)
        self._tiers = places.lower
        self._where = [places.path, *(os.fspath(tier.location) for tier in places.lower)]

    def find(self) -> dict[int, str]:
        """Each step, oldest first, and the fastest place that has it.

        Raises if nothing is found and a place cannot be listed: a run would begin anew although it has checkpoints.
        """
        found: dict[int, str] = {}
        trouble: Error | None = None
        for where, tier in zip(self._where, [None, *self._tiers], strict=True):
            try:
                versions = _core.list_versions(where)
            except NotFoundError:
                continue  # nothing was saved there yet
            except Error as error:
                logger.warning("the checkpoints in '%s' cannot be listed: %s", where, error)
                if tier is None or not (tier.endpoint or tier.region or tier.profile or tier.path_style):
                    trouble = error  # otherwise only the engine knows how to reach it
                continue
            for version in versions:
                found.setdefault(version.step, where)
        if not found and trouble is not None:
            raise trouble
        return dict(sorted(found.items()))

    def place_of(self, step: int | None) -> str:
        """Where to read this step, or the newest one."""
        found = self.find()
        if step is None:
            return found[max(found)] if found else self._where[0]
        return found.get(step, self._where[0])


def refuse_later_steps(path: str, steps: Iterable[int], begins: int, how: str) -> None:
    """Two runs are never mixed. Without this, the first save would be the one to say so."""
    latest = max(steps, default=-1)
    if latest > begins:
        raise UsageError(
            f"'{path}' has checkpoints up to step {latest}, and this run begins at step {begins}; "
            f"{how}, or give another directory"
        )
