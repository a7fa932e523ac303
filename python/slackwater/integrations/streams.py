"""Streams of CUDA devices in the form that the engine takes: (device, handle).

torch is asked only if it already uses CUDA in this process. Nothing here makes it initialise CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UsageError
from ..state.names import an

Pair = tuple[int, int]

DEFAULT_STREAM = 0  # the legacy default stream; arrays lent through DLPack are ready on it


def current_streams(devices: Sequence[int]) -> list[Pair]:
    """The current stream of torch on each device; none if torch does not use CUDA."""
    torch = sys.modules.get("torch")
    if not devices or torch is None or not torch.cuda.is_initialized():
        return []
    return [(device, int(torch.cuda.current_stream(device).cuda_stream)) for device in devices]


def producers(devices: Sequence[int], lent: Sequence[int], named: Sequence[Pair] | None = None) -> list[Pair]:
    """The streams that produce a state: those that the caller named, torch's current stream of each other device, and
    the default stream if arrays are lent. Whoever lends an array has it ready there, whatever the caller names.

    If nothing is given: the current stream of the current device, which may be filling pinned host tensors.
    """
    if named is None and not devices and not lent:
        devices = _current_device()
    known = {device for device, _ in named or ()}
    others = current_streams([device for device in devices if device not in known])
    return list(dict.fromkeys([*(named or ()), *others, *((device, DEFAULT_STREAM) for device in lent)]))


def _current_device() -> list[int]:
    torch = sys.modules.get("torch")
    return [int(torch.cuda.current_device())] if torch is not None and torch.cuda.is_initialized() else []


def all_producers() -> list[Pair]:
    """The same when the devices are not known yet. None: the engine takes the default stream of each."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    devices = range(torch.cuda.device_count())
    return producers(devices, devices)


def stream_pairs(streams: Iterable[Any]) -> list[Pair]:
    """The pairs for streams that the caller named."""
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
