"""Checks of the device's memory: other ways to allocate it, and none left of it. CUDA only."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from . import thresholds
from .children import environment_alone
from .context import Context, save
from .lines import Outcome

_MIB = 1 << 20
_LEAST = 10 * _MIB  # torch's allocator takes 20 MiB for less than this, and multiples of 2 MiB for more


def expandable_segments(context: Context) -> Outcome:
    """The rounds of AdamW once more, in a process whose allocator maps memory itself."""
    command = [sys.executable, "-m", "slackwater.doctor", "--dir", str(context.directory)]
    command += ["--only", "AdamW foreach (CUDA)", *(["--quick"] if context.quick else [])]
    environment = environment_alone() | {"CUDA_VISIBLE_DEVICES": _visible(context.device)}
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # torch before 2.9 knows the second only
        environment[name] = "expandable_segments:True"
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=thresholds.CHILD_SECONDS, check=False
    )
    sys.stderr.write(result.stderr)
    if result.returncode != 0 or not result.stdout:
        raise RuntimeError(f"the process with expandable segments ended with status {result.returncode}")
    found = json.loads(result.stdout.splitlines()[-1])
    outcome = Outcome(found["status"], found["figure"], found["threshold"])
    if outcome.status == "PASS" and "expandable" not in outcome.figure:
        return Outcome("WARN", "torch did not make expandable segments", "some", "look for a warning of torch above")
    return outcome


def _visible(device: str) -> str:
    """The one device of this process, as another process can be given it."""
    index = int(device.partition(":")[2] or 0)
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(index) if listed is None else listed.split(",")[index]


def full_gpu(context: Context) -> Outcome:
    """A save when torch's allocator owns nearly all of the device: the engine must need none of it."""
    device = torch.device(context.device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others > thresholds.OTHERS_BYTES:
        return Outcome("SKIP", f"others use {others / 2**30:.1f} GiB of this GPU, and filling it would disturb them")
    state = {
        "large": torch.randn(4 * _MIB, device=device),
        "small": [torch.randn(64, device=device) for _ in range(50)],
    }
    with context.checkpointer() as ckpt:
        blocks: list[torch.Tensor] = []
        try:
            left = _fill(device, blocks)
            snapshot = save(ckpt, 1, state)
            ckpt.fence()
            state["large"].add_(0)  # type: ignore[attr-defined]
            snapshot.wait(timeout=thresholds.WAIT_SECONDS)
        finally:
            blocks.clear()
            torch.cuda.empty_cache()
    return Outcome("PASS", f"saved with {left / _MIB:.0f} MiB left", f"{thresholds.LEFT_BYTES // _MIB} MiB or more")


def _fill(device: torch.device, blocks: list[torch.Tensor]) -> int:
    """Takes all but a few MiB. Returns what is left."""
    size = 1 << 40
    while True:
        left, _ = torch.cuda.mem_get_info(device)
        size = min(size, (left - thresholds.LEFT_BYTES) // (2 * _MIB) * (2 * _MIB))
        if size < _LEAST:
            return int(left)
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.cuda.OutOfMemoryError:  # the device is fragmented
            size //= 2
