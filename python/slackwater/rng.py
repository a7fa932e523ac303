"""Rng: the random number generators a training run draws from, as one item of the state."""

from __future__ import annotations

import array
import importlib
import logging
import random
import sys
from typing import Any

from .errors import UsageError
from .state.names import an

logger = logging.getLogger("slackwater")


class Rng:
    """State of the global generators of Python, NumPy and PyTorch (CUDA included), and of generators given by name.

    Libraries that are not loaded when a state is saved are left out. ``Rng(shuffle=generator)`` takes objects along
    that are ``torch.Generator``, ``numpy.random.Generator`` or ``random.Random``.
    """

    def __init__(self, **generators: Any) -> None:
        for name, generator in generators.items():
            _access(name, generator)
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": _pack_python(random.getstate())}
        np = sys.modules.get("numpy")
        if np is not None:
            state["numpy"] = np.random.get_state(legacy=False)
        torch = sys.modules.get("torch")
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = [state.cpu() for state in torch.cuda.get_rng_state_all()]
        if self._generators:
            state["generators"] = {name: _access(name, generator)[0]() for name, generator in self._generators.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(_unpack_python(state["python"]))
        if "numpy" in state and (np := _module("numpy")) is not None:
            np.random.set_state(state["numpy"])
        if "torch" in state and (torch := _module("torch")) is not None:
            torch.set_rng_state(state["torch"])
            if "cuda" in state:
                self._load_cuda(torch, state["cuda"])
        saved = state.get("generators", {})
        if saved.keys() != self._generators.keys():
            logger.warning(
                "the checkpoint has the generators %s, Rng was given %s", sorted(saved), sorted(self._generators)
            )
        for name, generator in self._generators.items():
            if name in saved:
                _access(name, generator)[1](saved[name])

    @staticmethod
    def _load_cuda(torch: Any, states: list[Any]) -> None:
        if not torch.cuda.is_available() or torch.cuda.device_count() != len(states):
            logger.warning(
                "the random state of %d CUDA devices was saved; it is not restored, this machine has another number",
                len(states),
            )
            return
        torch.cuda.set_rng_state_all(states)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        logger.warning("the checkpoint has the random state of %s, which is not installed here", name)
        return None


def _access(name: str, generator: Any) -> tuple[Any, Any]:
    """(get the state, set the state) of a generator object."""
    if isinstance(generator, random.Random):
        return lambda: _pack_python(generator.getstate()), lambda state: generator.setstate(_unpack_python(state))
    if hasattr(generator, "get_state") and hasattr(generator, "set_state"):  # torch.Generator, numpy.random.RandomState
        return generator.get_state, generator.set_state
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    raise UsageError(
        f"Rng({name}=...) takes a torch.Generator, a numpy.random.Generator or a random.Random, "
        f"not {an(type(generator).__name__)}"
    )


def is_generator(value: Any) -> bool:
    """Whether it is one that ``Rng`` takes."""
    np, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        isinstance(value, random.Random)
        or (torch is not None and isinstance(value, torch.Generator))
        or (np is not None and isinstance(value, (np.random.Generator, np.random.RandomState)))
    )


def _pack_python(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": array.array("Q", words).tobytes(), "gauss": gauss}


def _unpack_python(packed: dict[str, Any]) -> tuple[Any, ...]:
    words = array.array("Q")
    words.frombytes(packed["words"])
    return packed["version"], tuple(words), packed["gauss"]
