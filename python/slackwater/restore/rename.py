"""``restore(rename={"old.*": "new.*"})``: moves the parts of a saved tree to other names.

The first rule that matches a name renames it. ``*`` matches any text, including dots. The n-th star of the new name
stands for what the n-th star of the old name matched. A rule for a name also applies to everything below that name.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from ..errors import UsageError
from ..ranks.sharding import Replicated
from ..state import names
from ..state.codec import Node, encode_key, key_text
from ..state.decoder import tag_of
from ..state.nodes import decoded_key, entries_of, is_pairs, tensor_name


class _Rule:
    def __init__(self, old: Any, new: Any) -> None:
        if not isinstance(old, str) or not isinstance(new, str) or not old or not new:
            raise UsageError(f"rename= maps names to names, such as {{'old.*': 'new.*'}}, not {old!r} to {new!r}")
        if old.count("*") != new.count("*"):
            raise UsageError(f"rename={{{old!r}: {new!r}}}: both names need the same number of stars")
        self.old = old
        self.new = new
        self.used = False
        below = old.endswith(".*") and new.endswith(".*")
        stem, self._text = (old[:-2], new[:-2]) if below else (old, new)
        self._tail = below or not old.endswith("*")
        regex = "(.*?)".join(map(re.escape, stem.split("*")))
        self._regex = re.compile(regex + (r"(?P<tail>\..*)?\Z" if self._tail else r"\Z"), re.DOTALL)

    def __call__(self, name: str) -> str | None:
        match = self._regex.match(name)
        if match is None:
            return None
        self.used = True
        stars = iter(match.groups())
        text = re.sub(r"\*", lambda _: next(stars), self._text)
        return text + (match["tail"] or "") if self._tail else text

    def __str__(self) -> str:
        return f"{self.old!r}: {self.new!r}"


class Renaming:
    """The rules of one restore. Without rules, every name stays as it is."""

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        if rules is not None and not isinstance(rules, Mapping):
            raise UsageError(f"rename is {names.an(type(rules).__name__)}; it is a dict such as {{'old.*': 'new.*'}}")
        self._rules = [_Rule(old, new) for old, new in (rules or {}).items()]
        self._known: dict[str, str] = {}
        self._moved: list[tuple[str, Node]] = []

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __call__(self, name: str) -> str:
        """The name in the given state."""
        if not self._rules:
            return name
        new = self._known.get(name)
        if new is None:
            new = next((new for rule in self._rules if (new := rule(name)) is not None), name)
            self._known[name] = new
        return new

    def apply(self, root: Node, state: Any, holds_more_than_tensors: Any) -> dict[str, str]:
        """Moves the parts of ``root``, in place, to where ``state`` has them. Returns what was renamed."""
        for rule in self._rules:
            rule.used = False
        self._known.clear()
        self._moved = []
        old_names = list(_leaves(root, ""))
        owners: dict[str, str] = {}
        for old in old_names:
            new = self(old)
            if owners.setdefault(new, old) != old:
                raise UsageError(f"rename= gives '{owners[new]}' and '{old}' of the checkpoint the same name '{new}'")
        for rule in self._rules:
            if not rule.used:
                raise UsageError(
                    f"rename={{{rule}}} matches nothing that the checkpoint has, or another rule before it takes all; "
                    f"{names.suggest(rule.old, old_names)}"
                )
        self._take(root, "", "")
        for new, node in self._moved:
            _insert(root, state, "", new, node, holds_more_than_tensors)
        return {old: self(old) for old in old_names if self(old) != old}

    def unrestored(self, renamed: Mapping[str, str], restored: Mapping[str, None]) -> list[str]:
        """Rules that brought nothing into the state."""
        return [
            str(rule)
            for rule in self._rules
            if not any(rule(old) == new and _is_below(new, restored) for old, new in renamed.items())
            and any(rule(old) == new for old, new in renamed.items())
        ]

    def _take(self, node: Node, name: str, expected: str) -> None:
        """Removes from ``node`` the parts that do not go where the rest of it goes."""
        children = _children(node, name)
        for key, child, child_name in children:
            place = expected + child_name[len(name) :] if name else child_name
            new = self(child_name)
            inner = _children(child, child_name)
            if new == place or not _is_mapping(node):
                self._take(child, child_name, place)
                if _is_mapping(node) and _is_mapping(child) and not _children(child, child_name) and inner:
                    _remove(node, key)  # all of it went elsewhere
            else:
                self._take(child, child_name, new)
                self._moved.append((new, child))
                _remove(node, key)


def _is_below(name: str, restored: Mapping[str, None]) -> bool:
    return name in restored or any(found.startswith(f"{name}.") for found in restored)


def _is_mapping(node: Node) -> bool:
    return _is_container(node) and not isinstance(node, list) and tag_of(node) not in ("tuple", "namedtuple", "deque")


def _is_container(node: Node) -> bool:
    """Whether its parts have their own names. Optimizers and other objects are moved whole."""
    tag = tag_of(node)
    if tag == "object":
        return node.get("of") == "module" and _is_container(node["v"])
    if tag in ("Namespace", "SimpleNamespace"):
        return _is_container(node["v"])
    return (
        isinstance(node, list)
        or is_pairs(tag)
        or tag in ("tuple", "namedtuple", "deque")
        or (tag is None and isinstance(node, dict))
    )


def _children(node: Node, name: str) -> list[tuple[Any, Node, str]]:
    """(key, node, name) for each part."""
    if not _is_container(node):
        return []
    if _is_mapping(node):
        flat = tag_of(node) == "object"
        return [
            (key, child, tensor_name(child) or names.join(name, str(key) if flat else names.segment(key, key_text)))
            for key, child in entries_of(node) or []
        ]
    values = node if isinstance(node, list) else node["v"]
    return [(index, child, tensor_name(child) or names.join(name, str(index))) for index, child in enumerate(values)]


def _leaves(node: Node, name: str) -> Iterator[str]:
    children = _children(node, name)
    for _, child, child_name in children:
        yield from _leaves(child, child_name)
    if name and not children:
        yield name


def _inner(node: Node) -> Node:
    while tag_of(node) in ("object", "Namespace", "SimpleNamespace"):
        node = node["v"]
    return node


def _remove(node: Node, key: Any) -> None:
    node = _inner(node)
    if tag_of(node) is None:
        del node[key]
    else:
        node["v"] = [pair for pair in node["v"] if decoded_key(pair[0]) != key]


def _set(node: Node, key: Any, child: Node) -> None:
    node = _inner(node)
    if tag_of(node) is None and (type(key) is not str or key.startswith("$")):
        pairs = [[name, value] for name, value in node.items()]
        node.clear()
        node.update({"$": "dict", "v": pairs})
    if tag_of(node) is None:
        node[key] = child
    else:
        node["v"].append([encode_key(key), child])


def _set_flat(node: Node, key: str, child: Node) -> None:
    """Modules have no nested dicts: they use keys with dots."""
    if not _is_mapping(child):
        _set(node, key, child)
    for own, part, _ in _children(child, "") if _is_mapping(child) else []:
        _set_flat(node, f"{key}.{own}", part)


def _insert(node: Node, target: Any, name: str, new: str, child: Node, holds_more_than_tensors: Any) -> None:
    """Puts ``child`` below ``node``, where ``target`` has ``new``."""
    if type(target) is Replicated:
        target = target.value
    if isinstance(target, (argparse.Namespace, types.SimpleNamespace)):
        target = vars(target)
    rest = new[len(name) + 1 :] if name else new
    if tag_of(node) == "object" or not isinstance(target, (MutableMapping, list, tuple)):
        if _is_mapping(node):
            _set_flat(node, rest, child)
        return
    if isinstance(target, MutableMapping):
        name_of = names.namer(target, name, holds_more_than_tensors, key_text)
        places = [(key, name_of(key), value) for key, value in target.items()]
    else:
        places = [(index, names.join(name, str(index)), value) for index, value in enumerate(target)]
    for key, place, value in places:
        if new == place and _is_mapping(node):
            _set(node, key, child)
            return
        if new.startswith(f"{place}."):
            inner = next((found for own, found, _ in _children(node, name) if own == key), None)
            if inner is None and _is_mapping(node):
                _set(node, key, inner := {})
            if inner is not None:
                _insert(inner, value, place, new, child, holds_more_than_tensors)
                return
    if _is_mapping(node):
        _set(node, rest, child)
