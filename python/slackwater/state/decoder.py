"""Typed JSON back into values: the other half of codec.py."""

from __future__ import annotations

import argparse
import base64
import collections
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any

from ..errors import DamagedError, Error, UnsupportedError
from .codec import FACTORIES, FORMAT, PATHS, Node


class Decoder:
    """Turns nodes back into values. ``tensor(name, is_array)`` gives what stands for a tensor."""

    def __init__(self, tensor: Callable[[str, bool], Any], allow_pickle: bool = False) -> None:
        self._tensor = tensor
        self._allow_pickle = allow_pickle

    def decode(self, node: Node) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag = tag_of(node)
        if tag is None:
            return {key: self.decode(value) for key, value in node.items()}
        decode = _DECODERS.get(tag)
        if decode is None:
            raise UnsupportedError(
                f"the checkpoint holds a value of the kind '{tag}', "
                "which this version of Slackwater does not know; update it"
            )
        return decode(self, node)

    def pairs(self, node: Node) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in node["v"]]


def tag_of(node: Node) -> str | None:
    """What kind of typed node this is; None for JSON's own types."""
    if not isinstance(node, dict) or not node:
        return None
    first = next(iter(node))
    if not first.startswith("$"):
        return None
    return str(node["$"]) if first == "$" else str(first)


def _float_value(text: str) -> float:
    if text.startswith("nan:"):
        return float(struct.unpack(">d", bytes.fromhex(text[4:]))[0])
    return float.fromhex(text)


def _decode_pickle(decoder: Decoder, node: Node) -> Any:
    if not decoder._allow_pickle:
        raise UnsupportedError(
            f"the checkpoint holds a pickled {node['class']}; loading it runs code from the file, "
            "so it needs allow_pickle=True: pass that only if you trust whoever wrote it"
        )
    try:
        return pickle.loads(base64.b64decode(node["v"]))
    except Exception as error:
        raise UnsupportedError(f"the pickled {node['class']} of the checkpoint cannot be loaded: {error}") from error


def _find_class(path: str) -> Any:
    """Among what is loaded already. No attribute is asked for: a module's __getattr__ may import others."""
    module, _, qualified = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found


def _decode_enum(decoder: Decoder, node: Node) -> Any:
    kind = _find_class(node["class"])
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise UnsupportedError(f"the checkpoint holds a member of the enum {node['class']}; import its module first")
    member = kind.__members__.get(node["name"])
    if member is None:
        raise UnsupportedError(f"the enum {node['class']} has no member '{node['name']}' any more")
    return member


def _decode_named_tuple(decoder: Decoder, node: Node) -> Any:
    values = decoder.decode(node["v"])
    fields = tuple(node["fields"])
    kind = _find_class(node["class"])
    if (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and getattr(kind, "_fields", None) == fields
        and len(fields) == len(values)
    ):
        return tuple.__new__(kind, values)  # the class's own __new__ might do anything
    make: Any = collections.namedtuple  # the class is not loaded: one of the same name and fields stands for it
    return make(node["class"].rpartition(":")[2].rpartition(".")[2], fields)._make(values)


def _decode_numpy_scalar(decoder: Decoder, node: Node) -> Any:
    dtype = _numpy_dtype(node["dtype"])
    data = base64.b64decode(node["v"])
    if len(data) != dtype.itemsize:
        raise DamagedError(f"a NumPy scalar of dtype {dtype} has {len(data)} bytes")
    import numpy as np

    return np.frombuffer(data, dtype)[0] if data else np.zeros((), dtype)[()]


def _numpy_dtype(text: str) -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise UnsupportedError("the checkpoint holds NumPy values; install NumPy to read them") from error
    try:
        dtype = np.dtype(text)
    except Exception as error:  # NumPy parses a small language here, and answers nonsense with a SyntaxError too
        raise DamagedError(f"the checkpoint names the NumPy dtype {text!r}, which there is not") from error
    if dtype.hasobject:
        raise DamagedError(f"the checkpoint names the NumPy dtype {text}, which Slackwater never writes")
    return dtype


