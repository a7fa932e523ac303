"""Tensors that the engine cannot write directly, such as those of another dtype. They go through a temporary copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..integrations import arrays, torch_adapter
from ..reader import Reader

_COPY_BYTES = 64 << 20  # in temporary copies at the same time; a larger tensor is read alone


def read_copies(path: str, step: int, copies: list[tuple[str, Any]], progress: Callable[[], None]) -> None:
    """Fills targets that cannot be written directly (another dtype), a few at a time.

    ``progress`` is called after each batch, because other ranks wait for this one and must not take it for dead.
    """
    if not copies:
        return
    with Reader(path, step) as reader:
        batch: dict[str, Any] = {}
        targets: list[tuple[str, Any]] = []
        pending = 0
        for name, target in copies:
            size = reader.info(name).size_bytes
            if batch and pending + size > _COPY_BYTES:
                _copy_batch(reader, batch, targets)
                progress()
                pending = 0
            batch.setdefault(name, reader._empty(name, arrays.is_array(target)))
            targets.append((name, target))
            pending += size
        _copy_batch(reader, batch, targets)
        progress()


def _copy_batch(reader: Reader, batch: dict[str, Any], targets: list[tuple[str, Any]]) -> None:
    reader._read(batch)
    torch = torch_adapter()
    for name, target in targets:
        if arrays.is_array(target):
            arrays.copy_into(target, batch[name])
        else:
            torch.copy_into(target, batch[name])
    batch.clear()
    targets.clear()
