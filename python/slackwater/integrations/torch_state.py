"""All that knows PyTorch: tensors, modules, optimizers. Import it only when torch is loaded already."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import UnsupportedError
from ..ranks.boxes import Box
from ..state.memory import SIZES, Memory, unknown_dtype
from ..state.names import an
from .torch_modules import (
    is_plain_module,
    module_layers,
    module_parameters,
    module_tensors,
    run_hooks,
)
from .torch_ranks import (
    any_ddp,
    ddp_buffers,
    ddp_parameters,
    dtensor_like,
    dtensor_type,
    is_distributed,
    is_dtensor,
    replicated_state,
)
from .torch_reading import (
    PLAIN_TYPES,
    address_of,
    addresses_now,
    identities,
    local_tensors_again,
    read_again,
    reads_the_same,
    still_holds,
    storage_sizes,
    version_bytes,
    versions,
)

Tensor = torch.Tensor
Module = torch.nn.Module
Optimizer = torch.optim.Optimizer

_HOST = {torch.device("cpu")}
_STRIDED = {torch.strided}
_PACKED_BYTES = 64 << 20
_LONG_ROW_BYTES = 512
_NAMES: dict[Any, str] = {getattr(torch, name): name for name in SIZES if hasattr(torch, name)}
_DTYPES: dict[str, Any] = {name: dtype for dtype, name in _NAMES.items()}


# Tensors


def is_wrapper(tensor: Tensor) -> bool:
    """Whether the bytes lie in other tensors: the local one of a DTensor, or those that ``inner_tensors`` gives."""
    return is_dtensor(tensor) or is_subclass(tensor)


def is_subclass(tensor: Tensor) -> bool:
    return type(tensor) not in PLAIN_TYPES and not is_dtensor(tensor) and is_traceable_wrapper_subclass(tensor)


def inner_tensors(tensor: Any) -> list[tuple[str, Tensor]]:
    """Of a wrapper subclass other than DTensor: [(attribute, tensor), ...]."""
    attributes, _ = tensor.__tensor_flatten__()
    return [(attribute, getattr(tensor, attribute)) for attribute in attributes]


def parts(local: Tensor, boxes: Sequence[Box], name: str) -> list[tuple[Box, Tensor]]:
    """Each box with the part of the local tensor that holds it."""
    if is_wrapper(local):
        raise UnsupportedError(
            f"'{name}' is a DTensor of {type(local).__qualname__}; save an ordinary tensor of each rank instead"
        )
    if len(boxes) == 1:
        return [(boxes[0], local)]
    local = local.detach()
    return [
        (box, local[tuple(slice(start, start + size) for start, size in zip(box.start, box.shape, strict=True))])
        for box in boxes
    ]


def capture(
    tensors: Sequence[Tensor], tensor_names: Sequence[str], compute: bool = True
) -> tuple[list[Tensor], list[Any], list[Any], list[Any], list[int], list[int]]:
    """What a save needs of many tensors, in few passes: held, dtypes, shapes, strides, devices, addresses.

    What is held is ``detach()``: the same bytes, even if the parameter is given others (``p.data = x``) meanwhile.
    ``compute``: the current stream of a device may be used to bring its tensors into a form that is copied quickly.
    """
    ordinary = (
        {t.device for t in tensors} <= _HOST
        and {t.layout for t in tensors} <= _STRIDED
        and not any([t.is_conj() or t.is_neg() for t in tensors])
    )
    if not ordinary:
        held = [_readable(t, name, compute) for t, name in zip(tensors, tensor_names, strict=True)]
        if compute:
            held = _pack_scattered(held)
    else:
        held = [t.detach() for t in tensors]
    dtypes = [t.dtype for t in held]
    shapes = [t.shape for t in held]
    strides = [t.stride() for t in held]
    addresses = [t.data_ptr() for t in held]
    if 0 in addresses:
        for t, source, name, address in zip(held, tensors, tensor_names, addresses, strict=True):
            if address == 0 and t.numel() > 0:
                raise UnsupportedError(
                    f"'{name}' is {an(type(source).__qualname__)}, which gives no address of its data; "
                    "save an ordinary tensor instead"
                )
    return held, dtypes, shapes, strides, [t.get_device() for t in held], addresses


def may_read_again(tensors: Sequence[Tensor]) -> bool:
    """Whether those that ``capture`` has taken need nothing but a look, as long as their structure stays as it is."""
    return not any(t.is_cuda and _is_scattered(t) for t in tensors)


def _readable(tensor: Tensor, name: str, compute: bool = True) -> Tensor:
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"'{name}' is a tensor of layout {tensor.layout}; "
            "only strided tensors can be saved: use .to_dense(), or save its parts"
        )
    if tensor.device.type == "meta":
        raise UnsupportedError(f"'{name}' is on the meta device and has no data; materialize it before saving")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"'{name}' is on {tensor.device}, which is not supported; copy it to the host first")
    if tensor.is_cuda and torch.version.hip is not None:
        raise UnsupportedError(
            f"'{name}' is on an AMD GPU (PyTorch for ROCm), and AMD GPUs are not supported yet; "
            "copy it to the host first: states in host memory work"
        )
    held = tensor.detach()
    if held.is_conj() or held.is_neg():
        if held.is_cuda and not compute:
            raise UnsupportedError(
                f"'{name}' is a conjugated or negated view, and neither save(after=...) nor prepare() works that out "
                "on the device; give them .resolve_conj().resolve_neg() of it"
            )
        held = held.resolve_conj().resolve_neg()
    return held


def _pack_scattered(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors on a device whose elements lie scattered are packed there, on the current stream, within a bound.

    The engine fetches rows, which is slow for very short ones, though right. So a full device fails no save.
    """
    room = _PACKED_BYTES
    packed: dict[tuple[Any, ...], Tensor] = {}  # tied tensors stay tied
    result = []
    for tensor in tensors:
        if not tensor.is_cuda or not _is_scattered(tensor):
            result.append(tensor)
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        size = tensor.numel() * tensor.itemsize
        if key not in packed and size <= room:
            room -= size
            try:
                packed[key] = tensor.contiguous()
            except torch.cuda.OutOfMemoryError:
                room = 0
        result.append(packed.get(key, tensor))
    return result


