"""CUDA graphs that captured an optimizer step. Each replay is an update, and torch runs no hook before it.

So the methods of torch.cuda.CUDAGraph are wrapped while a checkpointer is open. A step hook that runs during a capture
marks the graph, and every replay of a marked graph fences first. ``torch.cuda.graph``, ``make_graphed_callables`` and
``torch.compile(mode="reduce-overhead")`` all capture and replay through these methods.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger("slackwater")

_MARK = "_slackwater_captured_step"


class Fenced(Protocol):
    optimizer_steps: int

    def fence_quietly(self) -> None: ...


class GraphFences:
    """Shared by all checkpointers of the process, because a class can be wrapped only once. Thread rule: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._originals: dict[str, Callable[..., Any]] = {}
        self._wrapped: type | None = None
        self._capturing = threading.local()  # .graphs: graphs that this thread is capturing
        self._warned = False

    def add(self, session: Fenced) -> Callable[[], None]:
        """Fence this session too. Returns a function that undoes it."""
        with self._lock:
            self._sessions.add(session)
            self._wrap()
        reference = weakref.ref(session)

        def remove() -> None:
            with self._lock:
                self._sessions.discard(reference())
                if not self._sessions:
                    self._unwrap()

        return remove

    def step_is_captured(self) -> bool:
        """For the step hook: whether this step is only being recorded. If so, its replays will be fenced."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
            return False
        graphs = self._graphs()
        for graph in graphs:
            setattr(graph, _MARK, True)
        if not self._warned:
            self._warned = True
            how = (
                "CUDAGraph.replay() waits for the copies of a checkpoint from now on; if you replay it in any other "
                "way, call fence() on the checkpointer before each replay"
                if graphs
                else "its capture was not begun by torch.cuda.CUDAGraph while a checkpointer was open, so its replays "
                "are not fenced: call fence() on the checkpointer before each replay"
            )
            logger.warning("an optimizer step is being captured in a CUDA graph: %s", how)
        return True

    def _graphs(self) -> list[Any]:
        if not hasattr(self._capturing, "graphs"):
            self._capturing.graphs = []
        graphs: list[Any] = self._capturing.graphs
        return graphs

    def _wrap(self) -> None:
        if self._wrapped is not None:
            return
        import torch

        self._wrapped = torch.cuda.CUDAGraph
        for name, wrapper in (
            ("capture_begin", self._capture_begin),
            ("capture_end", self._capture_end),
            ("replay", self._replay),
        ):
            original = getattr(self._wrapped, name)
            self._originals[name] = original
            setattr(self._wrapped, name, wrapper(original))

    def _unwrap(self) -> None:
        wrapped, self._wrapped = self._wrapped, None
        for name, original in self._originals.items():
            if getattr(getattr(wrapped, name), "__wrapped__", None) is original:  # somebody else may have wrapped it
                setattr(wrapped, name, original)
        self._originals.clear()

    def _capture_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            setattr(graph, _MARK, False)  # a graph may be captured again
            self._graphs().append(graph)
            return result

        return capture_begin

    def _capture_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._capturing.graphs = [other for other in self._graphs() if other is not graph]
            return original(graph, *args, **kwargs)

        return capture_end

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(graph, _MARK, False):
                for session in list(self._sessions):
                    session.optimizer_steps += 1
                    session.fence_quietly()
            return original(graph, *args, **kwargs)

        return replay


graph_fences = GraphFences()
