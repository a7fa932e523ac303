"""What a checkpoint of DCP holds besides the bytes of its tensors: plain values, and DCP's own ``Metadata``.

Plain values are typed JSON (``state/codec.py``), so that loading them runs no code from the file. The coordinator
writes two things into the file of rank 0: the tree, which every Slackwater tool reads, and a hidden tensor with what
only DCP wants to know.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ...errors import DamagedError, UnsupportedError
from ...state import codec, decoder
from ...state.codec import Node
from .. import torch_state

FORMAT = 1
TENSOR = "__slackwater_dcp__"  # hidden by its first letters


# Plain values


@dataclass
class Value:
    """One value of a state dict, as text. ``kind``: "plain", "BytesIO", or "opaque", bytes of a user's own planner."""

    kind: str
    text: str
    tensors: list[str] = field(default_factory=list)  # names of tensors inside it


class _ValueEncoder(codec.Encoder):
    """Values may hold tensors and arrays in places that DCP does not look at, such as a tuple. They become tensors of
    the checkpoint."""

    def __init__(self, allow_pickle: bool) -> None:
        super().__init__(allow_pickle)
        self.tensors: dict[str, torch.Tensor] = {}

    def other(self, value: Any, name: str) -> Node:
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
            # Copied: the caller may change what it keeps in a tuple at any time.
            self.tensors[name] = value.detach().clone()
            return {"$t": name}
        array = _as_tensor(value)
        if array is not None:
            self.tensors[name] = array
            return {"$a": name}
        return super().other(value, name)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) or _is_array(value)


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _as_tensor(value: Any) -> torch.Tensor | None:
    if not _is_array(value):
        return None
    try:
        return torch.from_numpy(value.copy())
    except TypeError:  # texts, objects
        return None


def encode_value(value: Any, name: str, allow_pickle: bool) -> tuple[Value, dict[str, torch.Tensor]]:
    """The text of a value, and the tensors that it holds."""
    kind = "plain"
    if type(value) is io.BytesIO:
        kind, value = "BytesIO", value.getvalue()
    encoder = _ValueEncoder(allow_pickle)
    try:
        node = encoder.encode(value, name)
    except UnsupportedError as error:
        if allow_pickle:
            raise
        raise UnsupportedError(str(error).replace("Checkpointer(...,", "SlackwaterWriter(...,")) from None
    return Value(kind, codec._to_json(node), list(encoder.tensors)), encoder.tensors


def opaque_value(data: bytes) -> Value:
    return Value("opaque", codec._to_json(codec.Encoder().encode(data, "")))


# Writing


def make_tree(metadata: Metadata, values: dict[str, Value]) -> bytes:
    """The state as a tree: nested as the state dict was if the planner says how, else by name."""
    leaves: dict[str, Node] = {}
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            leaves[name] = {"$t": name} if _is_complete(stored) else None
        elif name in values:
            leaves[name] = json.loads(values[name].text)
    nested = _nest(leaves, metadata.planner_data)
    return codec.dump_tree(leaves if nested is None else nested)


def _is_complete(stored: TensorStorageMetadata) -> bool:
    return sum(torch.Size(chunk.sizes).numel() for chunk in stored.chunks) == stored.size.numel()


def _nest(leaves: dict[str, Node], paths: Any) -> Node | None:
    """None: the planner does not say how, or in a way that is no tree."""
    if not isinstance(paths, dict) or not all(name in paths for name in leaves):
        return None
    root: dict[Any, Any] = {}
    for name, leaf in leaves.items():
        path = paths[name]
        if not isinstance(path, tuple) or not path:
            return None
        here = root
        for key in path[:-1]:
            here = here.setdefault(key, {})
            if not isinstance(here, dict):
                return None
        if path[-1] in here:
            return None
        here[path[-1]] = _Leaf(leaf)
    return _to_node(root)


class _Leaf:
    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


def _to_node(branch: Any) -> Node:
    if isinstance(branch, _Leaf):
        return branch.node
    keys = list(branch)
    if keys and all(type(key) is int for key in keys):  # a list; places that nobody saved are empty
        return [_to_node(branch[index]) if index in branch else None for index in range(max(keys) + 1)]
    items = [(str(key), _to_node(below)) for key, below in branch.items()]
    if any(key.startswith("$") for key, _ in items):
        return {"$": "dict", "v": [[codec.encode_key(key), node] for key, node in items]}
    return dict(items)


def dump_metadata(metadata: Metadata, values: dict[str, Value], allow_pickle: bool) -> bytes:
    items: dict[str, Any] = {}
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            items[name] = {
                "dtype": torch_state.dtype_name(stored.properties.dtype, name),
                "size": list(stored.size),
                "requires_grad": stored.properties.requires_grad,
                "pin_memory": stored.properties.pin_memory,
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in stored.chunks],
            }
        elif name in values:
            value = values[name]
            items[name] = {"kind": value.kind, "value": value.text, "tensors": value.tensors}
        else:
            raise UnsupportedError(f"no rank has written '{name}', which the plan of this checkpoint names")
    planner_data = codec.Encoder(allow_pickle).encode(metadata.planner_data, "planner_data")
    return json.dumps({"format": FORMAT, "items": items, "planner_data": planner_data}).encode()


# Reading


@dataclass
class DcpValues:
    metadata: Metadata
    values: dict[str, Value]


def load_metadata(text: bytes, path: str, allow_pickle: bool) -> DcpValues:
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise UnsupportedError(f"'{path}' has DCP metadata of format {raw['format']}; use a newer Slackwater")
        described: dict[str, Any] = {}
        values: dict[str, Value] = {}
        for name, item in raw["items"].items():
            if "kind" in item:
                described[name] = BytesStorageMetadata()
                values[name] = Value(item["kind"], item["value"], item["tensors"])
            else:
                described[name] = _tensor_metadata(item)
        planner_data = decode_node(raw["planner_data"], {}, allow_pickle)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UnsupportedError):
            raise
        raise DamagedError(
            f"the DCP metadata of '{path}' is not what Slackwater writes: {error!r}", path=path
        ) from error
    return DcpValues(Metadata(described, planner_data, storage_data={}, storage_meta=StorageMeta()), values)


def _tensor_metadata(item: dict[str, Any]) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(
            dtype=torch_state._known_dtype(item["dtype"]),
            requires_grad=bool(item["requires_grad"]),
            pin_memory=bool(item["pin_memory"]),
        ),
        torch.Size(item["size"]),
        [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in item["chunks"]],
    )


def decode_node(node: Node, tensors: dict[str, torch.Tensor], allow_pickle: bool) -> Any:
    def tensor(name: str, is_array: bool) -> Any:
        found = tensors[name]
        return found.numpy() if is_array else found

    return decoder.decode(node, tensor, allow_pickle)


def decode_value(value: Value, tensors: dict[str, torch.Tensor], allow_pickle: bool) -> Any:
    decoded = decode_node(json.loads(value.text), tensors, allow_pickle)
    return io.BytesIO(decoded) if value.kind == "BytesIO" else decoded
