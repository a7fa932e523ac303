"""Restoring: where each saved tensor goes in a state that exists, and what is set once every byte is verified.

The saved tree and the given state are walked side by side, so that dicts, modules and their state_dict() can stand for
each other. Nothing is changed while planning; then the engine writes the tensors, and ``finish()`` does the rest.
"""

from __future__ import annotations

import argparse
import functools
import logging
import types
from collections.abc import Callable, MutableMapping
from typing import Any

from . import _core, codec, decoder, loaders, names
from .adapters import arrays
from .codec import Node
from .decoder import tag_of
from .errors import DamagedError, Error, MismatchError, UnsupportedError, UsageError
from .memory import HOST, Memory, Place, Target
from .nodes import elements_of, entries_of, has_parts, kind_of, no_tensor, tensor_name, tensor_names, unwrap
from .optimizers import Hyperparameters, OptimizerPlan
from .parameters import (
    Names,
    by_memory,
    holds_parameters,
    named_tensors,
    names_by_id,
    names_by_memory,
    parts_in,
)
from .problems import Problems
from .rank_local import Kind, RankLocal, kind_of_lost
from .rename import Renaming
from .report import Tally
from .rng import Rng
from .sharding import Replicated, Seat, shards_in
from .tree import Flattener, torch_adapter

logger = logging.getLogger("slackwater")

