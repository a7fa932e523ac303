"""Looking at saved nodes without decoding them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import DamagedError
from . import decoder, names
from .codec import Node, key_text
from .decoder import tag_of

_PAIRS = ("dict", "OrderedDict", "defaultdict", "Counter")


def is_pairs(tag: str | None) -> bool:
    """Whether nodes of this kind have a list of keys and values."""
    return tag in _PAIRS


def entries_of(node: Node) -> list[tuple[Any, Node]] | None:
    """Keys and nodes of anything saved like a dict; None for the rest."""
    node = unwrap(node)
    tag = tag_of(node)
    if tag is None:
        return list(node.items()) if isinstance(node, dict) else None
    if tag in _PAIRS:
        return [(decoded_key(key), value) for key, value in node["v"]]
    if tag in ("Namespace", "SimpleNamespace"):
        return entries_of(node["v"])
    return None


def decoded_key(node: Node) -> Any:
    key = decoder.decode(node, no_tensor)
    try:
        hash(key)
    except TypeError as error:
        raise DamagedError(f"the tree of the checkpoint has {names.an(type(key).__name__)} for a key") from error
    return key


def elements_of(node: Node) -> list[Node] | None:
    node = unwrap(node)
    if isinstance(node, list):
        return node
    return node["v"] if tag_of(node) in ("tuple", "namedtuple", "deque") else None


def unwrap(node: Node) -> Node:
    while tag_of(node) == "object":
        node = node["v"]
    return node


def tensor_name(node: Node) -> str | None:
    tag = tag_of(node)
    return node[tag] if tag in ("$t", "$a") else None


def tensor_names(node: Node) -> list[str]:
    """Of everything below."""
    found: list[str] = []
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            first = next(iter(item), "")
            tag = item["$"] if first == "$" else first
            if tag in ("$t", "$a"):
                found.append(item[tag])
                continue
            item = list(item.values())
        if isinstance(item, list):
            stack += [part for part in reversed(item) if isinstance(part, (dict, list))]
    return found


def has_parts(node: Node) -> bool:
    """Whether tensors or objects stand below: what plain values cannot be."""
    if isinstance(node, list):
        return any(map(has_parts, node))
    if not isinstance(node, dict):
        return False
    if tag_of(node) in ("$t", "$a", "object", "subclass"):
        return True
    return any(map(has_parts, node.values()))


NOTHING: Any = object()


def part_of(node: Node, selected: Callable[[str], bool], name: str = "") -> Node:
    """What of it was asked for, tensors and plain values, by their names. Of dicts the other keys go; in lists and
    tuples None stands for the rest. NOTHING: there is none."""
    tag = tag_of(node)
    if tag in ("$t", "$a"):
        return node if selected(node[tag]) else NOTHING
    if tag in ("object", "subclass", "Namespace", "SimpleNamespace"):
        return _with(node, part_of(node["v"], selected, name))

    def child(key: Any, value: Node) -> Node:
        return part_of(value, selected, names.join(name, names.segment(key, key_text)))

    parts: list[Any]
    if tag in _PAIRS and node["v"]:
        parts = [[key, child(decoded_key(key), value)] for key, value in node["v"]]
        return _with(node, [pair for pair in parts if pair[1] is not NOTHING] or NOTHING)
    if tag in ("tuple", "namedtuple", "deque") and node["v"]:
        return _with(node, part_of(node["v"], selected, name))
    if isinstance(node, list) and node:
        parts = [child(index, value) for index, value in enumerate(node)]
        if all(part is NOTHING for part in parts):
            return NOTHING
        return [None if part is NOTHING else part for part in parts]
    if tag is None and isinstance(node, dict) and node:
        found = {key: child(key, value) for key, value in node.items()}
        return {key: part for key, part in found.items() if part is not NOTHING} or NOTHING
    return node if selected(name) else NOTHING


def _with(node: Node, value: Any) -> Node:
    return NOTHING if value is NOTHING else {**node, "v": value}


def no_tensor(name: str, is_array: bool) -> Any:
    raise DamagedError(f"the tree of the checkpoint holds the tensor '{name}' where only a plain value can stand")


def kind_of(node: Node) -> str:
    tag = tag_of(node)
    if tag in ("$t", "$a", "subclass"):
        return "a tensor"
    if tag == "object":
        return f"the state of {names.an(node['class'])}"
    if tag is not None:
        return f"{names.an(tag)}"
    return {dict: "a dict", list: "a list", type(None): "None"}.get(type(node), f"{names.an(type(node).__name__)}")
