"""What a user says about a step: texts and numbers. And which numbers make a checkpoint one of the best.

On disk all of it is text, as safetensors has it. The manifest lists the numbers once more, by name: that tells them
from texts that look like numbers, and clean-up compares them there.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .errors import UsageError
from .state.names import an

Value = str | int | float | bool

_WHOLE = re.compile(r"-?[0-9]+")


class Best(NamedTuple):
    """``keep_best=sw.Best("loss", 3)``: keep the three checkpoints with the lowest loss, besides the newest.

    ``mode="max"`` keeps those with the highest. The metric is a number in the ``metadata`` that is given to ``save``.
    """

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"


def best_option(given: Any) -> tuple[Best, str] | None:
    """What ``keep_best`` was given, and as the engine's table of options takes it."""
    if given is None:
        return None
    wrong = f"keep_best is {given!r}; give a metric and how many to keep: ('loss', 3), or sw.Best('accuracy', 3, 'max')"
    if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
        raise UsageError(wrong)
    best = Best(*given)
    whole = isinstance(best.count, int) and not isinstance(best.count, bool) and best.count > 0
    if not isinstance(best.metric, str) or not best.metric or not whole or best.mode not in ("min", "max"):
        raise UsageError(wrong)
    return best, f"{best.mode}:{best.count}:{best.metric}"


def encode(metadata: Mapping[str, Value] | None, best: Best | None = None) -> tuple[dict[str, str], dict[str, float]]:
    """All of it as texts, and which of it are numbers."""
    texts: dict[str, str] = {}
    metrics: dict[str, float] = {}
    if metadata is None:
        return texts, metrics
    if not isinstance(metadata, Mapping):
        raise UsageError("metadata maps texts to texts and numbers, such as {'loss': 0.71}")
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise UsageError(f"metadata has the key {name!r}, which is {an(type(name).__name__)}; its keys are texts")
        if isinstance(value, str):
            texts[name] = value
        else:
            texts[name], metrics[name] = _number(name, value)
    if best is not None and best.metric in texts and best.metric not in metrics:
        raise UsageError(f"metadata['{best.metric}'] is a text; keep_best needs a number there")
    return texts, metrics


def decode(texts: Mapping[str, str], metrics: Mapping[str, float]) -> dict[str, Value]:
    """As it was given to save()."""
    return {name: _value(text) if name in metrics else text for name, text in texts.items()}


def _number(name: str, value: Any) -> tuple[str, float]:
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")):
        return ("true" if value else "false"), float(bool(value))
    if isinstance(value, numbers.Integral):
        whole = int(value)
        try:
            return str(whole), float(whole)
        except ValueError:  # Python does not write numbers of thousands of digits
            raise UsageError(f"metadata['{name}'] has too many digits; put it into the state") from None
        except OverflowError:
            return str(whole), math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):  # no fraction is a float
        real = float(value)
        return repr(real), real
    remedy = "give its .item()" if hasattr(value, "item") else "put it into the state"
    raise UsageError(f"metadata['{name}'] is {an(type(value).__name__)}; metadata takes texts and numbers: {remedy}")


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return text  # written by another program
