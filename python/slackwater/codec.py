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

from . import names
from .errors import DamagedError, Error, UnsupportedError, UsageError

Node = Any  # what json.loads gives
FORMAT = 1

_EXACT_INT = 1 << 53  # beyond it, JSON readers of other languages lose digits
_ATOMS = frozenset({type(None), bool, int, float, str})
_FACTORIES: dict[str, Any] = {
    "None": None,
    "list": list,
    "dict": dict,
    "set": set,
    "int": int,
    "float": float,
    "str": str,
    "tuple": tuple,
}
_PATHS = {
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


def _float_value(text: str) -> float:
    if text.startswith("nan:"):
        return struct.unpack(">d", bytes.fromhex(text[4:]))[0]
    return float.fromhex(text)


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
        if isinstance(value, pathlib.PurePath) and type(value).__name__ in _PATHS:
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
            if name_of is None:
                name_of = names.namer(mapping, name, self.holds_more_than_tensors, key_text)
            result.append((key, self.encode(value, name_of(key))))
        self._open.discard(id(mapping))
        return result

    def sequence(self, values: Any, name: str) -> list[Node]:
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
        return [[_encode_key(key, name), node] for key, node in items]

    def _enter(self, container: Any, name: str) -> None:
        if id(container) in self._open:
            raise UsageError(f"'{name}' contains itself; a state must be a tree")
        self._open.add(id(container))

    def _pickle(self, value: Any, name: str) -> Node:
        try:
            data = pickle.dumps(value)
        except Exception as error:
            raise UsageError(f"'{name}' is a {describe_type(value)}, which cannot be pickled: {error}") from error
        return {"$": "pickle", "class": describe_type(value), "v": _to_base64(data)}

    def _unknown(self, value: Any, name: str) -> NoReturn:
        hint = (
            "save dataclasses.asdict() of it"
            if hasattr(type(value), "__dataclass_fields__")
            else "give it state_dict() and load_state_dict()"
        )
        raise UnsupportedError(
            f"'{name}' is a {describe_type(value)}, which has no exact plain form; {hint}, "
            "or allow pickles with Checkpointer(..., allow_pickle=True) if you trust every reader's source"
        )


@functools.lru_cache(maxsize=10_000)
def _fits_object(key: Any) -> bool:
    if type(key) is not str or key.startswith("$"):
        return False
    return key.isascii() or isinstance(_atom(key), str)


def _encode_key(key: Any, name: str) -> Node:
    return _atom(key) if type(key) in _ATOMS else Encoder().encode(key, f"{name} (a key)")


def key_text(key: Any) -> str:
    """A key as exact text, for names."""
    return json.dumps(_encode_key(key, "state"), ensure_ascii=False, separators=(",", ":"))


def _class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _tagged(tag: str, text: Callable[[Any], Node]) -> Callable[[Encoder, Any, str], Node]:
    return lambda encoder, value, name: {"$": tag, "v": text(value)}


def _encode_set(tag: str) -> Callable[[Encoder, Any, str], Node]:
    def encode(encoder: Encoder, value: Any, name: str) -> Node:
        nodes = [_encode_key(item, name) for item in value]
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
    for factory_name, factory in _FACTORIES.items():
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
    return node["$"] if first == "$" else first


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
    module, _, qualified = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
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
    return collections.namedtuple(node["class"].rpartition(":")[2].rpartition(".")[2], fields)._make(values)


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
    dtype = np.dtype(text)
    if dtype.hasobject:
        raise DamagedError(f"the checkpoint names the NumPy dtype {text}, which Slackwater never writes")
    return dtype


def _decode_torch_name(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return f"torch.{node['v']}"
    found = getattr(torch, node["v"], None)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise UnsupportedError(f"the checkpoint names torch.{node['v']}, which this PyTorch does not have")
    return found


def _decode_torch_size(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    return tuple(node["v"]) if torch is None else torch.Size(node["v"])


def _decode_torch_device(decoder: Decoder, node: Node) -> Any:
    torch = sys.modules.get("torch")
    return node["v"] if torch is None else torch.device(node["v"])


def _decode_default_dict(decoder: Decoder, node: Node) -> Any:
    if node["factory"] not in _FACTORIES:
        raise UnsupportedError(
            f"the checkpoint holds a defaultdict of '{node['factory']}', which this version does not know"
        )
    return collections.defaultdict(_FACTORIES[node["factory"]], decoder.pairs(node))


def _decode_path(decoder: Decoder, node: Node) -> Any:
    text = decoder.decode(node["v"])
    kind = _PATHS.get(node["class"], pathlib.PurePosixPath)
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


def dump_tree(node: Node) -> bytes:
    text = json.dumps(
        {"slackwater_tree": FORMAT, "state": node}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    return text.encode()


def load_tree(text: str) -> Node:
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
    return state


def decode(node: Node, tensor: Callable[[str, bool], Any], allow_pickle: bool = False) -> Any:
    """The whole value; whatever is malformed is a DamagedError."""
    try:
        return Decoder(tensor, allow_pickle).decode(node)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, Error):
            raise
        raise DamagedError(f"the tree of the checkpoint holds a malformed value: {error}") from error
