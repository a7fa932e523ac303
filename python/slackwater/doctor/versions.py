"""Which torch this is, and whether its optimizers call the fence."""

from __future__ import annotations

import torch

from . import thresholds
from .context import Context
from .lines import Outcome


def version(context: Context) -> Outcome:
    if torch.version.hip is not None:
        remedy = "AMD GPUs are not supported yet: keep the state in host memory"
        return Outcome("WARN", f"torch {torch.__version__}, ROCm {torch.version.hip}", "CUDA or CPU", remedy)
    build = "CPU build" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
    if torch.version.cuda is not None and not torch.cuda.is_available():
        build += ", no GPU that works"
    tested = ".".join(map(str, thresholds.TESTED_TORCH))
    known = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= thresholds.TESTED_TORCH
    return Outcome("PASS" if known else "WARN", f"torch {torch.__version__}, {build}", f"{tested} or newer")


def fence_hook(context: Context) -> Outcome:
    """A step of any optimizer calls the hook while a checkpointer is open, and not afterwards."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with context.checkpointer() as ckpt:
        session = ckpt._session
        optimizer.step()
        seen = session.optimizer_steps
    optimizer.step()
    if seen != 1:
        return Outcome("FAIL", "no optimizer step called it", "registered while open")
    if session.optimizer_steps != seen:
        return Outcome("FAIL", "still registered after close()", "registered while open")
    return Outcome("PASS", "registered", "registered while open")
