"""Frameworks that fill parameters during the next forward pass: at save(), some may still be those of the step before.

With Megatron-LM's ``overlap_param_gather`` and Apex's ``overlap_param_sync``, an optimizer step updates only the shard
of this rank. The rest arrives bucket by bucket, while the next forward runs. So save() after the step finds parameters
of two steps. Copying them at once would not help, and the gather is a collective that only the trainer can call.

Both are known by attributes that their classes publish. Nothing is imported.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..ranks.sharding import Replicated

logger = logging.getLogger("slackwater")

_MEGATRON_HOOKS = "megatron.core.distributed.distributed_data_parallel"
_SIGNS = frozenset({"chained_optimizers", "model_chunks", "ddp_config", "overlap_param_sync"})
_LOOKED_INTO = 64  # entries of a list or dict in the state: model chunks, chained optimizers

_MEGATRON = (
    "'%s' gathers its parameters during the next forward pass (overlap_param_gather of Megatron-LM), so checkpoints "
    "may hold some of the step before; on all ranks, call disable_forward_pre_hook() of each model chunk before save() "
    "and enable_forward_pre_hook() after it, or switch overlap_param_gather off"
)
_APEX = (
    "'%s' gathers its parameters during the next forward pass (overlap_param_sync of Apex), so checkpoints may hold "
    "some of the step before; on all ranks, call its param_sync() before save(), or switch overlap_param_sync off"
)


class GatherWatch:
    """Warns once. Of one checkpointer; of its saving thread."""

    def __init__(self) -> None:
        self._warned = False

    def check(self, state: Mapping[Any, Any], optimizers: Iterable[Any]) -> None:
        """``optimizers``: those of torch in the state, without what wraps them."""
        if self._warned:
            return
        for name, value in (*_objects(state), *(("optimizer", optimizer) for optimizer in optimizers)):
            message = pending_gather(value)
            if message is not None:
                self._warned = True
                logger.warning(message, name)
                return


def pending_gather(value: Any) -> str | None:
    """What to say of an object whose parameters may still have to be gathered; None where they are complete."""
    if _has_only_its_own(type(value)):
        own = vars(value)
        if own.keys().isdisjoint(_SIGNS) and not own.get("_forward_pre_hooks"):
            return None  # almost always: asking a module for what it does not have takes long
    try:
        if _megatron_gathers(value):
            return _MEGATRON
        if _apex_gathers(value):
            return _APEX
    except Exception:  # an object that looks like one of them, and is none
        logger.debug("looking for overlapped gathers in %s", type(value), exc_info=True)
    return None


@functools.lru_cache(maxsize=1_000)
def _has_only_its_own(kind: type) -> bool:
    """Whether an object of this class has none of the attributes asked for here, unless it is in its ``__dict__``."""
    finds_more = getattr(kind, "__getattr__", None)
    return (
        kind.__dictoffset__ != 0
        and kind.__getattribute__ is object.__getattribute__
        and (finds_more is None or finds_more.__module__ == "torch.nn.modules.module")  # layers and tensors of a module
        and _SIGNS.isdisjoint(dir(kind))
        and not hasattr(kind, "_forward_pre_hooks")
    )


def _objects(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Replicated):
            value = value.value
        inner: Iterable[Any] = ()
        if isinstance(value, (list, tuple)) and len(value) <= _LOOKED_INTO:
            inner = value
        elif isinstance(value, dict) and len(value) <= _LOOKED_INTO:
            inner = value.values()
        elif hasattr(value, "__dict__"):
            inner = (value,)
        for part in inner:
            if not hasattr(type(part), "data_ptr"):  # no tensor
                yield str(key), part


def _megatron_gathers(value: Any) -> bool:
    """Whether forward hooks that gather are in place, on a DistributedDataParallel or on what it wraps.

    Megatron's own checkpointing removes them first, and completes the parameters by that.
    """
    chained = getattr(value, "chained_optimizers", None)
    if isinstance(chained, list):
        return any(map(_megatron_gathers, chained))
    chunks = getattr(value, "model_chunks", None)
    if isinstance(chunks, list):  # DistributedOptimizer
        return any(map(_megatron_gathers, chunks))
    hooks = getattr(value, "_forward_pre_hooks", None)
    if isinstance(hooks, dict) and any(getattr(hook, "__module__", "") == _MEGATRON_HOOKS for hook in hooks.values()):
        return True
    config = getattr(value, "ddp_config", None)
    if getattr(config, "overlap_param_gather", False) is not True:
        return False
    if getattr(config, "use_distributed_optimizer", True) is not True:
        return False
    if getattr(config, "use_megatron_fsdp", False) is True:
        return False  # it keeps shards, which stand still, and gathers into other memory
    handles = getattr(value, "remove_forward_pre_hook_handles", None)
    return not isinstance(handles, dict) or len(handles) > 0


def _apex_gathers(value: Any) -> bool:
    """DistributedFusedAdam, after step() and before its last bucket has arrived."""
    if getattr(value, "overlap_param_sync", False) is not True or not callable(getattr(value, "param_sync", None)):
        return False
    buckets = getattr(value, "_params_buckets", None)
    return not isinstance(buckets, dict) or len(buckets) > 0
