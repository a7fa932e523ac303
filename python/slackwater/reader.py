"""Reads checkpoints without a model: ``open`` (lazily, tensor by tensor) and ``load`` (the whole state)."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from . import _core, metadata
from .errors import ClosedError, NotFoundError, UnsupportedError, UsageError
from .integrations import arrays, torch_adapter
from .restore.report import size_text
from .state import decoder, names, nodes
from .state.memory import HOST, Memory
from .tiers import Tier

logger = logging.getLogger("slackwater")

_OF_OURS = re.compile(r"(rank-\d{5,}/)?__slackwater")  # a large tree is stored as a tensor


class TensorInfo(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    alias_of: str  # tied tensors: the name it is stored under


class _LostTensor(NotFoundError, KeyError):
    """What a Mapping must raise for an unknown name."""


class Reader(Mapping[str, Any]):
    """The tensors of one checkpoint by name. Each is read and verified when it is asked for; no lock is taken.

    Tensors come as torch tensors if torch is loaded, else as NumPy arrays. Thread-safe.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Tier, step: int | None = None, *, allow_pickle: bool = False
    ) -> None:
        # Only what a tier says about its object store matters for reading.
        tier = path if isinstance(path, Tier) else Tier(path)
        place = os.path.expanduser(os.fspath(tier.location))
        self._checkpoint: _core.Checkpoint | None = _core.Checkpoint.open(place, step, tier.settings(location=False))
        contents = self._checkpoint.contents()
        self._version = contents.version
        self._tree = contents.tree
        self._infos = {info.name: info for info in contents.tensors if not _OF_OURS.match(info.name)}
        self._allow_pickle = allow_pickle
        self._lock = threading.Lock()
        self._loaded = (0, 0)  # tensors and bytes that tree() has read
        self.metadata: dict[str, metadata.Value] = metadata.decode_metadata(contents.metadata, contents.version.metrics)

    @property
    def step(self) -> int:
        return self._version.step

    def info(self, name: str) -> TensorInfo:
        info = self._find(name)
        return TensorInfo(info.dtype, tuple(info.shape), info.size_bytes, info.alias_of)

    def tree(self, only: str | Iterable[str] | None = None) -> Any:
        """The state as rank 0 gave it to save(): modules and other objects as what their state_dict() gave.

        Tensors that the ranks hold together are whole. With ``only``, tensors and plain values whose names do not match
        are left out of their dicts (None in lists), as are dicts and lists of which nothing is left.
        """
        selected = names.Pattern(only)
        wanted: dict[str, Any] = {}

        def tensor(name: str, is_array: bool) -> Any:
            name = self._of_first_rank(name)
            if name not in wanted:
                wanted[name] = self._empty(name, is_array)
            return wanted[name]

        root = decoder.load_tree(self._tree) if self._tree else {name: {"$t": name} for name in self._infos}
        if not selected.everything:
            try:
                known = [*(str(key) for key, _ in nodes.entries_of(root) or []), *self._infos]
                root = nodes.part_of(root, selected)
            except RecursionError:
                raise UnsupportedError(
                    "the tree of the checkpoint is nested too deeply; a higher sys.setrecursionlimit() may help"
                ) from None
            selected.check(known)
            if root is nodes.NOTHING:
                raise UsageError("only=[] selects nothing; leave it out to load everything")
        state = decoder.decode(root, tensor, self._allow_pickle)
        self._read(wanted)
        size_bytes = sum(self._infos[name].size_bytes for name in wanted)
        self._loaded = (len(wanted), size_bytes)
        return state

    def close(self) -> None:
        self._checkpoint = None

    def __getitem__(self, name: str) -> Any:
        self._find(name)
        new = self._empty(name, False)
        self._read({name: new})
        return new

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<slackwater.Reader step={self.step} tensors={len(self)}>"

    def _find(self, name: str) -> _core.TensorInfo:
        info = self._infos.get(name)
        if info is None:
            own = f"rank-00000/{name}"
            hint = f"; each rank has its own, such as '{own}'" if own in self._infos else ""
            raise _LostTensor(f"the checkpoint of step {self.step} has no tensor '{name}'{hint}")
        return info

    def _empty(self, name: str, is_array: bool) -> Any:
        info = self._find(name)
        torch = torch_adapter()
        if torch is not None and not is_array:
            return torch.empty(info.dtype, info.shape)
        return arrays.empty(info.dtype, tuple(info.shape), name)

    def _read(self, wanted: dict[str, Any]) -> None:
        torch = torch_adapter()
        targets = []
        for name, new in wanted.items():
            info = self._find(name)
            if torch is not None and isinstance(new, torch.Tensor):
                memory = torch.memory_of(new, name)
            else:  # ml_dtypes have names the adapter does not vouch for: say what the file says
                memory = Memory(info.dtype, tuple(info.shape), None, new.ctypes.data, HOST, new)
            targets.append(memory.target(name))
        with self._lock:
            if self._checkpoint is None:
                raise ClosedError("this reader is closed")
            if targets:
                self._checkpoint.read(targets)

    def _of_first_rank(self, name: str) -> str:
        """What a tensor of rank 0 is called among those of all ranks."""
        own = f"rank-00000/{name}"
        return own if own in self._infos else name


def open(path: str | os.PathLike[str] | Tier, step: int | None = None, *, allow_pickle: bool = False) -> Reader:
    """The newest checkpoint of a directory, or that of ``step``, as a lazy mapping from names to tensors.

    ``path`` may also be ``s3://bucket/prefix``, or a ``sw.Tier`` that says how to reach its object store.
    """
    return Reader(path, step, allow_pickle=allow_pickle)


def load(
    path: str | os.PathLike[str] | Tier,
    step: int | None = None,
    only: str | Iterable[str] | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """The whole state of a checkpoint, or the part whose names match ``only``: nested dicts, lists and plain values,
    with new tensors. ``path`` is as for ``open``.
    """
    start = time.perf_counter()
    with Reader(path, step, allow_pickle=allow_pickle) as reader:
        state = reader.tree(only)
        tensors, size_bytes = reader._loaded
        logger.info(
            "loaded %d of %d tensors of step %d, %s in %.1f s",
            tensors,
            len(reader),
            reader.step,
            size_text(size_bytes),
            time.perf_counter() - start,
        )
        return state
