"""Matches the saved parameters of an optimizer with those of the given state: by name, or else by order."""

from __future__ import annotations

import argparse
import collections
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from ..errors import DamagedError
from ..ranks.sharding import Replicated, shards_in
from ..state import codec, names
from ..state.codec import Node
from ..state.parameters import Names, by_memory, named_tensors, names_by_id, names_by_memory


class StateParts:
    """Modules and other torch tensors of the given state, and the names that they give to parameters."""

    def __init__(self, state: Any, encoder: codec.Encoder, torch: Any) -> None:
        self._state = state
        self._encoder = encoder
        self._torch = torch
        self._parts: list[tuple[str, Any]] | None = None
        self._names: tuple[Names, dict[Any, tuple[str, ...]]] | None = None

    def modules(self) -> list[tuple[str, Any]]:
        return [(name, part) for name, part in self._all() if isinstance(part, self._torch.Module)]

    def parameter_names(self, optimizer: Any) -> tuple[Names, Names]:
        """All names of each parameter: those in modules, and those of other tensors with the same memory."""
        torch = self._torch
        if self._names is None:
            modules = [(name, *torch.module_parameters(part)) for name, part in self.modules()]
            tensors = [(name, part) for name, part in self._all() if isinstance(part, torch.Tensor)]
            memories = by_memory([*named_tensors(modules), *tensors], torch.memory_key)
            self._names = names_by_id(modules), memories
        by_module, memories = self._names
        return by_module, names_by_memory(optimizer, by_module, memories, torch.memory_key)

    def _all(self) -> list[tuple[str, Any]]:
        if self._parts is None:
            self._parts = [] if self._torch is None else list(parts_in(self._state, self._encoder, self._torch))
        return self._parts


