"""A save planner whose plan cache can be trusted.

``DefaultSavePlanner(enable_plan_caching=True)`` keeps plans in dicts of its class under the name of the class. All
savers of a process share them, and plans are compared without dtypes. This planner keeps its plans under a key of its
own and compares all of them. The coordinator leaves out only plans that the rank proves to have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from ...errors import UsageError


@dataclasses.dataclass
class _Cache:
    local: SavePlan | None = None  # what this rank planned
    final: SavePlan | None = None  # what it was told to write
    plans: list[SavePlan] = dataclasses.field(default_factory=list)  # of the coordinator: of all ranks
    told: list[SavePlan] = dataclasses.field(default_factory=list)  # of the coordinator: what they write
    metadata: Metadata | None = None
    # A save was planned and never said what is to be written: the coordinator may have those plans by now.
    pending: bool = False


_caches: dict[tuple[str, int], _Cache] = {}
_lock = threading.Lock()


class SlackwaterSavePlanner(DefaultSavePlanner):
    """``DefaultSavePlanner`` with a plan cache that notices every change. Savers of different states use different
    ``cache_key``s; a planner may be made anew for each save."""

    def __init__(self, *args: Any, cache_key: str = "default", **kwargs: Any) -> None:
        kwargs["enable_plan_caching"] = False  # not that of the class
        super().__init__(*args, **kwargs)
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        with _lock:
            self._cache = _caches.setdefault((cache_key, rank), _Cache())
        self._own_plan: SavePlan | None = None

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        self._own_plan = plan
        cache = self._cache
        known, cache.pending = not cache.pending, True
        if known and cache.local is not None and cache.final is not None and _same(plan, cache.local):
            return SavePlan([], planner_data=(_digest(plan), _digest(cache.final)), usable=False)
        return plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        cache = self._cache
        known = len(cache.plans) == len(all_plans)
        if not known and not all(plan.usable for plan in all_plans):
            raise UsageError(
                "a rank planned with a plan cache that the coordinator does not have; use one cache_key for "
                "one set of ranks"
            )
        if known and any(
            not plan.usable and plan.planner_data[0] != _digest(mine)
            for plan, mine in zip(all_plans, cache.plans, strict=True)
        ):
            raise UsageError("a rank says that its plan is as before, and the coordinator has another; save again")
        merged = [plan if plan.usable else cache.plans[rank] for rank, plan in enumerate(all_plans)]
        if known and cache.metadata is not None and not any(plan.usable for plan in all_plans):
            told, metadata = cache.told, cache.metadata
        else:
            told, metadata = super().create_global_plan(merged)
        cache.plans, cache.told, cache.metadata = merged, told, metadata
        sent = [
            SavePlan([], planner_data=None, usable=False)
            if not given.usable and given.planner_data[1] == _digest(plan)
            else plan
            for given, plan in zip(all_plans, told, strict=True)
        ]
        return sent, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        cache = self._cache
        if new_plan.usable:
            cache.final = new_plan
        assert cache.final is not None, "the coordinator left out a plan that this rank does not have"
        cache.local, cache.pending = self._own_plan, False  # only now: the coordinator has it
        return super().finish_plan(cache.final)


def _same(plan: SavePlan, other: SavePlan) -> bool:
    """Every field: names, types, sizes, chunks and dtypes."""
    return plan.items == other.items and plan.planner_data == other.planner_data


def _digest(plan: SavePlan) -> str:
    text = repr([(item.index.fqn, item.index.offset, item.type, item.tensor_data) for item in plan.items])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
