"""RestorePlan: where each saved tensor goes in an existing state, and what is set once every byte is verified.

The saved tree and the given state are walked side by side, so that dicts, modules and their state_dict() can stand for
each other. Planning changes nothing. Then the engine writes the tensors, and ``finish()`` does the rest.
"""

from __future__ import annotations

import argparse
import functools
import types
from collections.abc import Callable, MutableMapping
from typing import Any

from .. import _core
from ..errors import Error, MismatchError, UnsupportedError, UsageError
from ..integrations import arrays, loaders, torch_adapter
from ..ranks.sharding import RankInfo, Replicated, shards_in
from ..rng import Rng
from ..state import codec, decoder, names
from ..state.codec import Node
from ..state.decoder import tag_of
from ..state.memory import Target
from ..state.nodes import elements_of, entries_of, has_parts, kind_of, no_tensor, tensor_name, tensor_names, unwrap
from ..state.parameters import holds_parameters
from ..state.tree import Flattener
from .optimizers import Hyperparameters, OptimizerPlan
from .parameter_match import StateParts
from .problems import Problems
from .rank_local import Kind, RankLocal, kind_of_lost
from .rename import Renaming
from .report import ReportBuilder
from .saved_tensors import SavedTensors
from .targets import Targets

Assign = Callable[[Any], None]
_ABSENT: Any = object()
_PLAIN = frozenset({int, float, str, bool, type(None), list, dict, tuple})


