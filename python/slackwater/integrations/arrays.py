"""NumPy arrays, and other objects that expose host or CUDA memory through DLPack."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .. import _core
from ..errors import UnsupportedError
from ..state.memory import HOST, SIZES, Memory, unknown_dtype
from ..state.names import an

_HOST_DLPACK_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_CUDA_DLPACK_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged
_ROCM_DLPACK_DEVICE = 10  # kDLROCM
_LEGACY_DEFAULT_STREAM = 1  # DLPack's number for it
_DLPACK_VERSION = (1, 0)  # the first that says what is read-only


def is_array(value: Any) -> bool:
    np = sys.modules.get("numpy")
    return np is not None and isinstance(value, np.ndarray)


def is_dlpack(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__") and not isinstance(value, type)


def is_on_cuda(value: Any) -> bool:
    return int(value.__dlpack_device__()[0]) in _CUDA_DLPACK_DEVICES


def numpy_has(dtype: str) -> bool:
    return not dtype.startswith(("bfloat", "float8")) and dtype != "complex32"


def cuda_memory(value: Any, name: str) -> Memory:
    """The memory of an array on a CUDA device. Its exporter makes it ready for work on the device's default stream."""
    try:
        lent = _core.DlpackMemory(_export(value))
    except Exception as error:
        raise UnsupportedError(
            f"'{name}' is {an(type(value).__name__)} whose DLPack memory cannot be shared: {error}"
        ) from error
    if lent.dtype not in SIZES:
        raise unknown_dtype(lent.dtype, name)
    if any(stride < 0 for stride in lent.strides):
        raise UnsupportedError(f"'{name}' is a view with reversed strides; save a contiguous copy of it")
    return Memory(lent.dtype, tuple(lent.shape), tuple(lent.strides), lent.address, lent.device, lent)


def _export(value: Any) -> Any:
    try:
        return value.__dlpack__(stream=_LEGACY_DEFAULT_STREAM, max_version=_DLPACK_VERSION)
    except TypeError:  # an exporter older than the parameter
        return value.__dlpack__(stream=_LEGACY_DEFAULT_STREAM)


def to_array(value: Any, name: str) -> Any:
    """A NumPy array that shares memory with ``value``, or a torch tensor for dtypes that NumPy does not have."""
    if is_array(value):
        return value
    device = int(value.__dlpack_device__()[0])
    if device == _ROCM_DLPACK_DEVICE:
        raise UnsupportedError(
            f"'{name}' is {an(type(value).__name__)} on an AMD GPU, and AMD GPUs are not supported yet; "
            "copy it to the host first: states in host memory work"
        )
    if device not in _HOST_DLPACK_DEVICES:
        raise UnsupportedError(
            f"'{name}' is {an(type(value).__name__)} on DLPack device {device}; "
            "only memory of the host and of CUDA devices is supported, copy it there first"
        )
    errors = []
    for library in ("numpy", "torch"):
        if library == "torch" and sys.modules.get("torch") is None:
            continue
        try:
            return importlib.import_module(library).from_dlpack(value)
        except Exception as error:
            errors.append(f"{library}: {error}")
    raise UnsupportedError(
        f"'{name}' is {an(type(value).__name__)} whose DLPack memory cannot be shared ({'; '.join(errors)})"
    )


def memory_of(array: Any, name: str) -> Memory:
    """The memory of a NumPy array. If it cannot be read in place (reversed or unaligned strides), it is copied."""
    import numpy as np

    if type(array) not in (np.ndarray, np.memmap):
        raise UnsupportedError(
            f"'{name}' is a {type(array).__module__}.{type(array).__qualname__}; "
            "save numpy.asarray() of it, and what that drops apart"
        )
    dtype = dtype_name(array.dtype, name)
    held = array
    item = array.dtype.itemsize
    if any(stride < 0 or stride % item for stride in array.strides):
        held = np.ascontiguousarray(array).reshape(array.shape)
    strides = tuple(stride // item for stride in held.strides)
    return Memory(dtype, held.shape, strides, held.ctypes.data, HOST, held)


def dtype_name(dtype: Any, name: str) -> str:
    if not dtype.isnative:
        raise UnsupportedError(
            f"'{name}' has the foreign byte order of dtype {dtype.str}; "
            "convert it with .astype(dtype.newbyteorder('='))"
        )
    if dtype.name not in SIZES or SIZES[dtype.name] != dtype.itemsize:
        raise unknown_dtype(dtype, name)
    return str(dtype.name)


def empty(dtype: str, shape: tuple[int, ...], name: str) -> Any:
    """A new array. For dtypes that NumPy does not have, ml_dtypes is used."""
    try:
        import numpy as np
    except ImportError as error:
        raise UnsupportedError(f"reading '{name}' needs NumPy or PyTorch; install one of them") from error
    try:
        return np.empty(shape, np.dtype(dtype))
    except TypeError:
        pass
    try:
        return np.empty(shape, np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype)))
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"'{name}' has dtype {dtype}, which NumPy lacks; import torch (or install ml_dtypes) before reading it"
        ) from error


def copy_into(target: Any, source: Any) -> None:
    target[...] = source.astype(target.dtype, copy=False)
