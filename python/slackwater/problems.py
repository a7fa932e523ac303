"""What does not fit between a checkpoint and a state, gathered while planning and said in one error."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from . import _core
from .errors import MismatchError
from .names import Pattern

logger = logging.getLogger("slackwater")

_SHOWN = 5  # problems of one kind named in a message


class Problems:
    """Of one restore. Names that are not selected are no problems."""

    def __init__(self, selected: Pattern) -> None:
        self._selected = selected
        self._missing: dict[str, None] = {}
        self._extra: dict[str, None] = {}
        self._rank_local: dict[str, None] = {}
        self._wrong: list[str] = []

    def missing(self, found: Iterable[str]) -> None:
        """In the state and not in the checkpoint."""
        self._missing.update(dict.fromkeys(filter(self._selected, found)))

    def extra(self, found: Iterable[str]) -> None:
        """In the checkpoint and not in the state."""
        self._extra.update(dict.fromkeys(filter(self._selected, found)))

    def rank_local(self, found: Iterable[str]) -> None:
        """Saved by single ranks, of which there were more or fewer than now."""
        self._rank_local.update(dict.fromkeys(filter(self._selected, found)))

    def wrong(self, problem: str) -> None:
        """A sentence."""
        self._wrong.append(problem)

    def settle(
        self, version: _core.VersionInfo, world: int, *, strict: bool, cast: bool, drop_rank_local: bool, model_lost: bool
    ) -> None:
        """Raise what stands against restoring, and log what is left out.

        ``model_lost``: nothing of a model in the state would come back, which is never what dropping is meant for.
        """
        parts = []
        if strict and self._missing:
            parts.append(f"the checkpoint lacks {_list(self._missing)}")
        if strict and self._extra:
            parts.append(f"the given state lacks {_list(self._extra)}")
        shown = self._wrong[:_SHOWN]
        if len(self._wrong) > _SHOWN:
            shown.append(f"and {len(self._wrong) - _SHOWN} more")
        parts.extend(shown)
        if parts:
            hints = []
            if strict and (self._missing or self._extra):
                hints.append("strict=False restores what both have")
            if any("dtype" in problem for problem in self._wrong) and not cast:
                hints.append("cast=True converts dtypes")
            hint = f" ({'; '.join(hints)})" if hints else ""
            raise MismatchError(
                f"the checkpoint of step {version.step} does not fit the given state: {'; '.join(parts)}{hint}"
            )
        if self._rank_local:
            self._settle_rank_local(version, world, drop_rank_local and not model_lost)

    def _settle_rank_local(self, version: _core.VersionInfo, world: int, drop: bool) -> None:
        owned = _list(self._rank_local)
        if not drop:
            raise MismatchError(
                f"the checkpoint of step {version.step} was saved by {version.world} ranks and this run has {world}, "
                f"but single ranks own {owned}; for weights, go on with {version.world} ranks once and save them in "
                "sw.Replicated; for random states and the like, rank_local='drop' leaves them as they are here"
            )
        logger.warning(
            "step %d was saved by %d ranks, this run has %d: what single ranks own is left as it is here: %s",
            version.step,
            version.world,
            world,
            owned,
        )


def _list(items: Iterable[str]) -> str:
    names = list(items)
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