def _is_scattered(tensor: Tensor) -> bool:
    if tensor.is_contiguous() or tensor.numel() == 0:
        return False
    row = tensor.itemsize
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if size != 1 and stride * tensor.itemsize != row:
            break
        row *= size
    return row < _LONG_ROW_BYTES


def storages(tensors: Iterable[Tensor]) -> list[int]:
    """What tells apart the memory of each; 0 where there is none."""
    return [0 if is_wrapper(t) else t.untyped_storage().data_ptr() for t in tensors]


def addresses(tensors: Iterable[Tensor]) -> list[int]:
    """Of the bytes of each on this rank; 0 where there are none, or they cannot be told."""
    return [0 if memory is None else address_of(memory) for memory in map(_own_memory, tensors)]


def memory_key(tensor: Tensor) -> tuple[Any, ...] | None:
    """Equal for two tensors if they are the same memory, seen in the same way: a parameter, and detach() of it."""
    memory = _own_memory(tensor)
    if memory is None or memory.layout is not torch.strided:
        return None
    empty = memory.numel() == 0
    address = memory.untyped_storage()._cdata if empty else address_of(memory)
    if address == 0:
        return None
    return address, empty, memory.device, memory.dtype, tuple(memory.shape), memory.stride()


def _own_memory(tensor: Tensor) -> Tensor | None:
    if type(tensor) in PLAIN_TYPES:
        return tensor
    local = tensor._local_tensor if is_dtensor(tensor) else tensor
    return None if is_wrapper(local) else local


def dtype_name(dtype: Any, name: str) -> str:
    known = _NAMES.get(dtype)
    if known is None:
        raise unknown_dtype(dtype, name)
    return known


def memory_of(tensor: Tensor, name: str) -> Memory:
    """Where one tensor is to be restored."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        _readable(tensor, name)
    return Memory(
        dtype_name(tensor.dtype, name),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.data_ptr(),
        tensor.get_device(),
        tensor,
    )


def must_be_copied_into(tensor: Tensor) -> bool:
    """Whether writing bytes to its address would not give the values meant."""
    return tensor.is_conj() or tensor.is_neg()


def empty(dtype: str, shape: Sequence[int], like: Tensor | None = None, device: Any = None) -> Tensor:
    """A new tensor; ``like`` gives device and order of strides where the shape is the same."""
    kind = _known_dtype(dtype)
    if like is not None and tuple(like.shape) == tuple(shape) and not is_wrapper(like):
        return torch.empty_like(like, dtype=kind, device=device, requires_grad=False).detach()
    if device is None and like is not None:
        device = like.device
    return torch.empty(tuple(shape), dtype=kind, device=device)


def empty_dtensor(dtype: str, like: Tensor, device: Any = None) -> Tensor:
    """A new DTensor that lies on the ranks as ``like`` does."""
    return dtensor_like(like, _known_dtype(dtype), device)


def _known_dtype(dtype: str) -> Any:
    if dtype not in _DTYPES:
        raise UnsupportedError(f"this PyTorch ({torch.__version__}) has no dtype {dtype}")
    return _DTYPES[dtype]


def copy_into(target: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        target.detach().copy_(source)


def bump_versions(tensors: Sequence[Tensor]) -> None:
    """Tell autograd that bytes were written behind its back."""
    tracked = [t for t in tensors if not t.is_inference()]
    if tracked:
        torch.autograd.graph.increment_version(tracked)


# Optimizers


def is_plain_optimizer(optimizer: Optimizer) -> bool:
    """Whether state_dict() and load_state_dict() are torch's own, without hooks."""
    kind = type(optimizer)
    return (
        kind.state_dict is Optimizer.state_dict
        and kind.load_state_dict is Optimizer.load_state_dict
        and "state_dict" not in optimizer.__dict__
        and not (
            optimizer._optimizer_state_dict_pre_hooks
            or optimizer._optimizer_state_dict_post_hooks
            or optimizer._optimizer_load_state_dict_pre_hooks
            or optimizer._optimizer_load_state_dict_post_hooks
        )
    )


