"""Streams of CUDA devices, as the engine takes them: (device, handle).

torch is asked only where it already works with CUDA in this process: nothing here makes it begin to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UsageError
from ..state.names import an

Pair = tuple[int, int]

DEFAULT_STREAM = 0  # the legacy one, behind which arrays are lent through DLPack


def current_streams(devices: Sequence[int]) -> list[Pair]:
    """The stream torch queues work on, for each device; none where torch does not use CUDA."""
    torch = sys.modules.get("torch")
    if not devices or torch is None or not torch.cuda.is_initialized():
        return []
    return [(device, int(torch.cuda.current_stream(device).cuda_stream)) for device in devices]


def producers(devices: Sequence[int], lent: Sequence[int]) -> list[Pair]:
    """Behind these streams a state is complete: the current ones, and where arrays are lent the default one.

    Without a device: the current stream of the current one, which may be filling pinned host tensors.
    """
    if not devices and not lent:
        devices = _current_device()
    return list(dict.fromkeys([*current_streams(devices), *((device, DEFAULT_STREAM) for device in lent)]))


def _current_device() -> list[int]:
    torch = sys.modules.get("torch")
    return [int(torch.cuda.current_device())] if torch is not None and torch.cuda.is_initialized() else []


def all_producers() -> list[Pair]:
    """The same before it is known which devices are meant. None: the engine takes the default stream of each."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    devices = range(torch.cuda.device_count())
    return producers(devices, devices)


def stream_pairs(streams: Iterable[Any]) -> list[Pair]:
    """Of streams that somebody named."""
    if isinstance(streams, tuple) and len(streams) == 2 and all(type(part) is int for part in streams):
        raise UsageError(f"{streams} is one stream; give a list of them: [{streams}]")
    try:
        given = list(streams)
    except TypeError:
        raise UsageError(f"{an(type(streams).__name__)} is no list of streams; put it into one") from None
    return [_pair(stream) for stream in given]


def _pair(stream: Any) -> Pair:
    if isinstance(stream, tuple) and len(stream) == 2:
        device, handle = stream
    elif hasattr(stream, "cuda_stream"):  # torch.cuda.Stream
        device, handle = getattr(getattr(stream, "device", None), "index", None), stream.cuda_stream
    else:  # cupy.cuda.Stream
        device, handle = getattr(stream, "device_id", None), getattr(stream, "ptr", None)
    if type(device) is int and type(handle) is int and 0 <= device < 1 << 31 and 0 <= handle < 1 << 64:
        return device, handle
    raise UsageError(
        f"{stream!r} is no stream of a device; give torch.cuda.Stream objects, or tuples (device number, handle)"
    )
