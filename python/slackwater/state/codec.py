"""Plain values as typed JSON, exactly: what is decoded is equal to, and of the same type as, what was encoded.

JSON's own types stand for themselves (null, true, 1, 1.5, "text", [..], {..}); everything else is ``{"$": tag, ...}``.
Tensors are ``{"$t": name}`` (torch) and ``{"$a": name}`` (arrays); their bytes lie in the file under that name.
Decoding never runs code from the file: classes of enums and named tuples are looked up among modules already imported,
and pickles need ``allow_pickle=True``.
"""

from __future__ import annotations

import argparse
import base64
import collections
import datetime
import decimal
import enum
import fractions
import functools
import json
import math
import pathlib
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import UnsupportedError, UsageError
from . import names

Node = Any  # what json.loads gives
FORMAT = 1

_EXACT_INT = 1 << 53  # beyond it, JSON readers of other languages lose digits
_ATOMS = frozenset({type(None), bool, int, float, str})
FACTORIES: dict[str, Any] = {
    "None": None,
    "list": list,
    "dict": dict,
    "set": set,
    "int": int,
    "float": float,
    "str": str,
    "tuple": tuple,
}
PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _atom(value: Any) -> Node:
    kind = type(value)
    if kind is str:
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            return {"$": "str", "v": _to_base64(value.encode("utf-8", "surrogatepass"))}
    if kind is int:
        return value if -_EXACT_INT <= value <= _EXACT_INT else {"$": "int", "v": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "v": _float_text(value)}
    return value


def _float_text(value: float) -> str:
    """Exact for every bit pattern, the payload of a NaN included."""
    if math.isfinite(value):
        return value.hex()
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "nan:" + struct.pack(">d", value).hex()


def describe_type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_named_tuple(value: Any) -> bool:
    fields = getattr(type(value), "_fields", None)
    return (
        isinstance(value, tuple)
        and isinstance(fields, tuple)
        and len(fields) == len(value)
        and all(type(f) is str for f in fields)
    )


class Encoder:
    """One use: ``encode(value, name)`` for the root. Subclasses take tensors and objects in ``other()``."""

    __slots__ = ("_allow_pickle", "_open")

    def __init__(self, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._open: set[int] = set()  # containers being encoded, to notice cycles

    def encode(self, value: Any, name: str) -> Node:
        kind = type(value)
        if kind in _ATOMS:
            return _atom(value)
        encoder = _ENCODERS.get(kind)
        if encoder is not None:
            return encoder(self, value, name)
        return self.other(value, name)

    def other(self, value: Any, name: str) -> Node:
        """Whatever is no built-in plain type."""
        for encode in (_encode_numpy, _encode_torch):
            node = encode(value, name)
            if node is not None:
                return node
        if isinstance(value, enum.Enum) and type(value).__members__.get(value.name) is value:
            return {"$": "enum", "class": _class_path(type(value)), "name": value.name}
        if isinstance(value, pathlib.PurePath) and type(value).__name__ in PATHS:
            return {"$": "path", "class": type(value).__name__, "v": _atom(str(value))}
        if _is_named_tuple(value):
            fields = list(type(value)._fields)
            return {
                "$": "namedtuple",
                "class": _class_path(type(value)),
                "fields": fields,
                "v": self.sequence(value, name),
            }
        if self._allow_pickle:
            return self._pickle(value, name)
        self._unknown(value, name)

    def holds_more_than_tensors(self, value: Any) -> bool:
        """Whether tensors may stand below ``value``, not as ``value`` itself."""
        kind = type(value)
        if kind in _ATOMS:
            return False
        if isinstance(value, dict):
            return any(self.is_tensor(v) or self.holds_more_than_tensors(v) for v in value.values())
        if isinstance(value, (list, tuple, collections.deque)):
            return any(self.is_tensor(v) or self.holds_more_than_tensors(v) for v in value)
        return hasattr(value, "state_dict") and not self.is_tensor(value)

    def is_tensor(self, value: Any) -> bool:
        return False

    # Containers

    def items(self, mapping: Any, name: str) -> list[tuple[Any, Node]]:
        self._enter(mapping, name)
        name_of = None
        result = []
        for key, value in mapping.items():
            if type(value) in _ATOMS:
                result.append((key, _atom(value)))
                continue
            if name and names.stands_for_itself(key):
                result.append((key, self.encode(value, f"{name}.{key}")))
                continue
            if name_of is None:
                name_of = names.namer(mapping, name, self.holds_more_than_tensors, key_text)
            result.append((key, self.encode(value, name_of(key))))
        self._open.discard(id(mapping))
        return result

    def sequence(self, values: Any, name: str) -> list[Node]:
        if set(map(type, values)) == {int} and min(values) >= -_EXACT_INT and max(values) <= _EXACT_INT:
            return list(values)  # numbers of parameters: long, and in every optimizer
        self._enter(values, name)
        result = [
            _atom(value) if type(value) in _ATOMS else self.encode(value, names.join(name, str(index)))
            for index, value in enumerate(values)
        ]
        self._open.discard(id(values))
        return result

    def mapping(self, mapping: Any, name: str) -> Node:
        """A dict: a JSON object where its keys allow it, pairs where not."""
        items = self.items(mapping, name)
        if all(_fits_object(key) for key, _ in items):
            return dict(items)
        return {"$": "dict", "v": self.pairs(items, name)}

    def pairs(self, items: list[tuple[Any, Node]], name: str) -> list[Node]:
        return [[encode_key(key, name), node] for key, node in items]

    def _enter(self, container: Any, name: str) -> None:
        if id(container) in self._open:
            raise UsageError(f"'{name}' contains itself; a state must be a tree")
        self._open.add(id(container))

    def _pickle(self, value: Any, name: str) -> Node:
        try:
            data = pickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"'{name}' is {names.an(describe_type(value))}, which cannot be pickled: {error}"
            ) from error
        return {"$": "pickle", "class": describe_type(value), "v": _to_base64(data)}

    def _unknown(self, value: Any, name: str) -> NoReturn:
        hint = (
            "save dataclasses.asdict() of it"
            if hasattr(type(value), "__dataclass_fields__")
            else "give it state_dict() and load_state_dict()"
        )
        raise UnsupportedError(
            f"'{name}' is {names.an(describe_type(value))}, which has no exact plain form; {hint}, "
            "or allow pickles with Checkpointer(..., allow_pickle=True) if you trust every reader's source"
        )