def parts_in(state: Any, encoder: codec.Encoder, torch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The modules and other tensors of the given state, with their names."""
    if type(state) is Replicated:
        state = state.value
    if isinstance(state, (torch.Module, torch.Tensor)):
        yield name, state
        return
    if (shards := shards_in(state)) is not None:
        yield from ((name, shard.tensor) for shard in shards if isinstance(shard.tensor, torch.Tensor))
        return
    if isinstance(state, (argparse.Namespace, types.SimpleNamespace)):
        state = vars(state)
    if isinstance(state, Mapping):
        name_of = names.namer(state, name, encoder.holds_more_than_tensors, codec.key_text)
        for key, value in state.items():
            yield from parts_in(value, encoder, torch, name_of(key))
    elif isinstance(state, (list, tuple, collections.deque)):
        for index, value in enumerate(state):
            yield from parts_in(value, encoder, torch, names.join(name, str(index)))


class SavedParameter(NamedTuple):
    number: int
    names: tuple[str, ...]  # names in the given state: after renaming, and with those of tied tensors
    shape: tuple[int, ...] | None  # None: saved by an older release that did not store it
    group: int
    index: int


class CurrentParameter(NamedTuple):
    parameter: Any
    names: tuple[str, ...]
    group: int
    index: int
    by_memory: bool = False  # named by a tensor outside any module, which older releases did not do

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)


class ParameterMatch:
    """Which saved parameter goes to which given one. ``wrong`` says why that is not possible."""

    def __init__(self, name: str, saved: list[list[SavedParameter]], here: list[list[CurrentParameter]]) -> None:
        self.pairs: dict[int, CurrentParameter] = {}  # by saved number
        self.new: list[CurrentParameter] = []
        self.gone: list[SavedParameter] = []
        self.left: dict[int, CurrentParameter] = {}  # by saved number: another shape, left out by the caller
        self.sources: list[int | None] = [None] * len(here)  # saved group of each; None: keeps its values
        self.regrouped: list[int] = []  # groups whose parameters were in different groups before
        self.wrong: list[str] = []
        self.in_order: list[CurrentParameter] = []  # matched only by their order
        self._name = name
        self.saved = saved
        self._here = here
        flat_saved, flat_here = [*chain.from_iterable(saved)], [*chain.from_iterable(here)]
        if any(s.names for s in flat_saved) and any(h.names for h in flat_here):
            self._by_name(flat_saved, flat_here)
        else:
            self._in_order()
        self.same_order = (
            not (self.new or self.gone)
            and [len(group) for group in saved] == [len(group) for group in here]
            and all(
                (own := self.pairs.get(s.number)) is not None and own.parameter is h.parameter
                for s, h in zip(flat_saved, flat_here, strict=True)
            )
        )

    def _in_order(self) -> None:
        """Matches by order. Only the shapes can be checked."""
        name = f"'{self._name}'"
        if len(self.saved) != len(self._here):
            self.wrong.append(
                f"{name} has {len(self._here)} parameter groups here and {len(self.saved)} in the checkpoint"
            )
            return
        for index, (saved, here) in enumerate(zip(self.saved, self._here, strict=True)):
            if len(saved) != len(here):
                self.wrong.append(
                    f"group {index} of {name} has {len(here)} parameters here and {len(saved)} in the checkpoint"
                )
                continue
            self.sources[index] = index
            for one, other in zip(saved, here, strict=True):
                self._pair(one, other)
                self.in_order.append(other)

    def _by_name(self, saved: list[SavedParameter], here: list[CurrentParameter]) -> None:
        by_name: dict[str, SavedParameter] = {}
        for one in saved:
            for name in one.names:
                by_name.setdefault(name, one)
        for other in here:
            found = next((by_name[name] for name in other.names if name in by_name), None)
            taken = None if found is None else self.pairs.get(found.number)
            if found is not None and (taken is None or taken.parameter is other.parameter):
                self._pair(found, other)
            elif other.names:
                self.new.append(other)
        unnamed, nameless = [s for s in saved if not s.names], [h for h in here if not h.names]
        if len(unnamed) > len(nameless):  # an older release may have saved them
            again = {id(h.parameter) for h in self.new if h.by_memory}
            perhaps = [h for h in here if not h.names or id(h.parameter) in again]
            if len(perhaps) == len(unnamed):
                nameless = perhaps
                self.new = [h for h in self.new if id(h.parameter) not in again]
        if len(unnamed) != len(nameless):
            self.wrong.append(
                f"'{self._name}' holds {len(nameless)} parameters that nothing in the state has here, and "
                f"{len(unnamed)} in the checkpoint, and such are matched in order; "
                "put their model into the state as well"
            )
        else:
            for one, other in zip(unnamed, nameless, strict=True):
                self._pair(one, other)
                self.in_order.append(other)
        self.gone = [s for s in saved if s.number not in self.pairs]
        self._match_groups()

    def _pair(self, saved: SavedParameter, here: CurrentParameter) -> None:
        self.pairs[saved.number] = here
        if saved.shape is not None and saved.shape != here.shape:
            if set(saved.names) & set(here.names):
                which = f"'{self._name}' holds '{here.names[0]}', which"
            else:
                known = (here.names or saved.names)[:1]
                text = f" ('{known[0]}')" if known else ""
                which = f"parameter {here.index} of group {here.group} of '{self._name}'{text}"
            self.wrong.append(f"{which} has shape {here.shape} here and {saved.shape} in the checkpoint")

    def _match_groups(self) -> None:
        came_from: list[set[int]] = [set() for _ in self._here]
        went_to: list[set[int]] = [set() for _ in self.saved]
        for one in chain.from_iterable(self.saved):
            if (other := self.pairs.get(one.number)) is not None:
                came_from[other.group].add(one.group)
                went_to[one.group].add(other.group)
        for index, sources in enumerate(came_from):
            if len(sources) == 1 and all(went_to[source] == {index} for source in sources):
                self.sources[index] = min(sources)
            elif sources:
                self.regrouped.append(index)
            elif not self._here[index] and index < len(self.saved) and not self.saved[index]:
                self.sources[index] = index  # both empty

    def leave(self, excluded: Callable[[str], bool]) -> None:
        """Parameters whose shape has changed and that the caller leaves out start from scratch."""
        for one in chain.from_iterable(self.saved):
            other = self.pairs.get(one.number)
            if other is None or one.shape is None or one.shape == other.shape:
                continue
            if set(one.names) & set(other.names) and any(map(excluded, other.names)):
                del self.pairs[one.number]
                self.left[one.number] = other
                self.wrong = [text for text in self.wrong if f"holds '{other.names[0]}', which" not in text]


def saved_parameters(
    node: Node,
    numbers: list[list[int]],
    name: str,
    names_of: Callable[[str], tuple[str, ...]],
    shape_of: Callable[[str], tuple[int, ...] | None],
) -> list[list[SavedParameter]]:
    """The saved parameters of each group. ``node`` is what ``describe`` returned, or None. ``names_of`` and
    ``shape_of`` look up tensors of the checkpoint."""
    if node is None:
        return [[SavedParameter(n, (), None, g, i) for i, n in enumerate(group)] for g, group in enumerate(numbers)]
    if not _well_formed(node, [len(group) for group in numbers]):
        raise DamagedError(f"the tree of the checkpoint holds malformed names of the parameters of '{name}'")
    return [
        [
            SavedParameter(
                number,
                () if known is None else names_of(known),
                tuple(shape) if shape is not None else None if known is None else shape_of(known),
                group,
                index,
            )
            for index, (number, known, shape) in enumerate(zip(*parts, strict=True))
        ]
        for group, parts in enumerate(zip(numbers, node["names"], node["shapes"], strict=True))
    ]


def _well_formed(node: Node, lengths: list[int]) -> bool:
    if not isinstance(node, dict):
        return False
    for part, fits in (("names", _is_name), ("shapes", _is_shape)):
        groups = node.get(part)
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            return False
        if [len(group) for group in groups] != lengths or not all(fits(item) for group in groups for item in group):
            return False
    return True


def _is_name(item: Any) -> bool:
    return item is None or isinstance(item, str)


def _is_shape(item: Any) -> bool:
    return item is None or (isinstance(item, list) and all(type(size) is int and size >= 0 for size in item))


def current_parameters(optimizer: Any, found: Names, others: Names) -> list[list[CurrentParameter]]:
    """The parameters of an optimizer, by group. ``found``: names from modules. ``others``: names by memory."""
    names_of = {**others, **found}
    return [
        [
            CurrentParameter(p, names_of.get(id(p), ()), group, index, id(p) in others)
            for index, p in enumerate(entry["params"])
        ]
        for group, entry in enumerate(optimizer.param_groups)
    ]
