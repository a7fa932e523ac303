"""Torn: what was found changed between save() and the fence. It is captured inside save() from then on.

Not only the tensors that were seen to change: whoever updates one tensor of an EMA too early updates them all, and a snapshot
would be lost for each. So the whole object they belong to is captured inside save(): the outermost object of the state (a
module, an optimizer, anything with a ``state_dict()``) that holds the tensor, or else the entry of the state that it stands below.
Buffers are apart from parameters: a forward pass changes all of the first and none of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("slackwater")


class Torn:
    """Thread rule: ``learn`` may be called from any thread; the rest belongs to the saving thread."""

    def __init__(self) -> None:
        self._owners: set[tuple[str, bool]] = set()  # names of objects; and whether only their volatile tensors are meant
        self._objects: list[str] = []  # of the last state, in the order they were met: outer ones first
        self._owner_of: dict[str, str] = {}  # tensors of the last state
        self._volatile: frozenset[str] = frozenset()  # of those that it left to be captured later

    def __bool__(self) -> bool:
        return bool(self._owners)

    def look_at(self, objects: list[str]) -> None:
        """The objects of the state that is being saved."""
        if objects != self._objects:
            self._objects, self._owner_of = objects, {}

    def left_for_later(self, volatile: list[str]) -> None:
        """Volatile tensors that there was no room to capture inside save()."""
        self._volatile = frozenset(volatile)

    def learn(self, names: Iterable[str]) -> None:
        changed: dict[tuple[str, bool], list[str]] = {}
        for name in names:
            changed.setdefault((self._owner(name), name in self._volatile), []).append(name)
        for (owner, volatile), tensors in changed.items():
            if (owner, volatile) in self._owners:
                continue
            self._owners.add((owner, volatile))
            if tensors != [owner] and not volatile:
                logger.warning(
                    "'%s' is updated between save() and the fence (%d of its tensors, such as '%s'), so all of it is "
                    "captured inside save() from now on. To spare that copy, update it before save(), or call fence() first",
                    owner,
                    len(tensors),
                    tensors[0],
                )

    def flags(self, names: list[str], volatile: list[bool]) -> list[bool]:
        """Which of these are captured inside save(), whatever room there is."""
        owners = list(map(self._owner, names))
        whole = {owner for owner, only_volatile in self._owners if not only_volatile}
        volatile_part = {owner for owner, only_volatile in self._owners if only_volatile}
        return [
            owner in whole or (is_volatile and owner in volatile_part)
            for owner, is_volatile in zip(owners, volatile, strict=True)
        ]

    def _owner(self, name: str) -> str:
        owner = self._owner_of.get(name)
        if owner is None:
            inside = (found for found in self._objects if name == found or name.startswith(f"{found}."))
            owner = self._owner_of[name] = next(inside, name.partition(".")[0])
        return owner
