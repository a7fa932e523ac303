"""SaveWatch: warns once about a counter that never changes, about saves in the middle of gradient accumulation, and
about parameters that are still being gathered.

Wrong warnings teach people to ignore warnings. So the watch is careful. It checks only counters whose name means
progress, and never "epoch", which may stay the same for a whole run. It warns about saves without an optimizer step in
between only if there are gradients, and only after more such saves than a GradScaler skips in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from .integrations.param_gathers import GatherWatch

logger = logging.getLogger("slackwater")

_SAVES = 50  # with the same value before the warning
_AMID = 16  # saves with gradients and without an optimizer step before the warning

_PROGRESS = (
    "step",
    "global_step",
    "current_step",
    "step_num",
    "iter",
    "iteration",
    "iter_num",
    "global_iteration",
    "num_updates",
    "tokens_seen",
    "samples_seen",
    "consumed_tokens",
    "consumed_samples",
)


class SaveWatch:
    """Belongs to one checkpointer, and to the thread that saves."""

    def __init__(self) -> None:
        self._saves = 0
        self._first: dict[str, int] | None = {}  # counters unchanged since the first save; None: done
        self._steps_seen = 0  # optimizer steps at the last save
        self._amid: int | None = 0  # saves during accumulation; None: already warned
        self._gathers = GatherWatch()

    def check(self, step: int, state: Mapping[Any, Any], optimizers: Iterable[Any], optimizer_steps: int) -> None:
        self._saves += 1
        self._check_progress(state)
        self._check_gradients(step, optimizers, optimizer_steps)
        self._gathers.check(state, optimizers)

    def _check_progress(self, state: Mapping[Any, Any]) -> None:
        if self._first is None:
            return
        if self._saves == 1:
            self._first = {name: state[name] for name in _PROGRESS if type(state.get(name)) is int}
            return
        self._first = {name: value for name, value in self._first.items() if state.get(name) == value}
        if self._saves < _SAVES and self._first:
            return
        for name, value in self._first.items():
            logger.warning(
                "state['%s'] is still %d after %d saves: the state holds the number it was given, and does not follow "
                "your variable; set state['%s'] before each save(), or use the step that restore() returns",
                name,
                value,
                self._saves,
                name,
            )
        self._first = None

    def _check_gradients(self, step: int, optimizers: Iterable[Any], optimizer_steps: int) -> None:
        stepped, self._steps_seen = optimizer_steps != self._steps_seen, optimizer_steps
        if stepped or optimizer_steps == 0 or self._amid is None or not any(map(_has_gradient, optimizers)):
            return
        self._amid += 1
        if self._amid == _AMID:
            self._amid = None
            logger.warning(
                "step %d is saved between two optimizer steps, as %d others were, while gradients are there: gradients "
                "are not saved, so what was accumulated is lost at a resume; save right after optimizer.step()",
                step,
                _AMID - 1,
            )


def _has_gradient(optimizer: Any) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return getattr(parameter, "grad", None) is not None
    return False
