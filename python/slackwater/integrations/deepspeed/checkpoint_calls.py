"""Learns from DeepSpeed's own ``save_checkpoint`` and ``load_checkpoint`` what its checkpoint engine is not told.

- A tag is whole on this rank once ``save_checkpoint`` has returned, and every rank calls it, also one that writes
  nothing. If it raised, some files may be missing, whatever the program does next.
- ``save_latest`` does not reach the engine.
- ``load_checkpoint`` reads ``latest`` and looks for files before it calls the engine, on each rank for itself. So what
  is in flight comes first, on all ranks.

DeepSpeed's files stay as they are. The two methods of its class are wrapped when the first engine of ours is made,
which happens on all ranks alike.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

_MARK = "_wrapped_by_slackwater"


class TagKeeper(Protocol):
    """What keeps the tag of one engine (``_Writer``)."""

    def begin_tag(self, folder: str, save_latest: bool) -> Any: ...

    def end_tag(self, tag: Any, error: BaseException | None) -> None: ...


def wrap(keeper_of: Callable[[Any], TagKeeper | None], settle: Callable[[], None]) -> None:
    """``keeper_of`` finds the keeper of a DeepSpeedEngine; ``settle`` waits for everything in flight on this rank."""
    module = sys.modules.get("deepspeed.runtime.engine")
    kind = getattr(module, "DeepSpeedEngine", None)
    if kind is None or hasattr(kind, _MARK):
        return
    save, load = kind.save_checkpoint, kind.load_checkpoint
    signature = inspect.signature(save)

    @functools.wraps(save)
    def save_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
        keeper = keeper_of(engine)
        try:
            given = signature.bind(engine, *args, **kwargs).arguments
        except TypeError:  # DeepSpeed says what is wrong
            keeper, given = None, {}
        if keeper is None or not given.get("save_dir"):
            return save(engine, *args, **kwargs)
        name = given.get("tag")
        folder = os.path.join(given["save_dir"], f"global_step{engine.global_steps}" if name is None else str(name))
        tag = keeper.begin_tag(folder, bool(given.get("save_latest", True)))
        try:
            result = save(engine, *args, **kwargs)
        except BaseException as error:
            keeper.end_tag(tag, error)
            raise
        keeper.end_tag(tag, None)
        return result

    @functools.wraps(load)
    def load_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
        settle()
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.barrier()  # until rank 0 has moved `latest`
        return load(engine, *args, **kwargs)

    kind.save_checkpoint, kind.load_checkpoint = save_checkpoint, load_checkpoint
    setattr(kind, _MARK, True)
