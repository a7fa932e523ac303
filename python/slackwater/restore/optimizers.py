"""Restores optimizers: state is matched by the names of parameters, and hyperparameters follow their groups."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import DamagedError, UsageError
from ..state.codec import Node
from ..state.decoder import tag_of
from ..state.names import Globs
from ..state.nodes import elements_of, entries_of, tensor_name, tensor_names
from ..state.tree import class_name
from .parameter_match import CurrentParameter, ParameterMatch, SavedParameter, current_parameters, saved_parameters

if TYPE_CHECKING:
    from .restore_plan import RestorePlan

logger = logging.getLogger("slackwater")

_ABSENT: Any = object()

# Keys of parameter groups that say nothing about the class: schedulers or the caller add them.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "param_names"})


class Hyperparameters:
    """The hyperparameters of the given optimizers that stay as they are: ``keep_hyperparameters``."""

    def __init__(self, keep: bool | str | Iterable[str]) -> None:
        if not isinstance(keep, (bool, str, Iterable)):
            raise UsageError(
                f"keep_hyperparameters is {keep!r}; it is True, or name patterns such as 'lr' or ['optim.lr']"
            )
        self.all = keep is True
        self._globs = None if isinstance(keep, bool) else Globs("keep_hyperparameters", keep)
        self._known: dict[str, None] = {}

    def keeps(self, optimizer: str, key: str) -> bool:
        """A pattern may be the name of the hyperparameter, or have the name of the optimizer in front."""
        if self._globs is None:
            return self.all
        self._known.update(dict.fromkeys((key, f"{optimizer}.{key}")))
        found = [self._globs(name) for name in (key, f"{optimizer}.{key}")]
        # Schedulers store the first learning rate under this key.
        return any(found) or (key == "initial_lr" and self.keeps(optimizer, "lr"))

    def check(self) -> None:
        if self._globs is not None:
            self._globs.check(self._known)


class OptimizerPlan:
    """Where the state of one optimizer goes. Nothing is changed before ``RestorePlan.finish``."""

    def __init__(self, plan: RestorePlan, node: Node, optimizer: Any, name: str) -> None:
        self._plan = plan
        self._torch = plan.torch
        self._node = node
        self._optimizer = optimizer
        self._name = name
        self._keep = plan.hyperparameters
        parts = dict(entries_of(node) or [])
        self._states = entries_of(parts.get("state"))
        self._state_of = dict(self._states or [])
        groups = elements_of(parts.get("param_groups"))
        self._groups = None if groups is None else [dict(entries_of(group) or []) for group in groups]

    def place(self) -> None:
        """Plans the state of a torch optimizer as its own load_state_dict() would, but in place and without casts."""
        if self._states is None or self._groups is None:
            self._plan.kind_differs(self._node, self._optimizer, self._name)
            return
        if not self._plan.whole(self._node, self._name) or not self.takes_class():
            return
        match = self._match()
        self._plan.report.add(self._name)
        for group, source in zip(self._optimizer.param_groups, match.sources, strict=True):
            for key, child in [] if source is None else self._groups[source].items():
                if key == "params" or self._keep.keeps(self._name, key):
                    continue
                value = self._value(child, group.get(key, _ABSENT), None, None)
                if value is not _ABSENT:
                    self._plan.after(functools.partial(group.__setitem__, key, value))
        gone = {*match.left, *(saved.number for saved in match.gone)}
        fresh: dict[Any, Any] = {}
        for key, child in self._states:
            here = match.pairs.get(key) if type(key) is int else None
            if type(key) is int and key in gone:
                self._plan.problems.unused(tensor_names(child))
                continue
            self._place_state(key, child, here, fresh)
        stay = [here.parameter for here in (*match.new, *match.left.values())]
        self._plan.after(functools.partial(_replace_state, self._optimizer, fresh, stay))

    def _place_state(self, key: Any, node: Node, here: CurrentParameter | None, fresh: dict[Any, Any]) -> None:
        parameter = None if here is None else here.parameter
        group = {} if here is None else self._optimizer.param_groups[here.group]
        owner = key if parameter is None else parameter
        current = self._optimizer.state.get(owner, {})
        entries = entries_of(node)
        if entries is None or not isinstance(current, dict):
            fresh[owner] = self._plan.build(node)
            return
        values = {
            part: self._value(
                part_node,
                current.get(part, _ABSENT),
                parameter,
                None if parameter is None else self._torch.state_device(group, part, parameter),
            )
            for part, part_node in entries
        }
        fresh[owner] = {part: value for part, value in values.items() if value is not _ABSENT}

    def _value(self, node: Node, current: Any, like: Any, device: Any) -> Any:
        """One entry of the state: the existing tensor if it fits, otherwise a new value."""
        plan = self._plan
        saved = tensor_name(node)
        if lost := [p for p in (tensor_names(node) if saved is None else [saved]) if plan.saved.is_rank_local(p)]:
            plan.problems.rank_local(lost, "weights")
            return current
        if saved is not None and plan.writes.fits(saved, current):
            plan.writes.write_boxes(saved, current)
            return current
        if saved is not None and self._lies_like(saved, like):
            new = self._torch.empty_dtensor(plan.saved.info(saved).dtype, like, device)
            plan.writes.write_boxes(saved, new)
            return new
        return plan.build(node, like, device)

    def _lies_like(self, saved: str, parameter: Any) -> bool:
        """Whether this state is spread over the ranks in the same way as its parameter."""
        shape = self._plan.saved.info(saved).shape
        return self._torch.is_dtensor(parameter) and len(shape) > 0 and shape == tuple(parameter.shape)

    # Optimizers with their own load_state_dict()

    def adapt(self) -> Callable[[Any], Any]:
        """A function that rewrites the saved state for this optimizer, before its own load_state_dict() gets it."""
        if self._torch is None or self._states is None or self._groups is None:
            return lambda state: state
        match = self._match()
        for number in (*match.left, *(saved.number for saved in match.gone)):
            self._plan.problems.unused(tensor_names(self._state_of.get(number)))
        keeps = [
            {key for key in group if key != "params" and self._keep.keeps(self._name, key)}
            for group in self._optimizer.param_groups
        ]
        if match.same_order and not match.left and not any(keeps) and None not in match.sources:
            return lambda state: state
        _, numbers = self._torch.parameter_numbers(self._optimizer)
        return functools.partial(_renumber, self._optimizer.param_groups, match, numbers, keeps)

    # What goes where

    def takes_class(self) -> bool:
        """Whether this optimizer can use the state of one of the saved class. If not, it stays as it is."""
        node, problems = self._node, self._plan.problems
        if tag_of(node) != "object" or node["class"] == class_name(self._optimizer):
            return True
        saved, here = node["class"], class_name(self._optimizer)
        text = f"'{self._name}' was saved from {saved} and is restored into {here}"
        if saved.rpartition(".")[2] == here.rpartition(".")[2]:
            logger.info("%s, which has the same name", text)
            return True
        alike = self._is_like(saved)
        if self._plan.strict:
            problems.wrong(f"{text}; exclude='{self._name}' starts it anew", loose=alike)
        elif alike:
            logger.warning("%s, which takes over its state and hyperparameters", text)
        else:
            problems.other_class(self._name, text)
            problems.unused(tensor_names(node) or [self._name])
        return alike

    def _is_like(self, saved: str) -> bool:
        """Whether optimizers of the saved class keep the same hyperparameters, and the same state per parameter."""
        if self._torch is None or self._states is None or self._groups is None:
            return False
        here = {key for group in self._optimizer.param_groups for key in group}
        if (here ^ {key for group in self._groups for key in group}) - _OF_SCHEDULERS:
            return False
        kept = [state for state in getattr(self._optimizer, "state", {}).values() if isinstance(state, dict)]
        keys_here = {key for state in kept for key in state}
        keys_saved = {key for _, state in self._states for key, _ in entries_of(state) or []}
        if keys_here and keys_saved:
            return keys_here == keys_saved
        # Before its first step, an optimizer does not show what state it keeps.
        return not keys_saved or self._torch.is_kin(saved, type(self._optimizer))

    def _match(self) -> ParameterMatch:
        plan, name = self._plan, self._name
        assert self._groups is not None
        numbers = [elements_of(group.get("params", [])) or [] for group in self._groups]
        if not all(type(number) is int for group in numbers for number in group):
            raise DamagedError(f"the tree of the checkpoint has parameters of '{name}' without their numbers")
        described = self._node.get("parameters") if tag_of(self._node) == "object" else None
        saved = saved_parameters(described, numbers, name, plan.saved.current_names, plan.saved.shape)
        if described is None:
            saved = [[self._with_likely_shape(one) for one in group] for group in saved]
        here = current_parameters(self._optimizer, *plan.parts.parameter_names(self._optimizer))
        match = ParameterMatch(name, saved, here)
        match.leave(plan.selected.excludes)
        for problem in match.wrong:
            plan.problems.wrong(problem)
        self._settle_parameters(match)
        self._settle_groups(match)
        self._warn_of_order(match)
        if self._torch.is_of_all_parameters(self._optimizer) and not match.same_order and not match.wrong:
            plan.problems.wrong(
                f"'{name}' is an LBFGS, whose state is that of all its parameters in their order, and these have "
                f"changed; exclude='{name}' leaves it out"
            )
        return match

    def _with_likely_shape(self, saved: SavedParameter) -> SavedParameter:
        """For an older release that stored no shapes: the shape of the moments, if torch gives them that of the
        parameter."""
        path = self._node["class"] if tag_of(self._node) == "object" else ""
        for part, node in entries_of(self._state_of.get(saved.number)) or []:
            tensor = tensor_name(node)
            if tensor is None or not self._torch.has_shape_of_parameter(path, part):
                continue
            if not self._plan.saved.is_rank_local(tensor):
                return saved._replace(shape=tuple(self._plan.saved.info(tensor).shape))
        return saved

    def _settle_parameters(self, match: ParameterMatch) -> None:
        problems, name = self._plan.problems, self._name
        new = [here.names[0] for here in match.new]
        if self._plan.strict and new:
            problems.wrong(f"'{name}' holds {problems.listing(new)} here and did not when it was saved", loose=True)
        if self._plan.strict and match.gone:
            gone = [saved.names[0] for saved in match.gone if saved.names]
            problems.wrong(f"'{name}' held {problems.listing(gone)} when it was saved and does not here", loose=True)
        for here in (*match.new, *match.left.values()):
            problems.new_parameter(f"{name}: {here.names[0]}")

    def _warn_of_order(self, match: ParameterMatch) -> None:
        """Warns if two of them have the same shape: they may have changed places, and nobody would notice."""
        count = len(match.in_order)
        if match.wrong or not self._states or len({here.shape for here in match.in_order}) == count:
            return
        if all(here.names for here in match.in_order):
            logger.warning(
                "'%s' was saved without the names of %d parameters, so they are matched by their order",
                self._name,
                count,
            )
        else:
            logger.warning(
                "'%s' holds %d parameters that nothing in the state has, so they are matched by their order; "
                "put the model into the state",
                self._name,
                count,
            )

    def _settle_groups(self, match: ParameterMatch) -> None:
        if not match.regrouped or self._keep.all:
            return
        assert self._groups is not None
        came_from = {
            index: sorted({one.group for group in match.saved for one in group if self._goes_to(match, one, index)})
            for index in match.regrouped
        }
        for index, sources in came_from.items():
            first, *others = [{k: v for k, v in self._groups[g].items() if k != "params"} for g in sources]
            split = any(len([i for i in came_from if g in came_from[i]]) > 1 for g in sources)
            if not split and all(first == other for other in others):  # merged groups that had the same values
                match.sources[index] = sources[0]
                continue
            text = (
                f"group {index} of '{self._name}' holds parameters that were grouped in another way "
                f"(group {' and '.join(map(str, sources))} of the checkpoint)"
            )
            if self._plan.strict:
                self._plan.problems.wrong(f"{text}; keep_hyperparameters=True keeps yours", loose=True)
            else:
                logger.warning("%s: it keeps the hyperparameters it has", text)

    @staticmethod
    def _goes_to(match: ParameterMatch, saved: SavedParameter, group: int) -> bool:
        here = match.pairs.get(saved.number)
        return here is not None and here.group == group


def _replace_state(optimizer: Any, fresh: dict[Any, Any], stay: list[Any]) -> None:
    """Replaces the state. State of parameters that the checkpoint does not have stays as it is."""
    kept = {parameter: optimizer.state[parameter] for parameter in stay if parameter in optimizer.state}
    optimizer.state.clear()
    optimizer.state.update({**kept, **fresh})


def _renumber(
    groups: list[dict[str, Any]], match: ParameterMatch, numbers: list[list[int]], keeps: list[set[str]], state: Any
) -> Any:
    """Rewrites the state_dict() of an optimizer for another order of its parameters."""
    number_of = {
        id(p): n for group, own in zip(groups, numbers, strict=True) for p, n in zip(group["params"], own, strict=True)
    }
    states = {}
    for key, value in state["state"].items():
        if type(key) is not int:
            states[key] = value
        elif key in match.pairs:
            states[number_of[id(match.pairs[key].parameter)]] = value
    packed = []
    for group, source, own, keep in zip(groups, match.sources, numbers, keeps, strict=True):
        values = {} if source is None else dict(state["param_groups"][source])
        values.update({k: v for k, v in group.items() if k != "params" and (source is None or k in keep)})
        packed.append({**values, "params": own})
    return {**state, "state": states, "param_groups": packed}
