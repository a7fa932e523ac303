"""All code that knows other libraries. Nothing here imports a library that the program has not imported itself.

Start with ``torch_adapter()``. It returns ``torch_state``, which knows PyTorch's tensors, modules and optimizers.
``torch_ranks`` knows DTensor and DistributedDataParallel, ``arrays`` NumPy and DLPack, ``loaders`` data loaders, and
``streams`` CUDA streams. ``fence_hooks`` calls the fence before optimizers update. ``param_gathers`` knows frameworks
that fill parameters during the next forward pass.

``transformers``, ``accelerate`` and ``lightning`` are for programs to import, and import the library of that name. The
files that begin with their names belong to them, and ``trainer_shared`` is what they share.
"""

from __future__ import annotations

import sys
from typing import Any


def torch_adapter() -> Any:
    """The module that knows torch, or None while torch is not loaded."""
    if sys.modules.get("torch") is None:
        return None
    from . import torch_state

    return torch_state
