"""Helpers of the Python tests."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


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
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result


# A shell starts its background jobs with SIGINT ignored, and what they start inherits that.
_HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python program on its own, with pipes, that hears Ctrl-C; ``python`` runs one to its end."""
    return subprocess.Popen(
        [sys.executable, "-c", _HEARS_CTRL_C + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
