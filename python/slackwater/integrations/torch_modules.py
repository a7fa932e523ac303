"""Finds PyTorch modules whose state is their parameters and buffers and nothing else, and lists these tensors. Import
it only when torch is loaded already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

Tensor = torch.Tensor
Module = torch.nn.Module

# Their own loading code only fills in what checkpoints of PyTorch before 1.0 lack.
_HARMLESS_LOADERS = (_NormBase._load_from_state_dict, _InstanceNorm._load_from_state_dict, Module._load_from_state_dict)


def is_plain_module(module: Module) -> bool:
    """Whether state_dict() gives the parameters and persistent buffers and nothing else, and loading just sets them."""
    return all(map(_is_plain_layer, module.modules()))


_PLAIN_CLASSES: dict[type, bool] = {}


def _is_plain_layer(module: Module) -> bool:
    return _is_plain_class(type(module)) and not (
        module._state_dict_hooks
        or module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
        or getattr(module, "_state_dict_pre_hooks", None)
        or "state_dict" in module.__dict__
        or "load_state_dict" in module.__dict__
    )


def _is_plain_class(kind: type) -> bool:
    plain = _PLAIN_CLASSES.get(kind)
    if plain is None:
        plain = (
            kind._save_to_state_dict is Module._save_to_state_dict
            and kind._load_from_state_dict in _HARMLESS_LOADERS
            and kind.get_extra_state is Module.get_extra_state
            and kind.set_extra_state is Module.set_extra_state
            and _wraps_only(kind, "state_dict")
            and _wraps_only(kind, "load_state_dict")
        )
        if len(_PLAIN_CLASSES) < 10_000:
            _PLAIN_CLASSES[kind] = plain
    return plain


def run_hooks(layer: Module) -> bool:
    """For ``_core.module_tensors``: whether a layer's hooks were called here. No: state_dict() calls them."""
    return False


def _wraps_only(kind: type, method: str) -> bool:
    return getattr(kind, method) is getattr(Module, method)


def module_layers(module: Module) -> tuple[list[str], list[Tensor], list[bool], tuple[Any, ...]]:
    """Lists a plain module in the order of state_dict(): the keys, the tensors, and whether each is a buffer. The last
    item is what ``_core.module_tensors`` compares: for each layer, its class and the keys of its parameters, its
    persistent buffers and its children."""
    keys: list[str] = []
    tensors: list[Tensor] = []
    buffers: list[bool] = []
    shape: list[Any] = []
    layers = [("", module)]
    while layers:
        prefix, layer = layers.pop()
        transient = layer._non_persistent_buffers_set
        found = {key: parameter for key, parameter in layer._parameters.items() if parameter is not None}
        kept = {key: buffer for key, buffer in layer._buffers.items() if buffer is not None and key not in transient}
        children = {key: child for key, child in layer._modules.items() if child is not None}
        for own in (found, kept):
            keys += [prefix + key for key in own]
            tensors += own.values()
            buffers += [own is kept] * len(own)
        shape.append((type(layer), tuple(found), tuple(kept), tuple(children)))
        layers += [(f"{prefix}{key}.", child) for key, child in reversed(children.items())]
    return keys, tensors, buffers, tuple(shape)


def module_tensors(module: Module) -> tuple[list[str], list[Tensor], list[bool]]:
    """The keys, the tensors and the buffer flags of module_layers()."""
    return module_layers(module)[:3]


def module_parameters(module: Module) -> tuple[list[str], list[Tensor]]:
    """The parameters of any module. A tied parameter is listed under each of its names."""
    if isinstance(module, torch.jit.ScriptModule):
        found = list(module.named_parameters(remove_duplicate=False))
        return [key for key, _ in found], [parameter for _, parameter in found]
    keys: list[str] = []
    tensors: list[Tensor] = []
    layers = [("", module)]
    while layers:
        prefix, layer = layers.pop()
        for key, parameter in layer._parameters.items():
            if parameter is not None:
                keys.append(prefix + key)
                tensors.append(parameter)
        layers += [(f"{prefix}{key}.", child) for key, child in reversed(layer._modules.items()) if child is not None]
    return keys, tensors
