"""Calls the fence: a hook before every optimizer step, and methods that are wrapped on request.

Hooks hold the session weakly, so that they do not keep a dropped checkpointer alive. They never raise, and stay out of
torch.compile.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import UsageError
from ..state.names import an
from .graph_fences import Fenced, graph_fences

logger = logging.getLogger("slackwater")


def register_step_hook(session: Fenced) -> Callable[[], None]:
    """Fence before every torch optimizer step of this process, replayed ones too. Returns a function that removes the
    hook."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    reference = weakref.ref(session)

    def fence_before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        fenced = reference()
        if fenced is None or graph_fences.step_is_captured():  # nothing is updated yet: the step is only recorded
            return
        fenced.optimizer_steps += 1
        fenced.fence_quietly()

    handle = register_optimizer_step_pre_hook(_outside_compile(fence_before_step))
    forget_graphs = graph_fences.add(session)

    def remove() -> None:
        handle.remove()
        forget_graphs()

    return remove


def _outside_compile(function: Callable[..., None]) -> Callable[..., None]:
    """A compiled step calls the hook uncompiled. Loading the compiler takes seconds; the first compiled step does it
    anyway."""
    import torch

    disable: Callable[..., Any] = torch.compiler.disable
    if sys.modules.get("torch._dynamo") is None:
        disable = getattr(torch, "_disable_dynamo", disable)  # the same, but loads the compiler at the first call
    outside: Callable[..., None] = disable(function)
    return outside


class FencedMethods:
    """Methods that were wrapped to fence before they run (``fence_on``)."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._wrapped: set[tuple[int, str]] = set()

    def wrap(self, session: Fenced, obj: Any, method: str) -> None:
        if (id(obj), method) in self._wrapped:
            return
        original = getattr(obj, method, None)
        if not callable(original):
            raise UsageError(f"{an(type(obj).__name__)} has no method '{method}' to fence on")
        reference = weakref.ref(session)

        @functools.wraps(original)
        def fenced(*args: Any, **kwargs: Any) -> Any:
            owner = reference()
            if owner is not None:
                owner.fence_quietly()
            return original(*args, **kwargs)

        own = method in getattr(obj, "__dict__", {})
        try:
            setattr(obj, method, fenced)
        except AttributeError as error:
            raise UsageError(
                f"'{method}' of {an(type(obj).__name__)} cannot be replaced; call fence() before it instead"
            ) from error

        def undo() -> None:
            if getattr(obj, method, None) is fenced:  # somebody else may have wrapped it since
                if own:
                    setattr(obj, method, original)
                else:
                    delattr(obj, method)

        self._undo.append(undo)
        self._wrapped.add((id(obj), method))

    def wrap_mode_switches(self, session: Fenced, optimizers: Iterable[Any]) -> None:
        """Wraps ``eval()`` and ``train()`` of optimizers, because those of schedule-free optimizers swap weights in
        place."""
        for optimizer in optimizers:
            for method in ("eval", "train"):
                if callable(getattr(optimizer, method, None)):
                    self.wrap(session, optimizer, method)

    def unwrap_all(self) -> None:
        for undo in reversed(self._undo):
            try:
                undo()
            except Exception:
                logger.warning("could not restore a wrapped method", exc_info=True)
        self._undo.clear()
        self._wrapped.clear()
