"""Which parameter of an optimizer is which: their names, stored beside its state, and how saved ones are found again.

Optimizers count their parameters. The numbers say nothing once a layer is added, frozen or moved. So a checkpoint has,
for every group of an optimizer, the name of each parameter and its shape (None where the checkpoint has a tensor of
that name, whose shape it is). The name is that of the tensor of a module in the same state, or of another tensor of
the state in the same memory, such as state_dict() gives. It is None for a parameter that nothing in the state has.
"""

from __future__ import annotations

import argparse
import collections
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from . import codec, names
from .codec import Node
from .errors import DamagedError
from .sharding import Replicated, shards_in

Hashables = tuple[Any, ...]
Places = Sequence[tuple[int, int]]  # of parameters: group, and index there
NamedTensors = tuple[str, Sequence[str], Sequence[Any]]  # of a module: its name, keys of its tensors, the tensors
Names = Mapping[int, tuple[str, ...]]  # all names of a parameter, by its id
KeyOf = Callable[[Any], Hashables | None]


def holds_parameters(value: Any) -> bool:
    """Whether it is an optimizer, or looks like one: wrappers of optimizers need not be a torch.optim.Optimizer."""
    groups = getattr(value, "param_groups", None)
    return isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    )


def identity(optimizer: Any, modules: Hashables) -> Hashables:
    """All that names follow from: equal at two saves, they are the same. All these objects live at the time of a save,
    so that an address that is used again does no harm."""
    return tuple([tuple(map(id, group["params"])) for group in optimizer.param_groups]), modules


def without_tensor(optimizer: Any, stored: Container[int]) -> Places:
    """Groups and numbers of parameters whose shape must be stored. ``stored``: ids of those that are tensors of the
    checkpoint as they are."""
    return [
        (group, index)
        for group, entry in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(entry["params"])
        if id(parameter) not in stored
    ]


def shapes_at(optimizer: Any, places: Places) -> list[Any]:
    groups = optimizer.param_groups
    return [groups[group]["params"][index].shape for group, index in places]


def module_identity(found: Iterable[NamedTensors]) -> Hashables:
    return tuple([(name, tuple(keys), tuple(map(id, tensors))) for name, keys, tensors in found])


def named_tensors(found: Iterable[NamedTensors]) -> Iterator[tuple[str, Any]]:
    for name, keys, tensors in found:
        for key, tensor in zip(names.strip_wrappers(keys), tensors, strict=True):
            yield names.join(name, key), tensor


def names_by_id(found: Iterable[NamedTensors]) -> dict[int, tuple[str, ...]]:
    """All names of each tensor, in the order of the state."""
    result: dict[int, tuple[str, ...]] = {}
    for name, tensor in named_tensors(found):
        result[id(tensor)] = (*result.get(id(tensor), ()), name)
    return result


def by_memory(found: Iterable[tuple[str, Any]], key_of: KeyOf) -> dict[Hashables, tuple[str, ...]]:
    """All names of each memory, in the order of the state."""
    result: dict[Hashables, tuple[str, ...]] = {}
    for name, tensor in found:
        if (key := key_of(tensor)) is not None:
            result[key] = tuple(dict.fromkeys((*result.get(key, ()), name)))
    return result


def names_by_memory(
    optimizer: Any, known: Names, memories: Mapping[Hashables, tuple[str, ...]], key_of: KeyOf
) -> dict[int, tuple[str, ...]]:
    """Of parameters that are no module's own (``known``). A name that would be that of two parameters is none."""
    own = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    taken = {name for one in own for name in known.get(one, ())}
    found: dict[int, tuple[str, ...]] = {}
    for one, parameter in own.items():
        if one not in known and (key := key_of(parameter)) in memories and not taken & set(memories[key]):
            found[one] = memories[key]
    holders = collections.Counter(found.values())
    return {one: given for one, given in found.items() if holders[given] == 1}


def without_name(optimizer: Any, known: Names) -> Places:
    return [
        (group, index)
        for group, entry in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(entry["params"])
        if id(parameter) not in known
    ]


def describe(optimizer: Any, found: Names, places: Places) -> Node:
    """What is stored. One name for each: those of tied tensors are known from the tensors themselves."""
    groups = [group["params"] for group in optimizer.param_groups]
    shapes: list[list[Any]] = [[None] * len(group) for group in groups]
    for group, index in places:
        shapes[group][index] = list(groups[group][index].shape)
    return {
        "names": [[found.get(id(parameter), (None,))[0] for parameter in group] for group in groups],
        "shapes": shapes,
    }


def parts_in(state: Any, look: codec.Encoder, torch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Modules and other tensors of a state that is to be restored, with their names."""
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
        name_of = names.namer(state, name, look.holds_more_than_tensors, codec.key_text)
        for key, value in state.items():
            yield from parts_in(value, look, torch, name_of(key))
    elif isinstance(state, (list, tuple, collections.deque)):
        for index, value in enumerate(state):
            yield from parts_in(value, look, torch, names.join(name, str(index)))


# Finding them again


class Saved(NamedTuple):
    number: int
    names: tuple[str, ...]  # as the state calls them: after renaming, and with those of tied tensors
    shape: tuple[int, ...] | None  # None: an older release has not stored it
    group: int
    index: int


class Here(NamedTuple):
    parameter: Any
    names: tuple[str, ...]
    group: int
    index: int
    by_memory: bool = False  # named by a tensor that is no module's: older releases did not

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)


class Match:
    """Which saved parameter goes to which one here. ``wrong`` says why it cannot be."""

    def __init__(self, name: str, saved: list[list[Saved]], here: list[list[Here]]) -> None:
        self.pairs: dict[int, Here] = {}  # by saved number
        self.new: list[Here] = []
        self.gone: list[Saved] = []
        self.left: dict[int, Here] = {}  # by saved number: of another shape, and left out by the caller
        self.sources: list[int | None] = [None] * len(here)  # groups of the checkpoint; None: a group keeps its values
        self.regrouped: list[int] = []  # groups here whose parameters were spread in another way
        self.wrong: list[str] = []
        self.in_order: list[Here] = []  # matched by nothing but their order
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
        """Nothing but shapes to go by."""
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

    def _by_name(self, saved: list[Saved], here: list[Here]) -> None:
        by_name: dict[str, Saved] = {}
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
                f"{len(unnamed)} in the checkpoint, and such are matched in order; put their model into the state as well"
            )
        else:
            for one, other in zip(unnamed, nameless, strict=True):
                self._pair(one, other)
                self.in_order.append(other)
        self.gone = [s for s in saved if s.number not in self.pairs]
        self._match_groups()

    def _pair(self, saved: Saved, here: Here) -> None:
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
        """Parameters of another shape that the caller leaves out start anew."""
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
) -> list[list[Saved]]:
    """Of each group. ``node`` is what ``describe`` gave, or None; ``names_of`` and ``shape_of`` know the tensors of the
    checkpoint."""
    if node is None:
        return [[Saved(n, (), None, g, i) for i, n in enumerate(group)] for g, group in enumerate(numbers)]
    if not _well_formed(node, [len(group) for group in numbers]):
        raise DamagedError(f"the tree of the checkpoint holds malformed names of the parameters of '{name}'")
    return [
        [
            Saved(
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


def here_parameters(optimizer: Any, found: Names, others: Names) -> list[list[Here]]:
    """``found``: names by modules. ``others``: by memory."""
    names_of = {**others, **found}
    return [
        [
            Here(p, names_of.get(id(p), ()), group, index, id(p) in others)
            for index, p in enumerate(entry["params"])
        ]
        for group, entry in enumerate(optimizer.param_groups)
    ]
