"""Which parameter of an optimizer is which: their names, stored beside its state.

Optimizers count their parameters. The numbers say nothing once a layer is added, frozen or moved. So a checkpoint has,
for every group of an optimizer, the name of each parameter and its shape (None where the checkpoint has a tensor of
that name, whose shape it is). The name is that of the tensor of a module in the same state, or of another tensor of
the state in the same memory, such as state_dict() gives. It is None for a parameter that nothing in the state has.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from . import names
from .codec import Node

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
    return tuple([_core.object_ids(list(group["params"])) for group in optimizer.param_groups]), modules


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
    return tuple([(name, tuple(keys), _core.object_ids(list(tensors))) for name, keys, tensors in found])


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
