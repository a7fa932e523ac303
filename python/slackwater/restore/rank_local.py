"""What belongs to single ranks when another number of ranks restores: it is left as it is, or is an error.

Weights and moments are never left out unless they are named. Otherwise a run would silently go on from random weights.
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
    """The option ``rank_local=`` of restore().

    "random" leaves random states as they are. "drop" leaves everything but weights. A list of patterns leaves random
    states and what the patterns match, even weights. "error" leaves nothing.
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
    """The kind of a saved item. "weights": it contains a module, an optimizer, a floating-point tensor, or a tensor
    that nothing is known about. "random": it contains random states and nothing else."""
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
