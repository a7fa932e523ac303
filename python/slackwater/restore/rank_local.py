"""What belongs to single ranks when another number of ranks restores it: left as it is there, or an error.

Weights and moments are never left out unless they are named: a run that goes on from random weights says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from ..errors import UsageError
from ..state.codec import Node
from ..state.decoder import tag_of
from ..state.names import Pattern, an
from ..state.nodes import tensor_name

Kind = Literal["random", "weights", "other"]

_FLOATING = ("float", "bfloat", "complex")
_RNG = "slackwater.rng.Rng"


class RankLocal:
    """``rank_local=`` of restore().

    "random" leaves random states as they are; "drop" all but weights; a list of patterns random states and what they
    match, weights too; "error" nothing.
    """

    def __init__(self, said: str | Iterable[str] = "random") -> None:
        self._named = Pattern(only=[])
        self._kinds: frozenset[Kind] = frozenset({"random"})
        if said == "drop":
            self._kinds = frozenset({"random", "other"})
        elif said == "error":
            self._kinds = frozenset()
        elif isinstance(said, str):
            if said != "random":
                raise UsageError(
                    f"rank_local is {said!r}; it is 'random', 'error', 'drop' or a list of names such as ['ema.*']"
                )
        else:
            try:
                self._named = Pattern(only=list(said))
            except TypeError:
                raise UsageError(
                    f"rank_local is {an(type(said).__name__)}; it is 'random', 'error', 'drop' or a list of names"
                ) from None

    def leaves(self, name: str, kind: Kind) -> bool:
        return kind in self._kinds or self._named(name)


def kind_of_lost(node: Node, dtype_of: Callable[[str], str | None]) -> Kind:
    """Of something saved: weights if a module, an optimizer or a tensor of floating point stands in it, or one that
    nothing is known about; random if there are random states and nothing else."""
    random = other = False
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif not isinstance(item, dict):
            other = True
        elif (name := tensor_name(item)) is not None:
            dtype = dtype_of(name)
            if dtype is None or dtype.startswith(_FLOATING):
                return "weights"
            other = True
        elif tag_of(item) == "object":
            if item["of"] in ("module", "optimizer"):
                return "weights"
            if item["class"] == _RNG:
                random = True
            else:
                other = True
                stack.append(item["v"])
        else:
            stack.extend(item.values())
    return "random" if random and not other else "other"
