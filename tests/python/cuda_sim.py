"""A trainer on the simulated CUDA driver: device memory, streams, and arrays that speak DLPack and nothing else.

The simulator is one per process, as a driver is. ``Sim`` owns what it hands out, and ``close()`` checks that nobody
left anything behind on the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

LIBRARY = os.environ.get("SLACKWATER_SIM_CUDA", "")

_D2H = 0
_STALL_OFF, _STALL_ON = 0, 1
_CAPTURE_GLOBAL = 0
_NON_BLOCKING = 1

# dtype: its code in DLPack, bytes of one element
DTYPES = {
    "bool": (6, 1),
    "uint8": (1, 1),
    "int64": (0, 8),
    "float16": (2, 2),
    "float32": (2, 4),
    "bfloat16": (4, 2),
    "float8_e4m3fn": (10, 1),
    "float8_e5m2": (12, 1),
    "complex64": (5, 8),
    "float128": (2, 16),
}


class _Config(ctypes.Structure):
    _fields_ = (
        *(
            (name, c_uint64)
            for name in (
                "memory_bytes",
                "d2h_bytes_per_s",
                "h2d_bytes_per_s",
                "d2d_bytes_per_s",
                "pageable_bytes_per_s",
                "copy_latency_ns",
            )
        ),
        ("numa_node", c_int32),
        ("copy_priorities", c_int32),
        ("queue_limit", c_uint64),
        ("host_latency_ns", c_uint64),
    )


class _EngineStats(ctypes.Structure):
    _fields_ = tuple((name, c_uint64) for name in ("busy_ns", "bytes", "begun", "copies"))


class Sim:
    """The simulated driver, with one primary context of the trainer for each device, that of device 0 current."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self._lost: set[int] = set()
        self._contexts: list[int] = []
        self._streams: list[tuple[int, int]] = []
        self._blocks: list[tuple[int, int]] = []
        self.call("cuInit", 0)
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        for device in range(count.value):
            context = c_void_p()
            self.call("cuDevicePrimaryCtxRetain", byref(context), device)
            assert context.value is not None
            self._contexts.append(context.value)
        self._use(0)

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        assert code == 0, f"{function}() answered {code}"

    def _use(self, device: int) -> None:
        self.call("cuCtxSetCurrent", c_void_p(self._contexts[device]))

    def queue(self, function: str, stream: int, *arguments: Any) -> None:
        """Call it for a stream, with the context of that stream's device."""
        self._use(next((device for device, handle in self._streams if handle == stream), 0))
        self.call(function, c_void_p(stream), *arguments)
        self._use(0)

    # The trainer's things

    def stream(self, device: int = 0) -> int:
        """A new stream that does not wait for the default one."""
        handle = c_void_p()
        self._use(device)
        self.call("cuStreamCreateWithPriority", byref(handle), _NON_BLOCKING, 0)
        self._use(0)
        assert handle.value is not None
        self._streams.append((device, handle.value))
        return handle.value

    def allocate(self, size_bytes: int, device: int = 0) -> int:
        address = c_uint64()
        self._use(device)
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size_bytes))
        self._use(0)
        self._blocks.append((device, address.value))
        return address.value

    def read(self, address: int, size_bytes: int) -> bytes:
        data = ctypes.create_string_buffer(size_bytes)
        self.call("swsim_read", data, c_uint64(address), c_size_t(size_bytes))
        return data.raw

    def write(self, address: int, data: bytes) -> None:
        self.call("swsim_write", c_uint64(address), c_char_p(data), c_size_t(len(data)))

    def unmap(self, address: int) -> None:
        """As an allocator with a sleep mode: the address stays reserved, the memory goes. Waits for nothing."""
        self.call("swsim_unmap", c_uint64(address))

    def map(self, address: int) -> None:
        """Gives the address other memory, which holds zeros."""
        self.call("swsim_map", c_uint64(address))

    def synchronize(self, stream: int) -> None:
        self.queue("cuStreamSynchronize", stream)

    @contextlib.contextmanager
    def capture(self, stream: int) -> Iterator[None]:
        """Record a graph. A capture that somebody else's call made invalid fails at its end."""
        self.call("cuStreamBeginCapture_v2", c_void_p(stream), _CAPTURE_GLOBAL)
        graph = c_void_p()
        try:
            yield
        finally:
            self.call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        self.call("cuGraphDestroy", graph)

    # The machine

    def set_d2h_speed(self, bytes_per_s: int, device: int = 0) -> None:
        config = _Config()
        self.call("swsim_get_config", device, byref(config))
        config.d2h_bytes_per_s = bytes_per_s
        self.call("swsim_set_config", device, byref(config))

    @contextlib.contextmanager
    def copies_stalled(self, device: int = 0) -> Iterator[None]:
        """Copies are queued, and none of them advances."""
        self.call("swsim_stall_copies", device, _STALL_ON)
        try:
            yield
        finally:
            self.call("swsim_stall_copies", device, _STALL_OFF)

    def begun(self, device: int = 0) -> int:
        """Copies to the host that have begun so far."""
        stats = _EngineStats()
        self.call("swsim_engine", device, _D2H, byref(stats))
        return int(stats.begun)

    def wait_begun(self, copies: int, device: int = 0) -> None:
        """Wait until this many copies to the host have begun."""
        self.call("swsim_wait_begun", device, _D2H, c_uint64(copies))

    def lose_device(self, device: int = 0) -> None:
        self.call("swsim_lose_device", device)
        self._lost.add(device)

    def calls(self, symbol: str) -> int:
        self._library.swsim_calls.restype = c_uint64
        return int(self._library.swsim_calls(symbol.encode()))

    def close(self) -> None:
        """Give everything back, and the driver's state before cuInit. Fails if anything of the engine is alive."""
        for device, handle in self._streams:
            if device not in self._lost:
                self._use(device)
                self.call("cuStreamDestroy_v2", c_void_p(handle))
        for device, address in self._blocks:
            if device not in self._lost:
                self._use(device)
                self.call("cuMemFree_v2", c_uint64(address))
        self.call("cuCtxSetCurrent", None)
        for device in range(len(self._contexts)):
            self.call("cuDevicePrimaryCtxRelease_v2", device)
        gc.collect()  # engines that a test has dropped
        self._library.swsim_reset.restype = c_uint64
        left = self._library.swsim_reset()
        assert left == 0, f"{left} contexts, streams, events or allocations were left on the simulated devices"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", c_void_p), ("deleter", _DELETER))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", _DELETER),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    )