Assign = Callable[[Any], None]
_ABSENT: Any = object()
_PLAIN = frozenset({int, float, str, bool, type(None), list, dict, tuple})


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
        rank_local: RankLocal | None = None,
        rename: Renaming | None = None,
        hyperparameters: Hyperparameters | None = None,
    ) -> None:
        if not contents.tree:
            raise UnsupportedError(
                f"the checkpoint of step {contents.version.step} was not saved from Python; "
                "read it with slackwater.open()"
            )
        self._infos = {info.name: info for info in contents.tensors}
        self.strict = strict
        self._cast = cast
        self._selected = selected
        self._rename = rename if rename is not None else Renaming()
        self.hyperparameters = hyperparameters if hyperparameters is not None else Hyperparameters(False)
        self._allow_pickle = allow_pickle
        self._seat = seat = seat if seat is not None else Seat()
        self._other_world = contents.version.world != seat.world  # the tree is that of rank 0, not of this rank
        self._of_several = self._other_world or seat.world > 1
        self._rank_local_values = frozenset(contents.rank_local_values) if self._other_world else frozenset()
        self.torch = torch_adapter()
        self._look = Flattener()  # asked what is a tensor, and how things are named; never encodes
        self._targets: dict[tuple[Any, ...], tuple[str, Memory, Place | None]] = {}
        self._written: list[Any] = []  # torch tensors whose version is to be bumped
        self.copies: list[tuple[str, Any]] = []  # (saved name, target): to be read aside and copied
        self._fitting: tuple[Any, Any] = (None, None)  # the last that was found to fit, and its memory
        self._after: list[Callable[[], None]] = []
        self.random = loaders.RandomStates()
        self.problems = Problems(selected, self._rename)
        self._state = state
        self.tally = Tally(contents.version.step, selected, self._rename, self.problems)
        self._parts: list[tuple[str, Any]] | None = None
        self._parameter_names: tuple[Names, dict[Any, tuple[str, ...]]] | None = None
        self._aliases: dict[str, tuple[str, ...]] | None = None
        try:
            root = decoder.load_tree(contents.tree)
            tops, tensors = [str(key) for key, _ in entries_of(root) or []], tensor_names(root)
            renamed = self._rename.apply(root, state, self._look.holds_more_than_tensors) if self._rename else {}
            self._by_new = {self._rename(name): name for name in self._infos} if self._rename else None
            self.tally.checkpoint(tops, tensors, renamed)
            self._mapping(root, state, "", None)
        except RecursionError:
            raise UnsupportedError(
                "the tree of the checkpoint is nested too deeply; a higher sys.setrecursionlimit() may help"
            ) from None
        self.tally.check_patterns()
        self.hyperparameters.check()
        self.problems.settle(
            contents.version,
            seat.world,
            strict=strict,
            cast=cast,
            rank_local=rank_local if rank_local is not None else RankLocal(),
        )
        self.tally.refuse_nothing([name for name, part in self._parts_here() if isinstance(part, self.torch.Module)])

    def targets(self) -> list[Target]:
        return [memory.target(name, place) for name, memory, place in self._targets.values()]

    def info(self, name: str) -> _core.TensorInfo:
        info = self._infos.get(name)
        if info is None:
            raise DamagedError(f"the tree of the checkpoint names the tensor '{name}', which no file holds")
        return info

    def finish(self) -> None:
        """After all bytes are in place: versions, plain values, load_state_dict(), and last the random states."""
        if self._written:
            self.torch.bump_versions(self._written)
        for action in self._after:
            action()
        self.random.finish()

    # Names

    def _wanted(self, saved: str) -> bool:
        """Whether a tensor of the checkpoint was asked for, by its name in the state."""
        return self._selected.everything or self._selected(self._rename(saved))

    def excluded(self, name: str) -> bool:
        return self._selected.excludes(name)

    def _saved_as(self, name: str) -> str:
        """What the checkpoint calls a tensor of the state."""
        return name if self._by_new is None else self._by_new.get(name, "")

    def _parts_here(self) -> list[tuple[str, Any]]:
        """Modules and other torch tensors of the given state."""
        if self._parts is None:
            self._parts = [] if self.torch is None else list(parts_in(self._state, self._look, self.torch))
        return self._parts

    def parameter_names(self, optimizer: Any) -> tuple[Names, Names]:
        """All names of each parameter of the given state: by modules, and by other tensors that are the same memory."""
        torch = self.torch
        if self._parameter_names is None:
            modules = [
                (name, *torch.module_parameters(part))
                for name, part in self._parts_here()
                if isinstance(part, torch.Module)
            ]
            tensors = [(name, part) for name, part in self._parts_here() if isinstance(part, torch.Tensor)]
            memories = by_memory([*named_tensors(modules), *tensors], torch.memory_key)
            self._parameter_names = names_by_id(modules), memories
        by_module, memories = self._parameter_names
        return by_module, names_by_memory(optimizer, by_module, memories, torch.memory_key)

    def names_of_saved(self, name: str) -> tuple[str, ...]:
        """As the state calls it: a parameter of the checkpoint, and those it was tied with."""
        if self._aliases is None:
            tied: dict[str, list[str]] = {}
            for info in self._infos.values():
                tied.setdefault(info.alias_of or info.name, []).append(info.name)
            self._aliases = {one: tuple(group) for group in tied.values() if len(group) > 1 for one in group}
        others = self._aliases.get(name, ())
        if not others and not self._rename:
            return (name,)
        return tuple(dict.fromkeys(map(self._rename, (name, *others))))

    def shape_of_saved(self, name: str) -> tuple[int, ...] | None:
        info = self._infos.get(name)
        return None if info is None else tuple(info.shape)

    def after(self, action: Callable[[], None]) -> None:
        self._after.append(action)

    # What does not fit

    def is_rank_local(self, saved: str) -> bool:
        """Whether a tensor that the tree names was one of a single rank, and cannot be had here."""
        return self._other_world and saved not in self._infos

    def _lost(self, found: list[str], kind: Kind) -> None:
        self.problems.rank_local(found, kind)

    def _lost_kind(self, node: Node, target: Any) -> Kind:
        """What it is that cannot be had here."""
        torch = self.torch
        if torch is not None and isinstance(target, (torch.Module, torch.Optimizer)):
            return "weights"
        if isinstance(target, Rng):
            return "random"
        here = str(getattr(target, "dtype", "")).removeprefix("torch.") or None

        def dtype_of(saved: str) -> str | None:
            info = self._infos.get(f"rank-00000/{saved}") or self._infos.get(saved)
            return here if info is None else info.dtype

        return "other" if node is _ABSENT else kind_of_lost(node, dtype_of)

    def _differs_between_ranks(self, node: Node, value: Any, name: str) -> None:
        """A value at the top for which the ranks that saved it had different trees: its tensors have names to go by."""
        value = value.value if type(value) is Replicated else value
        kind = self._lost_kind(node, value)
        if self._look.is_tensor(value) or (self.torch is not None and isinstance(value, self.torch.Module)):
            self._absent(value, name, functools.partial(self._lost, kind=kind))
        else:
            self._lost([name], kind)

    def _absent(self, value: Any, name: str, lost: Callable[[list[str]], None] | None = None) -> None:
        """The state has it, the tree does not. Of several ranks each has its own tree: tensors may be there still."""
        if not self._has_parts(value):
            if self._selected(name):
                self.problems.left_plain(name)
            return
        lost = self.problems.missing if lost is None else lost
        flat = Flattener(allow_pickle=True, seat=self._seat)
        flat.encode(value, name)
        flat.take_random_states()
        if not flat.torch_names + flat.array_names:
            lost([name])
        for names_of, tensors, shards in (
            (flat.torch_names, flat.torch_tensors, flat.torch_shards),
            (flat.array_names, [memory.owner for memory in flat.array_memories], flat.array_shards),
        ):
            for index, (part, tensor) in enumerate(zip(names_of, tensors, strict=True)):
                if not self._selected(part):
                    continue
                if self._of_several and (saved := self._saved_as(part)) in self._infos:
                    shard = shards.get(index)
                    self._write(saved, tensor, None if shard is None else (shard[0], shard[1]))
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
            self.problems.extra(found or [name])

    def kind_differs(self, node: Node, target: Any, name: str) -> None:
        if self._selected(name):
            here = names.an(type(target).__name__)
            self.problems.wrong(f"'{name}' is {here} here and {kind_of(node)} in the checkpoint")

    def _has_parts(self, value: Any) -> bool:
        look = self._look
        if look.is_tensor(value) or look.holds_more_than_tensors(value):
            return True
        return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) and look.holds_more_than_tensors(
            vars(value)
        )

    # The walk

    def _place(self, node: Node, target: Any, name: str, assign: Assign) -> None:
        torch = self.torch
        if torch is not None and target.__class__ not in _PLAIN:
            target = torch.inner_optimizer(target)
        if type(target) is Replicated:
            self._place(node, target.value, name, functools.partial(setattr, target, "value"))
        elif shards_in(target) is not None:
            self._tensor(node, target, name)
        elif (torch is not None and isinstance(target, torch.Tensor)) or arrays.is_array(target):
            self._tensor(node, target, name)
        elif torch is not None and isinstance(target, torch.Module):
            (self._module if torch.is_plain_module(target) else self._hooked_module)(node, target, name)
        elif torch is not None and isinstance(target, torch.Optimizer) and torch.is_plain_optimizer(target):
            OptimizerPlan(self, node, target, name).place()
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
            self._later(assign, node, name)

    def _later(self, assign: Assign, node: Node, name: str, new: bool = False) -> None:
        """``new``: the state has no such value yet."""
        value = decoder.decode(node, no_tensor, self._allow_pickle)
        self.tally.add(name, new)
        self._after.append(functools.partial(assign, value))

    def _mapping(self, node: Node, target: Any, name: str, assign: Assign | None) -> None:
        entries = entries_of(node)
        plain = not has_parts(node) and not self._has_parts(target)
        if entries is None:
            if plain and assign is not None:
                self._plain(node, target, name, assign)
            else:
                self.kind_differs(node, target, name)
            return
        if plain and name:
            if self._selected(name):
                self._later(functools.partial(_replace_dict, target), node, name)
            return
        saved = dict(zip(names.canonical([key for key, _ in entries]), entries, strict=True))
        name_of = names.namer(target, name, self._look.holds_more_than_tensors, codec.key_text)
        for key, canonical in zip(list(target), names.canonical(list(target)), strict=True):
            _, child = saved.pop(canonical, (None, _ABSENT))
            if not name and key in self._rank_local_values:
                self._differs_between_ranks(child, target[key], name_of(key))
            elif child is _ABSENT:
                self._absent(target[key], name_of(key))
            else:
                self._place(child, target[key], name_of(key), functools.partial(target.__setitem__, key))
        for key, child in saved.values():
            child_name = names.join(name, names.segment(key, codec.key_text))
            if has_parts(child):
                self._surplus(child, child_name)
            elif self._selected(child_name) and (name or key not in self._rank_local_values):
                self._later(functools.partial(target.__setitem__, key), child, child_name, new=True)

    def _sequence(self, node: Node, target: list[Any], name: str, assign: Assign) -> None:
        elements = elements_of(node)
        plain = not has_parts(node) and not any(map(self._has_parts, target))
        if elements is None:
            if plain:
                self._plain(node, target, name, assign)
            else:
                self.kind_differs(node, target, name)
        elif plain:
            if self._selected(name):
                self._later(functools.partial(target.__setitem__, slice(None)), elements, name)
        else:
            self._elements(elements, target, name, target.__setitem__)
            for index, child in enumerate(elements[len(target) :], len(target)):
                child_name = names.join(name, str(index))
                if has_parts(child):
                    self._surplus(child, child_name)
                elif self._selected(child_name):
                    self._later(target.append, child, child_name, new=True)

    def _tuple(self, node: Node, target: tuple[Any, ...], name: str, assign: Assign) -> None:
        elements = elements_of(node)
        if not any(map(self._has_parts, target)):
            self._plain(node, target, name, assign)
            return
        if elements is None or len(elements) != len(target):
            self.kind_differs(node, target, name)
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

    def _tensor(self, node: Node, target: Any, name: str, kind: Kind | None = None) -> None:
        node = unwrap(node)
        torch = self.torch
        if torch is not None and isinstance(target, torch.Tensor) and torch.is_subclass(target):
            inner = torch.inner_tensors(target)
            if tag_of(node) != "subclass" or set(node["v"]) != {key for key, _ in inner}:
                self.kind_differs(node, target, name)
            else:
                for key, part in inner:
                    self._tensor(node["v"][key], part, names.join(name, names.segment(key)), kind)
            return
        saved = tensor_name(node)
        if saved is None:
            self.kind_differs(node, target, name)
        elif self.is_rank_local(saved):
            self._lost([saved], kind or self._lost_kind(node, target))
        elif self._wanted(saved):
            self.write_boxes(saved, target)

    def write_boxes(self, saved: str, target: Any) -> None:
        """The tensor ``saved``, or the boxes of it that ``target`` holds, go there."""
        torch = self.torch
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
        torch = self.torch
        is_torch = torch is not None and isinstance(target, torch.Tensor)
        known = self._fitting[0] is target
        if known:
            memory = self._fitting[1]
        else:
            memory = torch.memory_of(target, saved) if is_torch else arrays.memory_of(target, saved)
        shape = memory.shape if place is None else place[0]
        if shape != info.shape:
            self.problems.wrong(f"'{saved}' has shape {shape} here and {info.shape} in the checkpoint")
        elif memory.dtype != info.dtype and not self._cast:
            self.problems.wrong(f"'{saved}' has dtype {memory.dtype} here and {info.dtype} in the checkpoint")
        elif (not known and memory.overlaps_itself) or not (is_torch or target.flags.writeable):
            self.problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary tensor"
            )
        elif memory.dtype != info.dtype or (
            torch.must_be_copied_into(target) if is_torch else memory.owner is not target
        ):
            self.tally.add_tensor(info, None if place is None else memory.shape)
            if place is None and self._seat.world == 1:
                self.copies.append((saved, target))
            else:
                self._place_aside(saved, target, memory, place)
        elif place is None or memory.size_bytes > 0:
            self.tally.add_tensor(info, None if place is None else memory.shape)
            self._place_at(saved, memory, place)
            if is_torch:
                self._written.append(memory.owner)

    def _place_aside(self, saved: str, target: Any, memory: Memory, place: Place | None) -> None:
        """Ranks agree on a version by what the engine could place: it also places what is converted afterwards."""
        dtype, torch = self.info(saved).dtype, self.torch
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
            self.kind_differs(node, target, name)
            return
        if self.is_rank_local(saved):
            self._lost([saved], self._lost_kind(node, target))
            return
        if not self._wanted(saved):
            return
        info = self.info(saved)
        memory = arrays.cuda_memory(target, saved)
        if (memory.shape, memory.dtype) != (info.shape, info.dtype):
            self.problems.wrong(
                f"'{saved}' is {memory.dtype}{list(memory.shape)} here "
                f"and {info.dtype}{list(info.shape)} in the checkpoint"
            )
        elif memory.overlaps_itself or memory.owner.read_only:
            self.problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary array"
            )
        else:
            self.tally.add_tensor(info, None)
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

    def build(self, node: Node, like: Any = None, device: Any = None) -> Any:
        """A new value with new tensors, which the engine fills."""

        def tensor(name: str, is_array: bool) -> Any:
            info = self.info(name)
            if is_array or self.torch is None:
                new = arrays.empty(info.dtype, info.shape, name)
            else:
                new = self.torch.empty(info.dtype, info.shape, like, device)
            self._write(name, new)
            return new

        return decoder.decode(node, tensor, self._allow_pickle)

    # Objects

    def whole(self, node: Node, name: str) -> bool:
        """Whether an object that cannot be restored in part is selected."""
        chosen = [self._wanted(part) for part in tensor_names(node)] or [self._selected(name)]
        if any(chosen) and not all(chosen):
            raise UsageError(
                f"only= and exclude= select a part of '{name}', which can only be restored whole: "
                f"select '{name}' or leave it out"
            )
        return all(chosen)

    def _object(self, node: Node, target: Any, name: str) -> None:
        if self.whole(node, name):
            if any(map(self.is_rank_local, tensor_names(node))):
                self._lost([name], self._lost_kind(node, target))
                return
            plan = OptimizerPlan(self, node, target, name) if holds_parameters(target) else None
            if plan is not None and not plan.takes_class():
                return
            adapt = None if plan is None else plan.adapt()
            state = self.build(node)
            self.tally.add(name)
            if isinstance(target, Rng):
                self.random.add(target, state)
                return
            self._after.append(lambda: _load(target, state if adapt is None else adapt(state), name))
            self.random.beside(target)

    def _module(self, node: Node, module: Any, name: str) -> None:
        entries = entries_of(node)
        if entries is None:
            self.kind_differs(node, module, name)
            return
        saved = dict(zip(names.canonical([key for key, _ in entries]), entries, strict=True))
        keys, tensors, _ = self.torch.module_tensors(module)
        for key, tensor in zip(names.strip_wrappers(keys), tensors, strict=True):
            _, child = saved.pop(key, (None, _ABSENT))
            if child is _ABSENT:
                self._absent(tensor, names.join(name, key))
            else:
                self._tensor(child, tensor, names.join(name, key), "weights")
        for key, child in saved.values():
            self._surplus(child, names.join(name, str(key)))

    def _hooked_module(self, node: Node, module: Any, name: str) -> None:
        """Goes through load_state_dict(), which gets the module's own tensors, already filled, wherever they fit."""
        entries = entries_of(node)
        if entries is None:
            self.kind_differs(node, module, name)
            return
        current = module.state_dict()
        own_key = dict(zip(names.canonical(list(current)), current, strict=True))
        state: dict[str, Any] = {}
        partial = False
        for canonical, (key, child) in zip(names.canonical([key for key, _ in entries]), entries, strict=True):
            if canonical not in own_key and self._is_of_other_ranks(child):
                continue
            key = own_key.pop(canonical, key)
            saved = tensor_name(child)
            chosen = [self._wanted(part) for part in tensor_names(child)]
            if not all(chosen or [self._selected(names.join(name, str(key)))]):
                partial = True
            elif any(map(self.is_rank_local, tensor_names(child))):
                self._lost(tensor_names(child), "weights")
                state[key] = current[key]
            elif saved is not None and self.fits(saved, value := current.get(key), self._casts_itself(value)):
                self.write_boxes(saved, current[key])  # refuses another dtype; load_state_dict() would cast silently
                state[key] = current[key]
            else:
                state[key] = self.build(child)
        for canonical, key in own_key.items():  # what this rank's tree, or that of rank 0, does not name
            saved = self._saved_as(names.join(name, str(canonical)))
            if self._of_several and saved in self._infos and self._wanted(saved):
                self.write_boxes(saved, current[key])
                state[key] = current[key]
        if state or not partial:
            strict = self.strict and not partial
            self._after.append(lambda: _load(module, state, name, strict=strict))

    def _casts_itself(self, value: Any) -> bool:
        """Whether another dtype is for ``_write`` to refuse or convert, not for load_state_dict()."""
        return not self._cast or self.torch.is_dtensor(value)

    def _is_of_other_ranks(self, node: Node) -> bool:
        """Whether a tensor that this rank does not have may be missing here, because other ranks have it."""
        saved = tensor_name(node)
        return saved is not None and (saved not in self._infos or self._ranks_share(saved))

    def fits(self, saved: str, value: Any, any_dtype: bool = False) -> bool:
        torch = self.torch
        if torch.is_dtensor(value):
            info = self.info(saved)
            return tuple(value.shape) == info.shape and (
                any_dtype or torch.dtype_name(value.dtype, saved) == info.dtype
            )
        if not isinstance(value, torch.Tensor) or torch.is_wrapper(value) or torch.must_be_copied_into(value):
            return False
        memory = torch.memory_of(value, saved)
        info = self.info(saved)
        fits = memory.shape == info.shape and (any_dtype or memory.dtype == info.dtype) and not memory.overlaps_itself
        if fits:
            self._fitting = (value, memory)
        return fits


def _load(target: Any, state: Any, name: str, **options: Any) -> None:
    try:
        loaders.load_state(target, state, **options)
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
