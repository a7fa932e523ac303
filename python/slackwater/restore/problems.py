"""Collects what does not fit between a checkpoint and a state during planning, and reports it in one error."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .. import _core
from ..errors import MismatchError
from ..state.names import Pattern, listing
from .rank_local import Kind, RankLocal
from .rename import Renaming

logger = logging.getLogger("slackwater")

_SHOWN = 5  # of one kind that a message names


class Problems:
    """The problems of one restore. Names that are not selected are not problems."""

    def __init__(self, selected: Pattern, rename: Renaming | None = None) -> None:
        self._selected = selected
        self._rename = rename if rename is not None else Renaming()
        self._missing: dict[str, None] = {}
        self._extra: dict[str, None] = {}
        self._rank_local: dict[str, Kind] = {}
        self._wrong: list[str] = []
        self._loose = False  # whether strict=False would help
        self._unused: dict[str, None] = {}
        self._new_parameters: dict[str, None] = {}
        self._left_plain: dict[str, None] = {}
        self._other_class: dict[str, str] = {}

    def missing(self, found: Iterable[str]) -> None:
        """In the state, but not in the checkpoint."""
        self._missing.update(dict.fromkeys(filter(self._selected, found)))

    def extra(self, found: Iterable[str]) -> None:
        """In the checkpoint, but not in the state."""
        self._extra.update(dict.fromkeys(filter(self._wanted, found)))

    def rank_local(self, found: Iterable[str], kind: Kind) -> None:
        """Saved by single ranks of a run with another number of ranks."""
        self._rank_local.update(dict.fromkeys(filter(self._wanted, found), kind))

    def _wanted(self, saved: str) -> bool:
        return self._selected(self._rename(saved))

    def wrong(self, problem: str, loose: bool = False) -> None:
        """Any other problem, as a sentence. ``loose``: strict=False accepts it."""
        self._wrong.append(problem)
        self._loose = self._loose or loose

    def unused(self, found: Iterable[str]) -> None:
        """In the checkpoint and not used, which is not a problem."""
        self._unused.update(dict.fromkeys(found))

    def left_plain(self, name: str) -> None:
        """A plain value of the state that the checkpoint does not have, which is not a problem."""
        self._left_plain[name] = None

    def other_class(self, name: str, text: str) -> None:
        """An optimizer that cannot use the saved state and stays as it is; a sentence that says why."""
        self._other_class[name] = text

    def new_parameter(self, found: str) -> None:
        """A parameter for which the checkpoint has no state of this optimizer."""
        self._new_parameters[found] = None

    listing = staticmethod(listing)

    @property
    def all_missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    @property
    def all_absent(self) -> tuple[str, ...]:
        """All that is absent. Plain values come first: they are few, and there may be many tensors."""
        return (*self._left_plain, *self._missing)

    @property
    def left_alone(self) -> tuple[str, ...]:
        return (*self.all_absent, *self._other_class)

    @property
    def of_other_class(self) -> dict[str, str]:
        """The optimizers that stay as they are, and why."""
        return self._other_class

    @property
    def all_unused(self) -> tuple[str, ...]:
        return (*self._extra, *self._unused)

    @property
    def new_parameters(self) -> tuple[str, ...]:
        return tuple(self._new_parameters)

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(self._rank_local)

    def settle(
        self, version: _core.VersionInfo, world: int, *, strict: bool, cast: bool, rank_local: RankLocal
    ) -> None:
        """Raises an error if the restore is not possible, and logs what is left out."""
        parts = []
        if strict and self._missing:
            parts.append(f"the checkpoint lacks {listing(self._missing)}")
        if strict and self._extra:
            parts.append(f"the given state lacks {listing(self._extra)}")
        shown = self._wrong[:_SHOWN]
        if len(self._wrong) > _SHOWN:
            shown.append(f"and {len(self._wrong) - _SHOWN} more")
        parts.extend(shown)
        if parts:
            hints = []
            if strict and (self._missing or self._extra or self._loose):
                hints.append("strict=False restores what both have")
            if any("dtype" in problem for problem in self._wrong) and not cast:
                hints.append("cast=True converts dtypes")
            hint = f" ({'; '.join(hints)})" if hints else ""
            raise MismatchError(
                f"the checkpoint of step {version.step} does not fit the given state: {'; '.join(parts)}{hint}"
            )
        if self._rank_local:
            self._settle_rank_local(version, world, rank_local)

    def _settle_rank_local(self, version: _core.VersionInfo, world: int, rank_local: RankLocal) -> None:
        kept = {name: kind for name, kind in self._rank_local.items() if not rank_local.leaves(name, kind)}
        if kept:
            hints = []
            if "weights" in kept.values():
                tops = sorted({name.partition(".")[0] for name, kind in kept.items() if kind == "weights"})
                hints.append(
                    f"if all ranks hold the same weights there, go on with {version.world} ranks once and save them in "
                    f"sw.Replicated; to go on without them, name them: rank_local={tops}"
                )
            if set(kept.values()) != {"weights"}:
                hints.append("rank_local='drop' leaves all but weights and optimizer state as it is here")
            raise MismatchError(
                f"the checkpoint of step {version.step} was saved by {version.world} ranks and this run has {world}, "
                f"but single ranks own {listing(kept)}; {'; '.join(hints)}"
            )
        owned = listing(self._rank_local)
        logger.warning(
            "step %d was saved by %d ranks, this run has %d: what single ranks own is left as it is here: %s",
            version.step,
            version.world,
            world,
            owned,
        )
