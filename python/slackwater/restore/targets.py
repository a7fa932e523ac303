"""Targets: the memory that each saved tensor, or each box of one, is restored to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..integrations import arrays
from ..ranks.sharding import RankInfo, shards_in
from ..state.memory import HOST, Memory, Place, Target
from .problems import Problems
from .report import ReportBuilder
from .saved_tensors import SavedTensors

logger = logging.getLogger("slackwater")


class Targets:
    """Collected while a restore is planned. ``after`` takes functions to be called once every byte is in place."""

    def __init__(
        self,
        saved: SavedTensors,
        problems: Problems,
        report: ReportBuilder,
        after: Callable[[Callable[[], None]], None],
        *,
        cast: bool,
        rank_info: RankInfo,
        torch: Any,
    ) -> None:
        self._saved = saved
        self._problems = problems
        self._report = report
        self._after = after
        self._cast = cast
        self._rank_info = rank_info
        self._torch = torch
        self._targets: dict[tuple[Any, ...], tuple[str, Memory, Place | None]] = {}
        self._written: list[Any] = []  # torch tensors whose version must be bumped
        self._fitting: tuple[Any, Any] = (None, None)  # the last value that fits, and its memory
        self.copies: list[tuple[str, Any]] = []  # (saved name, target): to be read into a temporary copy

    def for_engine(self) -> list[Target]:
        return [memory.target(name, place) for name, memory, place in self._targets.values()]

    def bump_versions(self) -> None:
        """Call it once every byte is in place, so that autograd knows that the engine wrote to its tensors."""
        if self._written:
            self._torch.bump_versions(self._written)

    def write_boxes(self, saved: str, target: Any) -> None:
        """Restores the tensor ``saved``, or the boxes of it that ``target`` holds, into ``target``."""
        torch = self._torch
        if (shards := shards_in(target)) is not None:
            for shard in shards:
                self.write(saved, shard.tensor, (shard.global_shape, shard.offset))
        elif torch is None or not torch.is_dtensor(target):
            self.write(saved, target)
        elif self._rank_info.world == 1:
            self.write(saved, target._local_tensor)
        else:
            where = self._rank_info.locate(target, saved, False)
            for box, part in torch.parts(target._local_tensor, where.boxes, saved):
                self.write(saved, part, (where.global_shape, box.offset))

    def write(self, saved: str, target: Any, place: Place | None = None) -> None:
        """Restores the tensor ``saved``, or its box at ``place``, into ``target``; directly, if the bytes allow it."""
        info = self._saved.info(saved)
        torch = self._torch
        is_torch = torch is not None and isinstance(target, torch.Tensor)
        known = self._fitting[0] is target
        if known:
            memory = self._fitting[1]
        else:
            memory = torch.memory_of(target, saved) if is_torch else arrays.memory_of(target, saved)
        shape = memory.shape if place is None else place[0]
        if shape != info.shape:
            self._problems.wrong(f"'{saved}' has shape {shape} here and {info.shape} in the checkpoint")
        elif memory.dtype != info.dtype and not self._cast:
            self._problems.wrong(f"'{saved}' has dtype {memory.dtype} here and {info.dtype} in the checkpoint")
        elif (not known and memory.overlaps_itself) or not (is_torch or target.flags.writeable):
            self._problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary tensor"
            )
        elif memory.dtype != info.dtype or (
            torch.must_be_copied_into(target) if is_torch else memory.owner is not target
        ):
            self._report.add_tensor(info, None if place is None else memory.shape)
            if place is None and self._rank_info.world == 1:
                self.copies.append((saved, target))
            else:
                self._place_aside(saved, target, memory, place)
        elif place is None or memory.size_bytes > 0:
            self._report.add_tensor(info, None if place is None else memory.shape)
            self._place_at(saved, memory, place)
            if is_torch:
                self._written.append(memory.owner)

    def _place_aside(self, saved: str, target: Any, memory: Memory, place: Place | None) -> None:
        """Ranks agree on a version by what the engine could place. So the engine also places what is converted
        afterwards."""
        dtype, torch = self._saved.info(saved).dtype, self._torch
        if torch is not None and isinstance(target, torch.Tensor):
            aside = torch.empty(dtype, memory.shape)
            self._place_at(saved, torch.memory_of(aside, saved), place)
            self._after(lambda: torch.copy_into(target, aside))
        else:
            aside = arrays.empty(dtype, memory.shape, saved)
            self._place_at(saved, Memory(dtype, memory.shape, None, aside.ctypes.data, HOST, aside), place)
            self._after(lambda: arrays.copy_into(target, aside))

    def write_borrowed(self, saved: str, target: Any) -> None:
        """The same for an array on a CUDA device that is known only through DLPack."""
        info = self._saved.info(saved)
        memory = arrays.cuda_memory(target, saved)
        if (memory.shape, memory.dtype) != (info.shape, info.dtype):
            self._problems.wrong(
                f"'{saved}' is {memory.dtype}{list(memory.shape)} here "
                f"and {info.dtype}{list(info.shape)} in the checkpoint"
            )
        elif memory.overlaps_itself or memory.owner.read_only:
            self._problems.wrong(
                f"'{saved}' cannot be written in place: it is read-only, or an expanded view; give an ordinary array"
            )
        else:
            self._report.add_tensor(info, None)
            self._place_at(saved, memory)

    def _place_at(self, saved: str, memory: Memory, place: Place | None = None) -> None:
        spot = memory[:5]
        earlier = self._targets.get(spot)
        stored_as = self._saved.stored_as
        if earlier is not None and memory.address and stored_as(earlier[0]) != stored_as(saved):
            logger.warning(
                "'%s' and '%s' share their memory here but were saved as two tensors; '%s' is used",
                earlier[0],
                saved,
                saved,
            )
        key = spot if memory.address else (saved, *spot)
        self._targets[key] = (saved, memory, place)

    def fits(self, saved: str, value: Any, any_dtype: bool = False) -> bool:
        """Whether the tensor ``saved`` can be written to ``value`` as it is."""
        torch = self._torch
        if torch.is_dtensor(value):
            info = self._saved.info(saved)
            return tuple(value.shape) == info.shape and (
                any_dtype or torch.dtype_name(value.dtype, saved) == info.dtype
            )
        if not isinstance(value, torch.Tensor) or torch.is_wrapper(value) or torch.must_be_copied_into(value):
            return False
        memory = torch.memory_of(value, saved)
        info = self._saved.info(saved)
        fits = memory.shape == info.shape and (any_dtype or memory.dtype == info.dtype) and not memory.overlaps_itself
        if fits:
            self._fitting = (value, memory)
        return fits

    def fits_hooked(self, saved: str, value: Any) -> bool:
        """For a module with hooks: ``write`` refuses or converts another dtype, not load_state_dict()."""
        return self.fits(saved, value, any_dtype=not self._cast or self._torch.is_dtensor(value))
