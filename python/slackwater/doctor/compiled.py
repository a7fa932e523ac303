"""Steps that do not run as Python: compiled ones, and ones that were captured in a CUDA graph."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import thresholds
from .context import Context
from .lines import Outcome
from .rounds import Trainer, run_rounds, trainer, with_optimizer

_WARM_UP = 3  # torch.compile and CUDA graphs need some calls before they capture


def _into_scratch(context: Context) -> None:
    """The compiler writes its files there, without helpers that would have to be ended."""
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(context.directory / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(context.directory / "triton")
    # The fastest code is not wanted here. The last two spare it several programs that only try the processor out.
    for owner, name, value in (
        (config, "compile_threads", 1),
        (config, "cpp_cache_precompile_headers", False),
        (config.cpp, "vec_isa_ok", False),
    ):
        if hasattr(owner, name):  # other versions of torch have other settings
            setattr(owner, name, value)


def compiled_step(context: Context) -> Outcome:
    """Runs in a child process, because nothing else can bound the time of a compiler."""
    if context.kind == "cpu" and not _cpp_compiler():
        return Outcome("SKIP", "no C++ compiler: neither CXX, g++ nor clang++ is there")
    _into_scratch(context)
    with context.checkpointer() as ckpt:
        one, twin = (_small_trainer(context.device) for _ in range(2))
        one.step = torch.compile(one.optimizer.step)
        one.train()
        return run_rounds(ckpt, one, twin, context.rounds)


def _small_trainer(device: str) -> Trainer:
    """One tensor and SGD: one short kernel to compile, which takes seconds all the same."""
    model = torch.nn.Linear(thresholds.WIDTH, thresholds.WIDTH, bias=False).to(device)
    return with_optimizer(model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9), device)


def _cpp_compiler() -> str | None:
    return next((found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := which(name))), None)


def which(name: str) -> str | None:
    """The program, on PATH or beside this Python, where conda has it."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or (beside if os.access(beside, os.X_OK) else None)


def reduce_overhead(context: Context) -> Outcome:
    """Model and step compiled with mode="reduce-overhead", which replays CUDA graphs. In a child process, too."""
    _into_scratch(context)
    with context.checkpointer() as ckpt:
        one, twin = (trainer(context.device, capturable=True) for _ in range(2))
        model = torch.compile(one.model, mode="reduce-overhead")
        one.step = torch.compile(one.optimizer.step, mode="reduce-overhead")

        def forward(batch: torch.Tensor) -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            result: torch.Tensor = model(batch)
            return result

        one.forward = forward
        for _ in range(_WARM_UP):
            one.train()
        return run_rounds(ckpt, one, twin, context.rounds)


def captured_step(context: Context) -> Outcome:
    """A step in a torch.cuda.CUDAGraph, captured by hand. Its replays are fenced, because torch calls no hook."""
    with context.checkpointer() as ckpt:
        one, twin = (trainer(context.device, capturable=True) for _ in range(2))
        one.step = _capture(one)
        return run_rounds(ckpt, one, twin, context.rounds)


def _capture(one: Trainer) -> Callable[[], Any]:
    side = torch.cuda.Stream(one.batch.device)
    side.wait_stream(torch.cuda.current_stream(one.batch.device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            one.train()
    torch.cuda.current_stream(one.batch.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.optimizer.step()
    return graph.replay
