"""Looking at saved nodes without decoding them."""

from __future__ import annotations

from typing import Any

from . import decoder
from .codec import Node
from .decoder import tag_of
from .errors import DamagedError


def entries_of(node: Node) -> list[tuple[Any, Node]] | None:
    """Keys and nodes of anything saved like a dict; None for the rest."""
    node = unwrap(node)
    tag = tag_of(node)
    if tag is None:
        return list(node.items()) if isinstance(node, dict) else None
    if tag in ("dict", "OrderedDict", "defaultdict", "Counter"):
        return [(_key(key), value) for key, value in node["v"]]
    if tag in ("Namespace", "SimpleNamespace"):
        return entries_of(node["v"])
    return None


def _key(node: Node) -> Any:
    key = decoder.decode(node, no_tensor)
    try:
        hash(key)
    except TypeError as error:
        raise DamagedError(f"the tree of the checkpoint has a {type(key).__name__} for a key") from error
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
        if isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            name = tensor_name(item)
            if name is not None:
                found.append(name)
            else:
                stack.extend(reversed(list(item.values())))
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


def no_tensor(name: str, is_array: bool) -> Any:
    raise DamagedError(f"the tree of the checkpoint holds the tensor '{name}' where only a plain value can stand")


def kind_of(node: Node) -> str:
    tag = tag_of(node)
    if tag in ("$t", "$a", "subclass"):
        return "a tensor"
    if tag == "object":
        return f"the state of a {node['class']}"
    if tag is not None:
        return f"a {tag}"
    return {dict: "a dict", list: "a list", type(None): "None"}.get(type(node), f"a {type(node).__name__}")