@functools.lru_cache(maxsize=10_000)
def _fits_object(key: Any) -> bool:
    if type(key) is not str or key.startswith("$"):
        return False
    return key.isascii() or isinstance(_atom(key), str)


def encode_key(key: Any, name: str = "state") -> Node:
    return _atom(key) if type(key) in _ATOMS else Encoder().encode(key, f"{name} (a key)")


def key_text(key: Any) -> str:
    """A key as exact text, for names."""
    return json.dumps(encode_key(key), ensure_ascii=False, separators=(",", ":"))


def _class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _tagged(tag: str, text: Callable[[Any], Node]) -> Callable[[Encoder, Any, str], Node]:
    return lambda encoder, value, name: {"$": tag, "v": text(value)}


def _encode_set(tag: str) -> Callable[[Encoder, Any, str], Node]:
    def encode(encoder: Encoder, value: Any, name: str) -> Node:
        nodes = [encode_key(item, name) for item in value]
        return {
            "$": tag,
            "v": sorted(nodes, key=lambda node: json.dumps(node)),
        }  # the same set always gives the same text

    return encode


def _encode_ordered(encoder: Encoder, value: Any, name: str) -> Node:
    return {"$": "OrderedDict", "v": encoder.pairs(encoder.items(value, name), name)}


def _encode_counter(encoder: Encoder, value: Any, name: str) -> Node:
    return {"$": "Counter", "v": encoder.pairs(encoder.items(value, name), name)}


def _encode_default_dict(encoder: Encoder, value: Any, name: str) -> Node:
    for factory_name, factory in FACTORIES.items():
        if value.default_factory is factory:
            return {"$": "defaultdict", "factory": factory_name, "v": encoder.pairs(encoder.items(value, name), name)}
    if encoder._allow_pickle:
        return encoder._pickle(value, name)
    raise UnsupportedError(f"'{name}' is a defaultdict whose factory is {value.default_factory!r}; save dict() of it")


def _encode_deque(encoder: Encoder, value: Any, name: str) -> Node:
    return {"$": "deque", "maxlen": value.maxlen, "v": encoder.sequence(value, name)}


def _encode_namespace(tag: str) -> Callable[[Encoder, Any, str], Node]:
    return lambda encoder, value, name: {"$": tag, "v": encoder.mapping(vars(value), name)}


def _encode_slice(encoder: Encoder, value: Any, name: str) -> Node:
    return {"$": "slice", "v": [encoder.encode(part, name) for part in (value.start, value.stop, value.step)]}


def _encode_datetime(encoder: Encoder, value: Any, name: str) -> Node:
    zone = value.tzinfo
    if zone is not None and type(zone) is not datetime.timezone:
        raise UnsupportedError(
            f"'{name}' has the time zone {zone!r}; save it in UTC: value.astimezone(datetime.timezone.utc)"
        )
    return {"$": type(value).__name__, "v": value.isoformat(), "fold": value.fold}