class RestorePlan:
    """The plan to restore one version."""

    def __init__(
        self,
        state: Any,
        contents: _core.Contents,
        *,
        strict: bool,
        cast: bool,
        selected: names.Pattern,
        allow_pickle: bool,
        rank_info: RankInfo | None = None,
        rank_local: RankLocal | None = None,
        rename: Renaming | None = None,
        hyperparameters: Hyperparameters | None = None,
    ) -> None:
        if not contents.tree:
            raise UnsupportedError(
                f"the checkpoint of step {contents.version.step} was not saved from Python; "
                "read it with slackwater.open()"
            )
        rank_info = rank_info if rank_info is not None else RankInfo()
        rename = rename if rename is not None else Renaming()
        self.strict = strict
        self._cast = cast
        self.selected = selected
        self.hyperparameters = hyperparameters if hyperparameters is not None else Hyperparameters(False)
        self._allow_pickle = allow_pickle
        self._rank_info = rank_info
        self.torch = torch_adapter()
        self._encoder = Flattener()  # only tells what is a tensor, and how things are named
        self._after: list[Callable[[], None]] = []
        self.random = loaders.RandomStates()
        self.saved = SavedTensors(contents, selected, rename, rank_info.world)
        self.problems = Problems(selected, rename)
        self.report = ReportBuilder(contents.version.step, selected, rename, self.problems)
        self.writes = Targets(
            self.saved, self.problems, self.report, self.after, cast=cast, rank_info=rank_info, torch=self.torch
        )
        self.parts = StateParts(state, self._encoder, self.torch)
        other_world = self.saved.of_other_world
        self._rank_local_values = frozenset(contents.rank_local_values) if other_world else frozenset()
        try:
            root = decoder.load_tree(contents.tree)
            tops, tensors = [str(key) for key, _ in entries_of(root) or []], tensor_names(root)
            renamed = rename.apply(root, state, self._encoder.holds_more_than_tensors) if rename else {}
            self.report.checkpoint(tops, tensors, renamed)
            self._mapping(root, state, "", None)
        except RecursionError:
            raise UnsupportedError(
                "the tree of the checkpoint is nested too deeply; a higher sys.setrecursionlimit() may help"
            ) from None
        self.report.check_patterns()
        self.hyperparameters.check()
        self.problems.settle(
            contents.version,
            rank_info.world,
            strict=strict,
            cast=cast,
            rank_local=rank_local if rank_local is not None else RankLocal(),
        )
        self.report.refuse_nothing([name for name, _ in self.parts.modules()])

    def targets(self) -> list[Target]:
        return self.writes.for_engine()

    def finish(self) -> None:
        """After all bytes are in place: bumps versions, sets plain values, calls load_state_dict(), and last sets
        random states."""
        self.writes.bump_versions()
        for action in self._after:
            action()
        self.random.finish()

    def after(self, action: Callable[[], None]) -> None:
        self._after.append(action)

    # What does not fit

    def _lost_kind(self, node: Node, target: Any) -> Kind:
        """The kind of an item that cannot be restored here."""
        torch = self.torch
        if torch is not None and isinstance(target, (torch.Module, torch.Optimizer)):
            return "weights"
        if isinstance(target, Rng):
            return "random"
        here = str(getattr(target, "dtype", "")).removeprefix("torch.") or None
        if node is _ABSENT:
            return "other"
        return kind_of_lost(node, lambda saved: self.saved.dtype_on_first_rank(saved) or here)

    def _differs_between_ranks(self, node: Node, value: Any, name: str) -> None:
        """A top-level value that was not the same on all ranks. Its tensors can still be found by their names."""
        value = value.value if type(value) is Replicated else value
        kind = self._lost_kind(node, value)
        if self._encoder.is_tensor(value) or (self.torch is not None and isinstance(value, self.torch.Module)):
            self._absent(value, name, functools.partial(self.problems.rank_local, kind=kind))
        else:
            self.problems.rank_local([name], kind)

    def _absent(self, value: Any, name: str, lost: Callable[[list[str]], None] | None = None) -> None:
        """The state has it, but the tree does not. With several ranks, each has its own tree, so its tensors may still
        be there."""
        if not self._has_parts(value):
            if self.selected(name):
                self.problems.left_plain(name)
            return
        lost = self.problems.missing if lost is None else lost
        flat = Flattener(allow_pickle=True, rank_info=self._rank_info)
        flat.encode(value, name)
        flat.take_random_states()
        if not flat.torch_names + flat.array_names:
            lost([name])
        for names_of, tensors, shards in (
            (flat.torch_names, flat.torch_tensors, flat.torch_shards),
            (flat.array_names, [memory.owner for memory in flat.array_memories], flat.array_shards),
        ):
            for index, (part, tensor) in enumerate(zip(names_of, tensors, strict=True)):
                if not self.selected(part):
                    continue
                if self.saved.of_several_ranks and (saved := self.saved.saved_as(part)) in self.saved:
                    shard = shards.get(index)
                    self.writes.write(saved, tensor, None if shard is None else (shard[0], shard[1]))
                else:
                    lost([part])

    def _surplus(self, node: Node, name: str) -> None:
        """The checkpoint has it, but the state does not. If it belongs to all ranks, another rank may have it."""
        found = [part for part in tensor_names(node) if not (part in self.saved and self.saved.is_shared(part))]
        if found and self.saved.of_other_world:
            return  # it belongs to rank 0 alone
        if found or not tensor_names(node):
            self.problems.extra(found or [name])

    def kind_differs(self, node: Node, target: Any, name: str) -> None:
        if self.selected(name):
            here = names.an(type(target).__name__)
            self.problems.wrong(f"'{name}' is {here} here and {kind_of(node)} in the checkpoint")

    def _has_parts(self, value: Any) -> bool:
        encoder = self._encoder
        if encoder.is_tensor(value) or encoder.holds_more_than_tensors(value):
            return True
        return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) and encoder.holds_more_than_tensors(
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
        elif self._encoder.is_tensor(target):
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
        elif self.selected(name):
            self._later(assign, node, name)

    def _later(self, assign: Assign, node: Node, name: str, new: bool = False) -> None:
        """``new``: the state has no such value yet."""
        value = decoder.decode(node, no_tensor, self._allow_pickle)
        self.report.add(name, new)
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
            if self.selected(name):
                self._later(functools.partial(_replace_dict, target), node, name)
            return
        saved = dict(zip(names.canonical([key for key, _ in entries]), entries, strict=True))
        name_of = names.namer(target, name, self._encoder.holds_more_than_tensors, codec.key_text)
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
            elif self.selected(child_name) and (name or key not in self._rank_local_values):
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
            if self.selected(name):
                self._later(functools.partial(target.__setitem__, slice(None)), elements, name)
        else:
            self._elements(elements, target, name, target.__setitem__)
            for index, child in enumerate(elements[len(target) :], len(target)):
                child_name = names.join(name, str(index))
                if has_parts(child):
                    self._surplus(child, child_name)
                elif self.selected(child_name):
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
        elif self.saved.is_rank_local(saved):
            self.problems.rank_local([saved], kind or self._lost_kind(node, target))
        elif self.saved.wanted(saved):
            self.writes.write_boxes(saved, target)

    def _borrowed(self, node: Node, target: Any, name: str) -> None:
        """Restores into an array on a CUDA device that is known only through DLPack."""
        saved = tensor_name(node)
        if saved is None:
            self.kind_differs(node, target, name)
        elif self.saved.is_rank_local(saved):
            self.problems.rank_local([saved], self._lost_kind(node, target))
        elif self.saved.wanted(saved):
            self.writes.write_borrowed(saved, target)

    def build(self, node: Node, like: Any = None, device: Any = None) -> Any:
        """A new value with new tensors, which the engine fills."""

        def tensor(name: str, is_array: bool) -> Any:
            info = self.saved.info(name)
            if is_array or self.torch is None:
                new = arrays.empty(info.dtype, info.shape, name)
            else:
                new = self.torch.empty(info.dtype, info.shape, like, device)
            self.writes.write(name, new)
            return new

        return decoder.decode(node, tensor, self._allow_pickle)

    # Objects

    def whole(self, node: Node, name: str) -> bool:
        """Whether an object that cannot be restored in part is selected."""
        chosen = [self.saved.wanted(part) for part in tensor_names(node)] or [self.selected(name)]
        if any(chosen) and not all(chosen):
            raise UsageError(
                f"only= and exclude= select a part of '{name}', which can only be restored whole: "
                f"select '{name}' or leave it out"
            )
        return all(chosen)

    def _object(self, node: Node, target: Any, name: str) -> None:
        if self.whole(node, name):
            if any(map(self.saved.is_rank_local, tensor_names(node))):
                self.problems.rank_local([name], self._lost_kind(node, target))
                return
            plan = OptimizerPlan(self, node, target, name) if holds_parameters(target) else None
            if plan is not None and not plan.takes_class():
                return
            adapt = None if plan is None else plan.adapt()
            state = self.build(node)
            self.report.add(name)
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
            if canonical not in own_key and self.saved.may_be_missing(child):
                continue
            key = own_key.pop(canonical, key)
            saved = tensor_name(child)
            chosen = [self.saved.wanted(part) for part in tensor_names(child)]
            if not all(chosen or [self.selected(names.join(name, str(key)))]):
                partial = True
            elif any(map(self.saved.is_rank_local, tensor_names(child))):
                self.problems.rank_local(tensor_names(child), "weights")
                state[key] = current[key]
            elif saved is not None and self.writes.fits_hooked(saved, current.get(key)):
                # Refuses another dtype, which load_state_dict() would cast silently.
                self.writes.write_boxes(saved, current[key])
                state[key] = current[key]
            else:
                state[key] = self.build(child)
        for canonical, key in own_key.items():  # tensors that neither this rank's tree nor that of rank 0 names
            saved = self.saved.saved_as(names.join(name, str(canonical)))
            if self.saved.of_several_ranks and saved in self.saved and self.saved.wanted(saved):
                self.writes.write_boxes(saved, current[key])
                state[key] = current[key]
        if state or not partial:
            strict = self.strict and not partial
            self._after.append(lambda: _load(module, state, name, strict=strict))


def _load(target: Any, state: Any, name: str, **options: Any) -> None:
    try:
        loaders.load_state(target, state, **options)
    except Error:
        raise
    except RuntimeError as error:
        if options:  # torch raises it if keys or shapes differ
            reason = " ".join(str(error).split())
            raise MismatchError(f"load_state_dict() of '{name}' refused the checkpoint: {reason}") from error
        raise


def _replace_dict(target: Any, value: dict[Any, Any]) -> None:
    target.clear()
    target.update(value)
