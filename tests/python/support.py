"""Helpers of the Python tests."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch

# Time limits are safety nets for a test that hangs. No test may reach one because the machine is busy.
SECONDS = 900.0


def library(name: str) -> Any:
    """One of the libraries of requirements-libraries.txt. A test that needs one fails without it."""
    need(name.partition(".")[0])
    return importlib.import_module(name)


def need(*names: str) -> None:
    """Fails unless these libraries are installed. It does not import them."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.fail(f"{name} is not installed: run `make libraries`, which installs it into .venv")


def data_file(root: Path | str, step: int) -> Path:
    """The one file of tensors of a step."""
    [found] = Path(root).glob(f"step-{step:010d}.a*/rank-00000.safetensors")
    return found


def step_directory(root: Path | str, step: int) -> Path:
    return data_file(root, step).parent


def bits(tensor: torch.Tensor) -> bytes:
    """The exact bytes of a tensor's values, for any dtype and any strides."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit and of the same types, tensors and arrays included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def python(code: str, *arguments: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Returns when the condition holds. For what another thread brings about."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came about: {what}"
        time.sleep(0.002)


@contextlib.contextmanager
def unsettled() -> Iterator[None]:
    """What is saved inside stays in flight: it is not settled, so it cannot commit.

    A change made inside comes before the fence, however late this thread runs. At the end of the block everything is
    settled that would have been meanwhile.
    """
    settle, held = sw.Snapshot._settle, []
    sw.Snapshot._settle = lambda self: held.append(self)  # type: ignore[method-assign]
    try:
        yield
    finally:
        sw.Snapshot._settle = settle  # type: ignore[method-assign]
        for snapshot in held:
            settle(snapshot)


class Line:
    """Saves a state behind a large one and changes it at once, long before its copy begins.

    Slabs are granted in the order of the saves, so the state waits until the large one has left the pool. On a busy
    machine the change may come too late all the same. ``torn`` then tries again, so a change has to be one each time.

    With ``known``, the large one is a part of the state, which is saved twice: its structure is known by then.
    """

    BLOCKER = np.zeros(24 << 20, dtype=np.uint8)

    def __init__(self, ckpt: sw.Checkpointer, *, known: bool = False) -> None:
        self.ckpt = ckpt
        self.step = 0
        self.known = known

    def save(self, state: dict[str, Any]) -> sw.Snapshot:
        if self.known:
            state = {**state, "blocker": self.BLOCKER}
        self.ckpt.save(self.step + 1, state if self.known else {"blocker": self.BLOCKER})
        snapshot = self.ckpt.save(self.step + 2, state)
        self.step += 2
        assert snapshot is not None
        return snapshot

    def save_and_change(self, state: dict[str, Any], change: Callable[[], Any]) -> sw.Snapshot:
        snapshot = self.save(state)
        change()
        return snapshot

    def torn(self, state: dict[str, Any], change: Callable[[], Any]) -> sw.TornError:
        """The error of the state's snapshot."""
        while True:
            snapshot = self.save_and_change(state, change)
            came_first = snapshot.progress.staged_bytes == 0
            try:
                snapshot.wait(timeout=SECONDS)
            except sw.TornError as error:
                assert snapshot.step not in self.ckpt.steps(), "a torn snapshot is never committed"
                return error
            assert not came_first, "the change came before the copies, and was not noticed"


# A shell starts its background jobs with SIGINT ignored, and what they start inherits that.
_HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python program on its own, with pipes, that hears Ctrl-C; ``python`` runs one to its end."""
    return subprocess.Popen(
        [sys.executable, "-c", _HEARS_CTRL_C + textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
