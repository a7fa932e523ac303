"""Loading: a file of a tag back into a state dict, with every byte verified."""

from __future__ import annotations

import os
from typing import Any

from ... import reader
from ...errors import DamagedError, NotFoundError, UnsupportedError, UsageError
from .. import torch_adapter
from .objects import from_plain
from .stub import parse_stub
from .tag_directory import TagDirectory


def load_file(path: str, map_location: Any = None, *, allow_pickle: bool = False) -> Any:
    """The state dict that was saved under ``path``. No pickle runs unless ``allow_pickle`` is True."""
    path = os.path.abspath(path)
    directory, file = TagDirectory(os.path.dirname(path)), os.path.basename(path)
    if directory.is_ours:
        return _read(directory, file, None, map_location, allow_pickle)
    if not os.path.exists(path):
        raise NotFoundError(f"there is no checkpoint file '{path}'", path=path)
    stub = parse_stub(path)
    if stub is not None:
        return load_stub(stub, map_location, allow_pickle=allow_pickle)
    return _load_torch_file(path, map_location, allow_pickle)


def load_stub(stub: dict[str, str], map_location: Any = None, *, allow_pickle: bool = False) -> Any:
    """A stub that was copied away from its tag."""
    directory = TagDirectory(stub["tag_directory"])
    if not directory.is_ours:
        raise NotFoundError(
            f"the data of this stub are not in '{directory.path}' any more; copy the whole folder of the tag, not its "
            "files alone",
            path=directory.path,
        )
    return _read(directory, stub["file"], stub["id"], map_location, allow_pickle)


def _read(directory: TagDirectory, file: str, version_id: str | None, map_location: Any, allow_pickle: bool) -> Any:
    import torch  # noqa: F401  (so that tensors come as those of torch)

    placed = directory.find(file)
    if version_id is not None and version_id != placed.id:
        raise DamagedError(f"'{directory.path}' was saved again after this stub was copied", path=directory.path)
    with reader.open(directory.version_folder(placed), placed.step, allow_pickle=allow_pickle) as checkpoint:
        if checkpoint.metadata.get("deepspeed_id") != placed.id:
            raise DamagedError(
                f"'{directory.version_folder(placed)}' holds another file than the manifest says", path=directory.path
            )
        state = checkpoint.tree()
    return _mapped(from_plain(state), _Mover(map_location))


def _load_torch_file(path: str, map_location: Any, allow_pickle: bool) -> Any:
    """A checkpoint that DeepSpeed's torch engine wrote: a run may be switched over to this engine."""
    import torch

    try:
        return torch.load(path, map_location=map_location, weights_only=not allow_pickle)
    except Exception as error:
        if allow_pickle or "weights_only" not in str(error).lower().replace(" ", "_"):
            raise
        raise UnsupportedError(
            f"'{path}' was written with torch.save and holds Python objects, which only a pickle can bring back; if "
            'you trust it, set "allow_pickle": true in "datastates_ckpt", or load it once without "datastates_ckpt"',
            path=path,
        ) from error


class _Mover:
    """What ``torch.load`` does with its ``map_location``, for a tensor that is in host memory."""

    def __init__(self, map_location: Any) -> None:
        import torch

        self._torch = torch
        self._where = map_location
        known = map_location is None or isinstance(map_location, (str, torch.device, dict)) or callable(map_location)
        if not known:
            raise UsageError(f"map_location is {map_location!r}; it is a device, a dict, a function or None")

    def __call__(self, tensor: Any) -> Any:
        where = self._where
        if where is None:
            return tensor
        if isinstance(where, dict):
            where = where.get("cpu", "cpu")
        if not callable(where):
            return tensor.to(where)
        storage = tensor.untyped_storage()
        moved = where(storage, "cpu")
        if moved is None or moved is storage:
            return tensor
        new = self._torch.empty(0, dtype=tensor.dtype, device=moved.device)
        return new.set_(getattr(moved, "_untyped_storage", moved), 0, tensor.size(), tensor.stride())


def _mapped(value: Any, move: _Mover) -> Any:
    """Moves the tensors, in place where the container allows it."""
    torch = torch_adapter()
    if torch is not None and isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _mapped(item, move)
    elif isinstance(value, list):
        value[:] = [_mapped(item, move) for item in value]
    elif type(value) is tuple:
        return tuple([_mapped(item, move) for item in value])
    return value
