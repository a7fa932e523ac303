"""Objects: DeepSpeed's state dicts hold a few Python objects of its own. Here they get a plain form, and come back.

Only the classes in the table below come back as objects, attribute by attribute. Nothing of theirs is called, so no
pickle is needed. Anything else that has no plain form is refused by name, unless pickles are allowed.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

from ...errors import DamagedError, UnsupportedError, UsageError
from .. import torch_adapter

# Module, class, and the attributes it may have (None: any, as a loss scaler's differ from release to release).
_CLASSES: dict[tuple[str, str], tuple[str, ...] | None] = {
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"): None,
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"): None,
    ("deepspeed.utils.tensor_fragment", "fragment_address"): ("numel", "start"),
    ("deepspeed.checkpoint.universal_checkpoint", "SubparamShape"): ("patterns", "shape", "partition_dim"),
}
_MARK = "__deepspeed_object__"
_MAX_DEPTH = 200


def to_plain(state: Any) -> Any:
    """The same tree, with DeepSpeed's objects as dicts. Tensors and plain values are the same objects."""
    return _to_plain(state, "", 0)


def _to_plain(value: Any, name: str, depth: int) -> Any:
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise UsageError(f"'{name}' is nested too deeply")
    if kind is dict or kind is OrderedDict:
        if _MARK in value:
            raise UsageError(f"'{name}' has the key '{_MARK}', which Slackwater uses itself")
        return kind((key, _to_plain(item, f"{name}.{key}", depth + 1)) for key, item in value.items())
    if kind is list or kind is tuple:
        return kind([_to_plain(item, f"{name}.{index}", depth + 1) for index, item in enumerate(value)])
    if (kind.__module__, kind.__qualname__) in _CLASSES:
        return {_MARK: [kind.__module__, kind.__qualname__], "state": _to_plain(vars(value), name, depth + 1)}
    return value


def from_plain(value: Any) -> Any:
    """The other way round, for what was read from a checkpoint. Dicts and lists are changed in place."""
    kind = type(value)
    if kind is dict and _MARK in value:
        return _to_object(value)
    if kind is dict or kind is OrderedDict:
        for key, item in value.items():
            value[key] = from_plain(item)
        return value
    if kind is list:
        value[:] = [from_plain(item) for item in value]
        return value
    if kind is tuple:
        return tuple([from_plain(item) for item in value])
    return value


def _to_object(node: dict[str, Any]) -> Any:
    path, attributes = node.get(_MARK), node.get("state")
    named = isinstance(path, list) and len(path) == 2 and all(isinstance(part, str) for part in path)
    if not named or not isinstance(attributes, dict) or set(node) != {_MARK, "state"}:
        raise DamagedError("the checkpoint describes an object of DeepSpeed in a form that is not known")
    key = (path[0], path[1])
    if key not in _CLASSES:
        raise UnsupportedError(
            f"the checkpoint holds an object of the class {'.'.join(path)}, which is not one of ours"
        )
    allowed = _CLASSES[key]
    if allowed is not None and set(attributes) != set(allowed):
        raise DamagedError(f"the checkpoint holds an object of the class {path[1]} with unknown attributes")
    try:
        kind = getattr(importlib.import_module(key[0]), key[1])
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"the checkpoint holds an object of the class {'.'.join(path)}, which this DeepSpeed does not have: {error}"
        ) from error
    made = object.__new__(kind)
    vars(made).update(from_plain(attributes))
    return made


def with_buffers_copied(state: Any) -> Any:
    """The buffers of the module, such as BatchNorm statistics, change in the next forward pass: before the fence.

    DeepSpeed says which entries of ``module`` are buffers. They are copied now. The given dicts are not changed.
    """
    if not isinstance(state, dict) or not isinstance(state.get("buffer_names"), (list, tuple)):
        return state
    module = state.get("module")
    torch = torch_adapter()
    if torch is None or not isinstance(module, dict):
        return state
    copies = {
        name: module[name].detach().clone()
        for name in state["buffer_names"]
        if isinstance(module.get(name), torch.Tensor)
    }
    if not copies:
        return state
    return {**state, "module": type(module)((key, copies.get(key, value)) for key, value in module.items())}
