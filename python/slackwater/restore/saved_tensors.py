"""The tensors of a checkpoint: their names there and in the given state, and which ranks have them."""

from __future__ import annotations

from .. import _core
from ..errors import DamagedError
from ..state.codec import Node
from ..state.names import Pattern
from ..state.nodes import tensor_name
from .rename import Renaming


class SavedTensors:
    """The tensors of one version, as this rank sees them. Constant after construction."""

    def __init__(self, contents: _core.Contents, selected: Pattern, rename: Renaming, world: int) -> None:
        self._infos = {info.name: info for info in contents.tensors}
        self._selected = selected
        self._rename = rename
        self._by_new_name = {rename(name): name for name in self._infos} if rename else None
        self._tied: dict[str, tuple[str, ...]] | None = None
        self.of_other_world = contents.version.world != world  # the tree is then that of rank 0
        self.of_several_ranks = self.of_other_world or world > 1

    def __contains__(self, saved: str) -> bool:
        return saved in self._infos

    def info(self, saved: str) -> _core.TensorInfo:
        info = self._infos.get(saved)
        if info is None:
            raise DamagedError(f"the tree of the checkpoint names the tensor '{saved}', which no file holds")
        return info

    def dtype_on_first_rank(self, saved: str) -> str | None:
        info = self._infos.get(f"rank-00000/{saved}") or self._infos.get(saved)
        return None if info is None else info.dtype

    def shape(self, saved: str) -> tuple[int, ...] | None:
        info = self._infos.get(saved)
        return None if info is None else tuple(info.shape)

    def stored_as(self, saved: str) -> str:
        """Tied tensors are stored once, under the name of one of them. This returns that name."""
        return self.info(saved).alias_of or saved

    # Names

    def wanted(self, saved: str) -> bool:
        """Whether a tensor of the checkpoint is selected, by its name in the state."""
        return self._selected.everything or self._selected(self._rename(saved))

    def saved_as(self, name: str) -> str:
        """The name in the checkpoint of a tensor of the state."""
        return name if self._by_new_name is None else self._by_new_name.get(name, "")

    def current_names(self, saved: str) -> tuple[str, ...]:
        """The names in the state of a parameter of the checkpoint, and of those it was tied with."""
        if self._tied is None:
            tied: dict[str, list[str]] = {}
            for info in self._infos.values():
                tied.setdefault(info.alias_of or info.name, []).append(info.name)
            self._tied = {one: tuple(group) for group in tied.values() if len(group) > 1 for one in group}
        others = self._tied.get(saved, ())
        if not others and not self._rename:
            return (saved,)
        return tuple(dict.fromkeys(map(self._rename, (saved, *others))))

    # Ranks

    def is_rank_local(self, saved: str) -> bool:
        """Whether a tensor in the tree belonged to a single rank, and cannot be restored here."""
        return self.of_other_world and saved not in self._infos

    def is_shared(self, saved: str) -> bool:
        """Whether a tensor of the checkpoint belongs to all ranks, so that this rank need not have it."""
        return self.of_other_world or self.info(saved).is_global

    def may_be_missing(self, node: Node) -> bool:
        """Whether a tensor may be missing on this rank, because other ranks have it."""
        saved = tensor_name(node)
        return saved is not None and (saved not in self._infos or self.is_shared(saved))