def _encode_numpy(value: Any, name: str) -> Node | None:
    np = sys.modules.get("numpy")
    if np is None:
        return None
    if isinstance(value, np.generic):
        dtype = value.dtype
        if dtype.hasobject or dtype.names or np.dtype(dtype.str) != dtype:
            raise UnsupportedError(
                f"'{name}' is a NumPy scalar of dtype {dtype}, which has no exact plain form; convert it first"
            )
        return {"$": "np", "dtype": dtype.str, "v": _to_base64(value.tobytes())}
    if isinstance(value, np.dtype):
        if value.hasobject or value.names or np.dtype(value.str) != value:
            raise UnsupportedError(
                f"'{name}' is the NumPy dtype {value}, which has no exact plain form; save str() of it"
            )
        return {"$": "np.dtype", "v": value.str}
    return None


def _encode_torch(value: Any, name: str) -> Node | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.Size):
        return {"$": "torch.Size", "v": list(value)}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"$": "torch", "v": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$": "torch.device", "v": str(value)}
    return None


_ENCODERS: dict[type, Callable[[Encoder, Any, str], Node]] = {
    list: lambda encoder, value, name: encoder.sequence(value, name),
    tuple: lambda encoder, value, name: {"$": "tuple", "v": encoder.sequence(value, name)},
    dict: lambda encoder, value, name: encoder.mapping(value, name),
    collections.OrderedDict: _encode_ordered,
    collections.Counter: _encode_counter,
    collections.defaultdict: _encode_default_dict,
    collections.deque: _encode_deque,
    set: _encode_set("set"),
    frozenset: _encode_set("frozenset"),
    argparse.Namespace: _encode_namespace("Namespace"),
    types.SimpleNamespace: _encode_namespace("SimpleNamespace"),
    bytes: _tagged("bytes", _to_base64),
    bytearray: _tagged("bytearray", _to_base64),
    complex: _tagged("complex", lambda value: [_float_text(value.real), _float_text(value.imag)]),
    range: _tagged("range", lambda value: [_atom(value.start), _atom(value.stop), _atom(value.step)]),
    slice: _encode_slice,
    type(Ellipsis): lambda encoder, value, name: {"$": "Ellipsis"},
    datetime.datetime: _encode_datetime,
    datetime.time: _encode_datetime,
    datetime.date: _tagged("date", lambda value: value.isoformat()),
    datetime.timedelta: _tagged("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: _tagged("Decimal", str),
    fractions.Fraction: _tagged("Fraction", lambda value: [_atom(value.numerator), _atom(value.denominator)]),
    uuid.UUID: _tagged("UUID", str),
}


class Rendered:
    """A node that is JSON text already. Nothing but ``dump_tree`` may meet it."""

    __slots__ = ("text",)

    def __init__(self, node: Node) -> None:
        self.text = _dump(node)


class Marked:
    """A node whose JSON text is wanted apart from that of the tree, too. Nothing but ``dump_tree`` may meet it."""

    __slots__ = ("name", "node", "text")

    def __init__(self, name: str, node: Node) -> None:
        self.name = name
        self.node = node
        self.text = ""  # once the tree was dumped


# Stands for a rendered node in the text that JSON's encoder makes. No other text can hold it: _atom() lets no lone
# surrogate pass.
_PLACEHOLDER = "\ud800"


def _to_json(node: Node, default: Callable[[Any], Any] | None = None) -> str:
    return json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=default).encode(node)


def _dump(node: Node) -> str:
    """JSON's own encoder makes the text in one go; what is rendered already is then put into it."""
    rendered: list[str] = []

    def note(value: Any) -> str:
        if type(value) is Marked:
            value.text = _dump(value.node)
        elif type(value) is not Rendered:
            raise TypeError(f"{type(value).__name__} is not a node")
        rendered.append(value.text)
        return _PLACEHOLDER

    text = _to_json(node, note)
    if not rendered:
        return text
    parts = text.split(f'"{_PLACEHOLDER}"')
    assert len(parts) == len(rendered) + 1, "a text of the tree is not valid Unicode"
    return parts[0] + "".join([one + part for one, part in zip(rendered, parts[1:], strict=True)])


def dump_tree(node: Node) -> bytes:
    return _dump({"slackwater_tree": FORMAT, "state": node}).encode()


def dump_tree_and_values(node: Node) -> tuple[bytes, dict[str, str]]:
    """The same, and the texts at its top, by their keys; none where the state is no JSON object of its own."""
    if type(node) is not dict or any(key.startswith("$") for key in node):
        return dump_tree(node), {}
    values = {key: _dump(value) for key, value in node.items()}
    members = ",".join([f"{_to_json(key)}:{text}" for key, text in values.items()])
    return f'{{"slackwater_tree":{FORMAT},"state":{{{members}}}}}'.encode(), values
