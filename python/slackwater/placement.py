"""Restoring: where each saved tensor goes in a state that exists, and what is set once every byte is verified.

The saved tree and the given state are walked side by side, so that dicts, modules and their state_dict() can stand for
each other. Nothing is changed while planning; then the engine writes the tensors, and ``finish()`` does the rest.
"""

from __future__ import annotations

import argparse
import functools
import logging
import types
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from . import _core, codec, decoder, names
from .adapters import arrays
from .codec import Node
from .decoder import tag_of
from .errors import DamagedError, Error, MismatchError, UnsupportedError, UsageError
from .memory import HOST, Memory, Place, Target
from .nodes import elements_of, entries_of, has_parts, kind_of, no_tensor, tensor_name, tensor_names, unwrap
from .problems import Problems
from .sharding import Replicated, Seat, shards_in
from .tree import Flattener, class_name, torch_adapter

logger = logging.getLogger("slackwater")

Assign = Callable[[Any], None]
_ABSENT: Any = object()


class Placement:
    """The plan of one restore from one version."""

    def __init__(
        self,
        state: Any,
        contents: _core.Contents,
        *,
        strict: bool,
        cast: bool,
        selected: names.Pattern,
        allow_pickle: bool,
        seat: Seat | None = None,
        drop_rank_local: bool = False,
    ) -> None:
        if not contents.tree:
            raise UnsupportedError(
                f"the checkpoint of step {contents.version.step} was not saved from Python; "
                "read it with slackwater.open()"
            )
        self._infos = {info.name: info for info in contents.tensors}
        self._strict = strict
        self._cast = cast
        self._selected = selected
        self._allow_pickle = allow_pickle
        self._seat = seat = seat if seat is not None else Seat()
        self._other_world = contents.version.world != seat.world  # the tree is that of rank 0, not of this rank
        self._of_several = self._other_world or seat.world > 1
        self._rank_local_values = frozenset(contents.rank_local_values) if self._other_world else frozenset()
        self._torch = torch_adapter()
        self._look = Flattener()  # asked what is a tensor, and how things are named; never encodes
        self._targets: dict[tuple[Any, ...], tuple[str, Memory, Place | None]] = {}
        self._written: list[Any] = []  # torch tensors whose version is to be bumped
        self.copies: list[tuple[str, Any]] = []  # (saved name, target): to be read aside and copied
        self._after: list[Callable[[], None]] = []
        self._problems = Problems(selected)
        try:
            self._mapping(decoder.load_tree(contents.tree), state, "", None)
        except RecursionError:
            raise UnsupportedError(
                "the tree of the checkpoint is nested too deeply; a higher sys.setrecursionlimit() may help"
            ) from None
        model_lost = not self._targets and not self.copies and any(map(self._is_model, state.values()))
        self._problems.settle(
            contents.version,
            seat.world,
            strict=strict,
            cast=cast,
            drop_rank_local=drop_rank_local,
            model_lost=model_lost,
        )

    def _is_model(self, value: Any) -> bool:
        value = value.value if type(value) is Replicated else value
        return self._torch is not None and isinstance(value, self._torch.Module)

    def targets(self) -> list[Target]:
        return [memory.target(name, place) for name, memory, place in self._targets.values()]

    def info(self, name: str) -> _core.TensorInfo:
        info = self._infos.get(name)
        if info is None:
            raise DamagedError(f"the tree of the checkpoint names the tensor '{name}', which no file holds")
        return info

    def finish(self) -> None:
        """After all bytes are in place: versions, plain values, load_state_dict()."""
        if self._written:
            self._torch.bump_versions(self._written)
        for action in self._after:
            action()

    # What does not fit

    def _is_rank_local(self, saved: str) -> bool:
        """Whether a tensor that the tree names was one of a single rank, and cannot be had here."""
        return self._other_world and saved not in self._infos

    def _differs_between_ranks(self, value: Any, name: str) -> None:
        """A value at the top for which the ranks that saved it had different trees: its tensors have names to go by."""
        value = value.value if type(value) is Replicated else value
        if self._look.is_tensor(value) or (self._torch is not None and isinstance(value, self._torch.Module)):
            self._absent(value, name, self._problems.rank_local)
        else:
            self._problems.rank_local([name])

    def _absent(self, value: Any, name: str, lost: Callable[[list[str]], None] | None = None) -> None:
        """The state has it, the tree does not. Of several ranks each has its own tree: tensors may be there still."""
        if not self._has_parts(value):
            return
        lost = self._problems.missing if lost is None else lost
        flat = Flattener(allow_pickle=True, seat=self._seat)
        flat.encode(value, name)
        if not flat.torch_names + flat.array_names:
            lost([name])
        for names_of, tensors, shards in (
            (flat.torch_names, flat.torch_tensors, flat.torch_shards),
            (flat.array_names, [memory.owner for memory in flat.array_memories], flat.array_shards),
        ):
            for index, (part, tensor) in enumerate(zip(names_of, tensors, strict=True)):
                if not self._selected(part):
                    continue
                if self._of_several and part in self._infos:
                    shard = shards.get(index)
                    self._write(part, tensor, None if shard is None else (shard[0], shard[1]))
                else:
                    lost([part])

    def _ranks_share(self, saved: str) -> bool:
        """Whether a tensor of the checkpoint is for all ranks, so that this one need not have it."""
        return self._other_world or self.info(saved).is_global

    def _surplus(self, node: Node, name: str) -> None:
        """The checkpoint has it, the state does not. Another rank may have what is there for all."""
        found = [part for part in tensor_names(node) if not (part in self._infos and self._ranks_share(part))]
        if found and self._other_world:
            return  # of rank 0 alone
        if found or not tensor_names(node):
            self._problems.extra(found or [name])

    def _kind_differs(self, node: Node, target: Any, name: str) -> None:
        if self._selected(name):
            self._problems.wrong(f"'{name}' is a {type(target).__name__} here and {kind_of(node)} in the checkpoint")

    def _has_parts(self, value: Any) -> bool:
        look = self._look
        if look.is_tensor(value) or look.holds_more_than_tensors(value):
            return True
        return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) and look.holds_more_than_tensors(
            vars(value)
        )

    # The walk

    def _place(self, node: Node, target: Any, name: str, assign: Assign) -> None:
        torch = self._torch
        if type(target) is Replicated:
            self._place(node, target.value, name, functools.partial(setattr, target, "value"))
        elif shards_in(target) is not None:
            self._tensor(node, target, name)
        elif (torch is not None and isinstance(target, torch.Tensor)) or arrays.is_array(target):
            self._tensor(node, target, name)
        elif torch is not None and isinstance(target, torch.Module):
            (self._module if torch.is_plain_module(target) else self._hooked_module)(node, target, name)
        elif torch is not None and isinstance(target, torch.Optimizer) and torch.is_plain_optimizer(target):
            self._optimizer(node, target, name)
        elif not isinstance(target, type) and callable(getattr(target, "load_state_dict", None)):
            self._object(node, target, name)
        elif self._look.is_tensor(target):
            if arrays.is_on_cuda(target):
                self._borrowed(node, target, name)
            else:
                self._tensor(node, arrays.to_array(target, name), name)
        elif isinstance(target, MutableMapping):
            self._mapping(node, target, name, assign)
        elif isinstance(target, list):
            self._sequence(node, target, name, assign)
        elif isinstance(target, tuple):
            self._tuple(node, target, name, assign)
        elif isinstance(target, (argparse.Namespace, types.SimpleNamespace)) and self._has_parts(target):
            self._mapping(node, vars(target), name, assign)
        else:
            self._plain(node, target, name, assign)

    def _plain(self, node: Node, target: Any, name: str, assign: Assign) -> None:
        if has_parts(node):
            self._surplus(node, name)
        elif self._selected(name):
            self._later(assign, node)

    def _later(self, assign: Assign, node: Node) -> None:
        value = decoder.decode(node, no_tensor, self._allow_pickle)
        self._after.append(functools.partial(assign, value))

    def _mapping(self, node: Node, target: Any, name: str, assign: Assign | None) -> None:
        entries = entries_of(node)
        plain = not has_parts(node) and not self._has_parts(target)
        if entries is None:
            if plain and assign is not None:
                self._plain(node, target, name, assign)
            else:
                self._kind_differs(node, target, name)
            return
        if plain and name:
            if self._selected(name):
                self._later(functools.partial(_replace_dict, target), node)
            return
        saved = dict(zip(_canonical([key for key, _ in entries]), entries, strict=True))
        name_of = names.namer(target, name, self._look.holds_more_than_tensors, codec.key_text)
        for key, canonical in zip(list(target), _canonical(list(target)), strict=True):
            _, child = saved.pop(canonical, (None, _ABSENT))
            if not name and key in self._rank_local_values:
                self._differs_between_ranks(target[key], name_of(key))
            elif child is _ABSENT:
                self._absent(target[key], name_of(key))
            else:
                self._place(child, target[key], name_of(key), functools.partial(target.__setitem__, key))
        for key, child in saved.values():
            child_name = names.join(name, names.segment(key, codec.key_text))
            if has_parts(child):
                self._surplus(child, child_name)
            elif self._selected(child_name) and (name or key not in self._rank_local_values):
                self._later(functools.partial(target.__setitem__, key), child)

    def _sequence(self, node: Node, target: list[Any], name: str, assign: Assign) -> None:
        elements = elements_of(node)
        plain = not has_parts(node) and not any(map(self._has_parts, target))
        if elements is None:
            if plain:
                self._plain(node, target, name, assign)
            else:
                self._kind_differs(node, target, name)
        elif plain:
            if self._selected(name):
                self._later(functools.partial(target.__setitem__, slice(None)), elements)
        else:
            self._elements(elements, target, name, target.__setitem__)
            for index, child in enumerate(elements[len(target) :], len(target)):
                child_name = names.join(name, str(index))
                if has_parts(child):
                    self._surplus(child, child_name)
                elif self._selected(child_name):
                    self._later(target.append, child)

    def _tuple(self, node: Node, target: tuple[Any, ...], name: str, assign: Assign) -> None:
        elements = elements_of(node)
        if not any(map(self._has_parts, target)):
            self._plain(node, target, name, assign)
            return
        if elements is None or len(elements) != len(target):
            self._kind_differs(node, target, name)
            return
        values = list(target)
        self._elements(elements, target, name, values.__setitem__)

        def rebuild() -> None:
            if any(new is not old for new, old in zip(values, target, strict=True)):
                assign(type(target)._make(values) if hasattr(target, "_make") else tuple(values))

        self._after.append(rebuild)

    def _elements(self, elements: list[Node], target: Any, name: str, set_item: Callable[[int, Any], None]) -> None:
        for index, value in enumerate(target):
            child_name = names.join(name, str(index))
            if index < len(elements):
                self._place(elements[index], value, child_name, functools.partial(set_item, index))
            else:
                self._absent(value, child_name)

    # Tensors

    def _tensor(self, node: Node, target: Any, name: str) -> None:
        node = unwrap(node)
        torch = self._torch
        if torch is not None and isinstance(target, torch.Tensor) and torch.is_subclass(target):
            inner = torch.inner_tensors(target)
            if tag_of(node) != "subclass" or set(node["v"]) != {key for key, _ in inner}:
                self._kind_differs(node, target, name)
            else:
                for key, part in inner:
                    self._tensor(node["v"][key], part, names.join(name, names.segment(key)))
            return
        saved = tensor_name(node)
        if saved is None:
            self._kind_differs(node, target, name)
        elif self._is_rank_local(saved):
            self._problems.rank_local([saved])
        elif self._selected(saved):
            self._write_boxes(saved, target)

    def _write_boxes(self, saved: str, target: Any) -> None:
        """The tensor ``saved``, or the boxes of it that ``target`` holds, go there."""
        torch = self._torch
        if (shards := shards_in(target)) is not None:
            for shard in shards:
                self._write(saved, shard.tensor, (shard.global_shape, shard.offset))
        elif torch is None or not torch.is_dtensor(target):
            self._write(saved, target)
        elif self._seat.world == 1:
            self._write(saved, target._local_tensor)
        else:
            where = self._seat.where(target, saved, False)
            for box, part in torch.parts(target._local_tensor, where.boxes, saved):
                self._write(saved, part, (where.global_shape, box.offset))

    def _write(self, saved: str, target: Any, place: Place | None = None) -> None:
        """The tensor ``saved``, or its box at ``place``, goes into ``target``, directly where its bytes allow it."""
        info = self.info(saved)
        torch = self._torch
        is_torch = torch is not None and isinstance(target, torch.Tensor)
        memory = torch.memory_of(target, saved) if is_torch else arrays.memory_of(target, saved)
        shape = memory.shape if place is None else place[0]
        if shape != info.shape:
            self._problems.wrong(f"'{saved}' has shape {shape} here and {info.shape} in the checkpoint")
        elif memory.dtype != info.dtype and not self._cast:
            self._problems.wrong(f"'{saved}' has dtype {memory.dtype} here and {info.dtype} in the checkpoint")
        elif memory.overlaps_itself or not (is_torch or target.flags.writeable):
            self._problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary tensor"
            )
        elif memory.dtype != info.dtype or (
            torch.must_be_copied_into(target) if is_torch else memory.owner is not target
        ):
            if place is None and self._seat.world == 1:
                self.copies.append((saved, target))
            else:
                self._place_aside(saved, target, memory, place)
        elif place is None or memory.size_bytes > 0:
            self._place_at(saved, memory, place)
            if is_torch:
                self._written.append(memory.owner)

    def _place_aside(self, saved: str, target: Any, memory: Memory, place: Place | None) -> None:
        """Ranks agree on a version by what the engine could place: it also places what is converted afterwards."""
        dtype, torch = self.info(saved).dtype, self._torch
        if torch is not None and isinstance(target, torch.Tensor):
            aside = torch.empty(dtype, memory.shape)
            self._place_at(saved, torch.memory_of(aside, saved), place)
            self._after.append(lambda: torch.copy_into(target, aside))
        else:
            aside = arrays.empty(dtype, memory.shape, saved)
            self._place_at(saved, Memory(dtype, memory.shape, None, aside.ctypes.data, HOST, aside), place)
            self._after.append(lambda: arrays.copy_into(target, aside))

    def _borrowed(self, node: Node, target: Any, name: str) -> None:
        """An array on a CUDA device that speaks DLPack and nothing else we know."""
        saved = tensor_name(node)
        if saved is None:
            self._kind_differs(node, target, name)
            return
        if self._is_rank_local(saved):
            self._problems.rank_local([saved])
            return
        if not self._selected(saved):
            return
        info = self.info(saved)
        memory = arrays.cuda_memory(target, saved)
        if (memory.shape, memory.dtype) != (info.shape, info.dtype):
            self._problems.wrong(
                f"'{saved}' is {memory.dtype}{list(memory.shape)} here "
                f"and {info.dtype}{list(info.shape)} in the checkpoint"
            )
        elif memory.overlaps_itself or memory.owner.read_only:
            self._problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary array"
            )
        else:
            self._place_at(saved, memory)

    def _place_at(self, saved: str, memory: Memory, place: Place | None = None) -> None:
        spot = memory[:5]
        earlier = self._targets.get(spot)
        if earlier is not None and memory.address and self._stored(earlier[0]) != self._stored(saved):
            logger.warning(
                "'%s' and '%s' share their memory here but were saved as two tensors; '%s' is used",
                earlier[0],
                saved,
                saved,
            )
        key = spot if memory.address else (saved, *spot)
        self._targets[key] = (saved, memory, place)

    def _stored(self, name: str) -> str:
        return self.info(name).alias_of or name

    def _build(self, node: Node, like: Any = None, device: Any = None) -> Any:
        """A new value with new tensors, which the engine fills."""

        def tensor(name: str, is_array: bool) -> Any:
            info = self.info(name)
            if is_array or self._torch is None:
                new = arrays.empty(info.dtype, info.shape, name)
            else:
                new = self._torch.empty(info.dtype, info.shape, like, device)
            self._write(name, new)
            return new

        return decoder.decode(node, tensor, self._allow_pickle)

    # Objects

    def _whole(self, node: Node, name: str) -> bool:
        """Whether an object that cannot be restored in part is selected."""
        chosen = [self._selected(part) for part in tensor_names(node) or [name]]
        if any(chosen) and not all(chosen):
            raise UsageError(
                f"only= and exclude= select a part of '{name}', which can only be restored whole: "
                f"select '{name}' or leave it out"
            )
        return all(chosen)

    def _object(self, node: Node, target: Any, name: str) -> None:
        if self._whole(node, name):
            if any(map(self._is_rank_local, tensor_names(node))):
                self._problems.rank_local([name])
                return
            state = self._build(node)
            self._after.append(lambda: _load(target, state, name))

    def _module(self, node: Node, module: Any, name: str) -> None:
        entries = entries_of(node)
        if entries is None:
            self._kind_differs(node, module, name)
            return
        saved = dict(zip(_canonical([key for key, _ in entries]), entries, strict=True))
        keys, tensors, _ = self._torch.module_tensors(module)
        for key, tensor in zip(names.strip_wrappers(keys), tensors, strict=True):
            _, child = saved.pop(key, (None, _ABSENT))
            if child is _ABSENT:
                self._absent(tensor, names.join(name, key))
            else:
                self._tensor(child, tensor, names.join(name, key))
        for key, child in saved.values():
            self._surplus(child, names.join(name, str(key)))

    def _hooked_module(self, node: Node, module: Any, name: str) -> None:
        """Goes through load_state_dict(), which gets the module's own tensors, already filled, wherever they fit."""
        entries = entries_of(node)
        if entries is None:
            self._kind_differs(node, module, name)
            return
        current = module.state_dict()
        own_key = dict(zip(_canonical(list(current)), current, strict=True))
        state: dict[str, Any] = {}
        partial = False
        for canonical, (key, child) in zip(_canonical([key for key, _ in entries]), entries, strict=True):
            if canonical not in own_key and self._is_of_other_ranks(child):
                continue
            key = own_key.pop(canonical, key)
            saved = tensor_name(child)
            if not all(map(self._selected, tensor_names(child) or [names.join(name, str(key))])):
                partial = True
            elif any(map(self._is_rank_local, tensor_names(child))):
                self._problems.rank_local(tensor_names(child))
                state[key] = current[key]
            elif saved is not None and self._fits(saved, value := current.get(key), self._casts_itself(value)):
                self._write_boxes(saved, current[key])  # refuses another dtype; load_state_dict() would cast silently
                state[key] = current[key]
            else:
                state[key] = self._build(child)
        for canonical, key in own_key.items():  # what this rank's tree, or that of rank 0, does not name
            saved = names.join(name, str(canonical))
            if self._of_several and self._selected(saved) and saved in self._infos:
                self._write_boxes(saved, current[key])
                state[key] = current[key]
        if state or not partial:
            strict = self._strict and not partial
            self._after.append(lambda: _load(module, state, name, strict=strict))

    def _casts_itself(self, value: Any) -> bool:
        """Whether another dtype is for ``_write`` to refuse or convert, not for load_state_dict()."""
        return not self._cast or self._torch.is_dtensor(value)

    def _is_of_other_ranks(self, node: Node) -> bool:
        """Whether a tensor that this rank does not have may be missing here, because other ranks have it."""
        saved = tensor_name(node)
        return saved is not None and (saved not in self._infos or self._ranks_share(saved))

    def _fits(self, saved: str, value: Any, any_dtype: bool = False) -> bool:
        torch = self._torch
        if torch.is_dtensor(value):
            info = self.info(saved)
            return tuple(value.shape) == info.shape and (
                any_dtype or torch.dtype_name(value.dtype, saved) == info.dtype
            )
        if not isinstance(value, torch.Tensor) or torch.is_wrapper(value) or torch.must_be_copied_into(value):
            return False
        memory = torch.memory_of(value, saved)
        info = self.info(saved)
        return memory.shape == info.shape and (any_dtype or memory.dtype == info.dtype) and not memory.overlaps_itself

    def _optimizer(self, node: Node, optimizer: Any, name: str) -> None:
        """State tensors keep the dtype they were saved with and are written where they will stay."""
        parts = dict(entries_of(node) or [])
        states, groups = entries_of(parts.get("state")), elements_of(parts.get("param_groups"))
        if states is None or groups is None:
            self._kind_differs(node, optimizer, name)
            return
        if not self._whole(node, name):
            return
        if tag_of(node) == "object" and node["class"] != class_name(optimizer):
            logger.warning("'%s' was saved from %s and is restored into %s", name, node["class"], class_name(optimizer))
        if len(groups) != len(optimizer.param_groups):
            self._problems.wrong(
                f"'{name}' has {len(optimizer.param_groups)} parameter groups here and {len(groups)} in the checkpoint"
            )
            return
        parameters: dict[int, tuple[Any, dict[str, Any]]] = {}
        for index, (group_node, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
            saved_group = dict(entries_of(group_node) or [])
            numbers = elements_of(saved_group.pop("params", [])) or []
            if not all(type(number) is int for number in numbers):
                raise DamagedError(f"the tree of the checkpoint has parameters of '{name}' without their numbers")
            if len(numbers) != len(group["params"]):
                self._problems.wrong(
                    f"group {index} of '{name}' has {len(group['params'])} parameters here "
                    f"and {len(numbers)} in the checkpoint"
                )
                continue
            for number, parameter in zip(numbers, group["params"], strict=True):
                parameters[number] = (parameter, group)
            for key, child in saved_group.items():
                value = self._state_value(child, group.get(key, _ABSENT), None, None)
                if value is not _ABSENT:
                    self._after.append(functools.partial(group.__setitem__, key, value))
        fresh: dict[Any, Any] = {}
        for key, child in states:
            parameter, group = parameters.get(key, (None, {})) if type(key) is int else (None, {})
            entries = entries_of(child)
            owner = key if parameter is None else parameter
            current = optimizer.state.get(owner, {})
            if entries is None or not isinstance(current, dict):
                fresh[owner] = self._build(child)
                continue
            values = {
                part: self._state_value(
                    part_node, current.get(part, _ABSENT), parameter, self._device(group, part, parameter)
                )
                for part, part_node in entries
            }
            fresh[owner] = {part: value for part, value in values.items() if value is not _ABSENT}

        def replace() -> None:
            optimizer.state.clear()
            optimizer.state.update(fresh)

        self._after.append(replace)

    def _device(self, group: dict[str, Any], key: str, parameter: Any) -> Any:
        return None if parameter is None else self._torch.state_device(group, key, parameter)

    def _state_value(self, node: Node, current: Any, like: Any, device: Any) -> Any:
        """One entry of an optimizer: the tensor that is there, if it fits, else a new value."""
        if lost := [part for part in tensor_names(node) if self._is_rank_local(part)]:
            self._problems.rank_local(lost)
            return current
        saved = tensor_name(node)
        if saved is not None and self._fits(saved, current):
            self._write_boxes(saved, current)
            return current
        if saved is not None and self._lies_like(saved, like):
            new = self._torch.empty_dtensor(self.info(saved).dtype, like, device)
            self._write_boxes(saved, new)
            return new
        return self._build(node, like, device)

    def _lies_like(self, saved: str, parameter: Any) -> bool:
        """Whether optimizers keep this state spread over the ranks as they do the parameter."""
        shape = self.info(saved).shape
        return self._torch.is_dtensor(parameter) and len(shape) > 0 and shape == tuple(parameter.shape)


def _load(target: Any, state: Any, name: str, **options: Any) -> None:
    try:
        target.load_state_dict(state, **options)
    except Error:
        raise
    except RuntimeError as error:
        if options:  # torch's way of saying that keys or shapes differ
            reason = " ".join(str(error).split())
            raise MismatchError(f"load_state_dict() of '{name}' refused the checkpoint: {reason}") from error
        raise


def _replace_dict(target: Any, value: dict[Any, Any]) -> None:
    target.clear()
    target.update(value)


def _canonical(keys: list[Any]) -> Iterable[Any]:
    return names.strip_wrappers(keys) if all(type(key) is str for key in keys) else keys