def _decode_torch_name(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return f"torch.{node['v']}"
    found = vars(torch).get(node["v"])
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise UnsupportedError(f"the checkpoint names torch.{node['v']}, which this PyTorch does not have")
    return found


def _decode_torch_size(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    return tuple(node["v"]) if torch is None else torch.Size(node["v"])


def _decode_torch_device(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    try:
        return node["v"] if torch is None else torch.device(node["v"])
    except RuntimeError as error:
        raise UnsupportedError(f"the checkpoint names the device {node['v']!r}, which there is not") from error


def _decode_default_dict(decoder: Decoder, node: Node) -> Any:
    if node["factory"] not in FACTORIES:
        raise UnsupportedError(
            f"the checkpoint holds a defaultdict of '{node['factory']}', which this version does not know"
        )
    return collections.defaultdict(FACTORIES[node["factory"]], decoder.pairs(node))


def _decode_path(decoder: Decoder, node: Node) -> Any:
    text = decoder.decode(node["v"])
    kind = PATHS.get(node["class"], pathlib.PurePosixPath)
    try:
        return kind(text)
    except NotImplementedError:  # a WindowsPath on Linux
        return pathlib.PureWindowsPath(text) if "Windows" in node["class"] else pathlib.PurePosixPath(text)


def _from_iso(kind: Any) -> Callable[[Decoder, Node], Any]:
    return lambda decoder, node: kind.fromisoformat(node["v"]).replace(fold=node["fold"])


_DECODERS: dict[str, Callable[[Decoder, Node], Any]] = {
    "$t": lambda decoder, node: decoder._tensor(node["$t"], False),
    "$a": lambda decoder, node: decoder._tensor(node["$a"], True),
    "object": lambda decoder, node: decoder.decode(node["v"]),
    "subclass": lambda decoder, node: decoder.decode(node["v"]),
    "int": lambda decoder, node: int(node["v"], 16),
    "float": lambda decoder, node: _float_value(node["v"]),
    "str": lambda decoder, node: base64.b64decode(node["v"]).decode("utf-8", "surrogatepass"),
    "bytes": lambda decoder, node: base64.b64decode(node["v"]),
    "bytearray": lambda decoder, node: bytearray(base64.b64decode(node["v"])),
    "complex": lambda decoder, node: complex(*map(_float_value, node["v"])),
    "tuple": lambda decoder, node: tuple(decoder.decode(node["v"])),
    "dict": lambda decoder, node: dict(decoder.pairs(node)),
    "OrderedDict": lambda decoder, node: collections.OrderedDict(decoder.pairs(node)),
    "Counter": lambda decoder, node: collections.Counter(dict(decoder.pairs(node))),
    "defaultdict": _decode_default_dict,
    "deque": lambda decoder, node: collections.deque(decoder.decode(node["v"]), node["maxlen"]),
    "set": lambda decoder, node: set(decoder.decode(node["v"])),
    "frozenset": lambda decoder, node: frozenset(decoder.decode(node["v"])),
    "Namespace": lambda decoder, node: argparse.Namespace(**decoder.decode(node["v"])),
    "SimpleNamespace": lambda decoder, node: types.SimpleNamespace(**decoder.decode(node["v"])),
    "range": lambda decoder, node: range(*decoder.decode(node["v"])),
    "slice": lambda decoder, node: slice(*decoder.decode(node["v"])),
    "Ellipsis": lambda decoder, node: Ellipsis,
    "datetime": _from_iso(datetime.datetime),
    "time": _from_iso(datetime.time),
    "date": lambda decoder, node: datetime.date.fromisoformat(node["v"]),
    "timedelta": lambda decoder, node: datetime.timedelta(*node["v"]),
    "Decimal": lambda decoder, node: decimal.Decimal(node["v"]),
    "Fraction": lambda decoder, node: fractions.Fraction(*decoder.decode(node["v"])),
    "UUID": lambda decoder, node: uuid.UUID(node["v"]),
    "path": _decode_path,
    "enum": _decode_enum,
    "namedtuple": _decode_named_tuple,
    "np": _decode_numpy_scalar,
    "np.dtype": lambda decoder, node: _numpy_dtype(node["v"]),
    "torch": _decode_torch_name,
    "torch.Size": _decode_torch_size,
    "torch.device": _decode_torch_device,
    "pickle": _decode_pickle,
}


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)


# What must hold of the nodes that are looked into without being decoded (nodes.py, restore/restore_plan.py).
_WELL_FORMED: dict[str, Callable[[Node], bool]] = {
    "$t": lambda node: isinstance(node.get("$t"), str),
    "$a": lambda node: isinstance(node.get("$a"), str),
    **{tag: lambda node: _is_pairs(node.get("v")) for tag in ("dict", "OrderedDict", "Counter", "defaultdict")},
    **{tag: lambda node: isinstance(node.get("v"), list) for tag in ("tuple", "namedtuple", "deque")},
    **{tag: lambda node: "v" in node for tag in ("Namespace", "SimpleNamespace")},
    "object": lambda node: "v" in node and isinstance(node.get("class"), str),
    "subclass": lambda node: isinstance(node.get("v"), dict),
}


def _check(root: Node) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            tag = tag_of(node)
            well_formed = _WELL_FORMED.get(tag) if tag is not None else None
            if well_formed is not None and not well_formed(node):
                raise DamagedError(f"the tree of the checkpoint holds a malformed value of the kind '{tag}'")
            node = node.values()
        elif not isinstance(node, list):
            continue
        stack += [part for part in node if isinstance(part, (dict, list))]


def load_tree(text: str | bytes) -> Node:
    """The root node of a checkpoint's tree."""
    try:
        document = json.loads(text)
        version = document["slackwater_tree"]
        state = document["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"the tree of the checkpoint cannot be read: {error}") from error
    if version != FORMAT:
        raise UnsupportedError(
            f"the tree of the checkpoint has format {version}, this version of Slackwater reads {FORMAT}; update it"
        )
    _check(state)
    return state


def decode(node: Node, tensor: Callable[[str, bool], Any], allow_pickle: bool = False) -> Any:
    """The whole value; whatever is malformed is a DamagedError."""
    try:
        return Decoder(tensor, allow_pickle).decode(node)
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        struct.error,
    ) as error:
        if isinstance(error, Error):
            raise
        raise DamagedError(f"the tree of the checkpoint holds a malformed value: {error}") from error