_lent: dict[int, tuple[Any, Any]] = {}  # what is out, by its address: (managed tensor, array)


@_DELETER
def _give_back(address: int) -> None:
    del _lent[address]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (c_void_p, c_char_p, c_void_p)


class DeviceArray:
    """An array in simulated device memory, random at first. A view of another one, with ``base``."""

    def __init__(
        self,
        sim: Sim,
        shape: tuple[int, ...] = (),
        dtype: str = "float32",
        *,
        strides: tuple[int, ...] | None = None,
        base: DeviceArray | None = None,
        device: int = 0,
        read_only: bool = False,
    ) -> None:
        self._sim = sim
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.device = device
        self.read_only = read_only
        self._extent = 0
        if 0 not in shape:
            reach = sum((size - 1) * stride for size, stride in zip(shape, self._steps(), strict=True))
            self._extent = (reach + 1) * self._item_bytes
        if base is not None:
            self.address = base.address
        else:
            self.address = sim.allocate(self._extent, device) if self._extent else 0
            self.write(np.random.bytes(self._extent))
        self.exported_for: Any = "nobody"  # the stream asked for

    @property
    def _item_bytes(self) -> int:
        return DTYPES[self.dtype][1]

    def _steps(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    # What it holds

    def raw(self) -> bytes:
        """Everything from its first byte to its last, gaps included."""
        return self._sim.read(self.address, self._extent) if self._extent else b""

    def values(self) -> bytes:
        """Its elements, packed."""
        raw, item = self.raw(), self._item_bytes
        if not raw:
            return b""
        steps = (*(step * item for step in self._steps()), 1)
        return np.ndarray((*self.shape, item), np.uint8, raw, 0, steps).tobytes()

    def write(self, raw: bytes) -> None:
        """Past all streams."""
        if raw:
            self._sim.write(self.address, raw)

    def update(self, stream: int, seconds: float = 0.0) -> None:
        """Queue a kernel that adds 1 to every 32-bit word."""
        self._sim.queue(
            "swsim_launch_add_u32",
            stream,
            c_uint64(self.address),
            c_size_t(self._extent // 4),
            1,
            c_uint64(int(seconds * 1e9)),
        )

    def updated(self) -> bytes:
        """What ``raw()`` will be after one update more."""
        return (np.frombuffer(self.raw(), np.uint32) + 1).tobytes()

    # What others see of it

    @property
    def lent(self) -> int:
        """How often it is out through DLPack."""
        return sum(array is self for _, array in _lent.values())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None) -> Any:
        self.exported_for = stream
        versioned = max_version is not None and max_version[0] >= 1
        if self.read_only and not versioned:
            raise BufferError("a read-only array needs version 1 of DLPack")
        managed = _ManagedVersioned() if versioned else _Managed()
        tensor = managed.tensor
        code, item_bytes = DTYPES[self.dtype]
        tensor.data = self.address or None
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.ndim = len(self.shape)
        tensor.code, tensor.bits, tensor.lanes = code, 8 * item_bytes, 1
        tensor.shape = (c_int64 * len(self.shape))(*self.shape)
        if self.strides is not None:
            tensor.strides = (c_int64 * len(self.shape))(*self.strides)
        if versioned:
            managed.major, managed.flags = 1, int(self.read_only)
        address = ctypes.addressof(managed)
        managed.deleter = _give_back
        _lent[address] = managed, self
        return _new_capsule(address, b"dltensor_versioned" if versioned else b"dltensor", None)


class OldDeviceArray(DeviceArray):
    """Of a library that knows only the first version of DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


class TorchCuda:
    """The few calls of torch.cuda that Slackwater makes, where torch works with CUDA."""

    def __init__(self, streams: dict[int, int]) -> None:
        self.streams = streams  # the current one of each device
        self.asked = 0

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self.streams)

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_device(self) -> int:
        return min(self.streams)

    def current_stream(self, device: int) -> Any:
        self.asked += 1
        return TorchStream(device, self.streams[device])


class TorchGraph:
    """torch.cuda.CUDAGraph: what is queued during its capture runs at each replay, on the stream it was made for."""

    sim: Sim
    stream: int

    def __init__(self) -> None:
        self.recorded: list[Any] = []
        self.replays = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.sim.call("cuStreamBeginCapture_v2", c_void_p(self.stream), _CAPTURE_GLOBAL)

    def capture_end(self) -> None:
        graph = c_void_p()
        self.sim.call("cuStreamEndCapture", c_void_p(self.stream), byref(graph))
        self.sim.call("cuGraphDestroy", graph)

    def replay(self) -> None:
        self.replays += 1
        for array in self.recorded:
            array.update(self.stream)


class TorchStream:
    """What of a torch.cuda.Stream is looked at."""

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

    def __init__(self, device: int, handle: int) -> None:
        self.device = self.Device(device)
        self.cuda_stream = handle