def is_zero_optimizer(value: Any) -> bool:
    """By name: its module imports torch.distributed."""
    kinds = type(value).__mro__ if isinstance(value, Optimizer) else ()
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in kinds)


def is_loader_without_state(value: Any) -> bool:
    return isinstance(value, torch.utils.data.DataLoader) and not hasattr(value, "state_dict")


_WRAPPERS: dict[type, str | None] = {}  # where an object of that class keeps the optimizer that it stands for
_INNER_NAMES = ("optimizer", "_optimizer")


def inner_optimizer(value: Any) -> Any:
    """The optimizer inside a wrapper that adds nothing to its state (AcceleratedOptimizer); else ``value``.

    A wrapper has the same groups and hands out the same state_dict(): one that keeps a loss scale there is none.
    """
    kind = type(value)
    if kind not in _WRAPPERS:
        found = None
        for name in _INNER_NAMES:
            inner = value.__dict__.get(name) if hasattr(value, "__dict__") else None
            if isinstance(inner, Optimizer) and inner is not value and _stands_for(value, inner):
                found = name
        if len(_WRAPPERS) < 10_000:
            _WRAPPERS[kind] = found
    name = _WRAPPERS.get(kind)
    inner = None if name is None else value.__dict__.get(name)
    return inner_optimizer(inner) if isinstance(inner, Optimizer) else value


def _stands_for(wrapper: Any, inner: Optimizer) -> bool:
    if getattr(wrapper, "param_groups", None) is not inner.param_groups or not hasattr(wrapper, "state_dict"):
        return False
    given = wrapper.state_dict()
    return isinstance(given, dict) and given.keys() == inner.state_dict().keys()


def parameter_numbers(optimizer: Optimizer) -> tuple[dict[int, int], list[list[int]]]:
    """id(parameter) -> number, and the numbers of each group: as Optimizer.state_dict() counts them."""
    numbers: dict[int, int] = {}
    groups = []
    start = 0
    for group in optimizer.param_groups:
        # One that stands twice in a group has its last number there; one of an earlier group keeps it.
        ids = list(map(id, group["params"]))
        numbers = {**dict(zip(ids, itertools.count(start))), **numbers}
        groups.append(list(map(numbers.__getitem__, ids)))
        start += len(ids)
    return numbers, groups


def optimizer_state(optimizer: Optimizer) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """What state_dict() would give, without copying anything: (state, param_groups)."""
    numbers, groups = parameter_numbers(optimizer)
    entries = optimizer.state
    try:
        state = dict(zip(map(numbers.__getitem__, map(id, entries)), entries.values(), strict=True))
    except KeyError:  # not all keys are parameters
        state = {numbers[id(key)] if isinstance(key, Tensor) else key: value for key, value in entries.items()}
    packed = []
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        entry = {key: value for key, value in group.items() if key != "params"}
        entry["params"] = parameters
        packed.append(entry)
    return state, packed


# Of torch.optim: state that has the shape of its parameter, whatever the options.
_SHAPED_LIKE_PARAMETERS = frozenset(
    {"acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer", "prev"}
    | {"square_avg", "sum"}
)


def has_shape_of_parameter(class_path: str, key: Any) -> bool:
    return class_path.startswith("torch.optim.") and key in _SHAPED_LIKE_PARAMETERS


def is_of_all_parameters(optimizer: Optimizer) -> bool:
    """Whether its state is that of all parameters together, in their order."""
    return isinstance(optimizer, torch.optim.LBFGS)


def is_kin(saved: str, kind: type) -> bool:
    """Whether the class of that path is loaded, and one of the two derives from the other: Adam and AdamW."""
    module, _, name = saved.rpartition(".")
    other = getattr(sys.modules.get(module), name, None)
    if not isinstance(other, type) or Optimizer in (other, kind):
        return False
    return issubclass(kind, other) or issubclass(other, kind) or {kind, other} == {torch.optim.Adam, torch.optim.AdamW}


def state_device(group: dict[str, Any], key: str, parameter: Tensor) -> Any:
    """Where torch would keep this state tensor: step counters stay on the host unless the step runs on the device."""
    if key == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device
