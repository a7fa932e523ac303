"""The last step of a run, if ``every`` skipped it (``save_last=True``), and whether its state is still the same.

At the end of a run, the state can be saved under the number of the last ``save()`` if it has not changed since. This
must be certain. Otherwise the step would hold later weights, or a later state of a loader or of the random numbers, and
a resume would silently go wrong. So each skipped ``save()`` walks the state as a real one would, but copies nothing
large. The end of the run walks it again. What cannot be compared is treated as changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from .integrations import arrays, torch_adapter
from .ranks.sharding import RankInfo
from .session import Session
from .state import codec
from .state.memory import HOST
from .state.tree import Flattener

logger = logging.getLogger("slackwater")

_COMPARED_BYTES = 1 << 20  # at most, of an array, or of a tensor that is another object than before


class StateFingerprint:
    """A state as it was at one moment. Holds its tensors, so that their memory cannot be reused for others."""

    def __init__(self, state: Any, allow_pickle: bool, optimizer_steps: int) -> None:
        flat = Flattener(allow_pickle, None, RankInfo())
        self._tree = codec.dump_tree(flat.flatten(state))
        self._optimizer_steps = optimizer_steps
        self._thread = threading.get_ident()
        self.has_torch = bool(flat.torch_tensors)
        self._names = flat.torch_names
        self._tensors = flat.torch_tensors
        self._places = [_place(tensor) for tensor in flat.torch_tensors]
        self._array_names = flat.array_names
        self._arrays = [_bytes_of(memory.owner, memory) for memory in flat.array_memories]

    def changed(self, now: StateFingerprint) -> str | None:
        """A sentence about what has changed, or may have; None if the state is certainly the same."""
        if self._thread != now._thread:
            return "another thread has taken over, and may not look at the state"
        if self._optimizer_steps != now._optimizer_steps:
            return "an optimizer has made a step"
        if self._names != now._names or self._array_names != now._array_names or self._tree != now._tree:
            return "plain values, or the state of an object or of random numbers, have changed"
        for name, one, other, was, place in zip(
            self._names, self._tensors, now._tensors, self._places, now._places, strict=True
        ):
            if was != place and not _same_bytes(one, other):
                return f"tensor '{name}' has changed, or cannot be compared"
        for name, kept, found in zip(self._array_names, self._arrays, now._arrays, strict=True):
            if kept is None or kept != found:
                return f"array '{name}' has changed, or is too large to be compared"
        return None


class SkippedStep(NamedTuple):
    """A step that ``every`` skipped."""

    step: int
    state: Mapping[Any, Any]
    texts: dict[str, str]
    metrics: dict[str, float]
    fingerprint: StateFingerprint


class LastStep:
    """The newest step of a Checkpointer, if ``every`` skipped it. Belongs to the thread that saves."""

    def __init__(self, session: Session, every: int, save_last: bool, allow_pickle: bool) -> None:
        self._session = session
        self._every = every
        self._save_last = save_last
        self._allow_pickle = allow_pickle
        self._skipped: SkippedStep | int | None = None

    def skip(self, step: int, state: Mapping[Any, Any], texts: dict[str, str], metrics: dict[str, float]) -> None:
        if not self._save_last:
            self._skipped = step
            return
        fingerprint = self._fingerprint(state)
        self._session.watch_optimizers(fingerprint.has_torch)
        self._skipped = SkippedStep(step, state, texts, metrics, fingerprint)

    def forget(self) -> None:
        self._skipped = None

    def save(self) -> None:
        """At a clean end: saves the step, or says why not."""
        skipped, self._skipped = self._skipped, None
        session = self._session
        if skipped is None or session.closed or session.ownership.disowned:
            return
        if isinstance(skipped, int):
            logger.info(
                "the run ends with step %d, which is not saved (every=%d): see save_last=True and save(force=True)",
                skipped,
                self._every,
            )
            return
        if (why := self._try_to_save(skipped)) is not None:
            logger.warning(
                "step %d, which every=%d skipped, is not saved at the end (save_last): %s; to have it, call "
                "save(step, state, force=True) when the step is done",
                skipped.step,
                self._every,
                why,
            )

    def _try_to_save(self, skipped: SkippedStep) -> str | None:
        """Returns why it could not be saved, or None."""
        session = self._session
        if not session.may_save():
            return "close() was called during another save"
        try:
            if (changed := skipped.fingerprint.changed(self._fingerprint(skipped.state))) is not None:
                return f"since then {changed}"
            session.forget_failures()  # on_error="raise": those of earlier steps come out of close()
            session.save(skipped.step, skipped.state, skipped.texts, metrics=skipped.metrics, never_skip=True)
        except Exception as error:  # also from the caller's own state_dict()
            return f"{type(error).__name__}: {error}"
        return None

    def _fingerprint(self, state: Mapping[Any, Any]) -> StateFingerprint:
        return StateFingerprint(state, self._allow_pickle, self._session.optimizer_steps)


def _place(tensor: Any) -> tuple[Any, ...]:
    version = torch_adapter().versions([tensor])[0]
    unknown = version < 0  # inference tensors have no version counter
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), object() if unknown else version


def _same_bytes(one: Any, other: Any) -> bool:
    """Compares tensors that are new objects, such as torch's random state, or what some state_dict() methods return."""
    if one.data_ptr() == other.data_ptr() or one.dtype != other.dtype or one.shape != other.shape:
        return one.numel() == 0 and one.dtype == other.dtype and one.shape == other.shape
    if one.device.type != "cpu" or other.device.type != "cpu" or one.numel() * one.itemsize > _COMPARED_BYTES:
        return False
    import torch

    same: bool = torch.equal(*(part.detach().contiguous().reshape(-1).view(torch.uint8) for part in (one, other)))
    return same


def _bytes_of(owner: Any, memory: Any) -> bytes | None:
    if memory.device != HOST or memory.size_bytes > _COMPARED_BYTES or not arrays.is_array(owner):
        return None
    taken: bytes = owner.tobytes()
    return taken
