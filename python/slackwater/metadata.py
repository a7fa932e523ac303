"""Metadata: strings and numbers that a user attaches to a step. Also ``keep_best``, which compares such numbers.

On disk, all metadata are strings, as safetensors requires. The manifest lists the numbers again by name. This tells
them from strings that look like numbers, and retention compares them there.
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
_BEST = re.compile(r"(min|max):([0-9]+):(.+)", re.DOTALL)


class Best(NamedTuple):
    """``keep_best=sw.Best("loss", 3)``: also keep the three checkpoints with the lowest loss.

    ``mode="max"`` keeps those with the highest. The metric is a number in the ``metadata`` that is given to ``save``.
    """

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"


def best_option(given: Any) -> tuple[Best, str] | None:
    """The value of ``keep_best``, and the same as text for the engine's options."""
    if given is None:
        return None
    if isinstance(given, str) and (found := _BEST.fullmatch(given)):  # as an options file has it
        given = (found[3], int(found[2]), found[1])
    wrong = f"keep_best is {given!r}; give a metric and how many to keep: ('loss', 3), or sw.Best('accuracy', 3, 'max')"
    if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
        raise UsageError(wrong)
    best = Best(*given)
    whole = isinstance(best.count, int) and not isinstance(best.count, bool) and best.count > 0
    if not isinstance(best.metric, str) or not best.metric or not whole or best.mode not in ("min", "max"):
        raise UsageError(wrong)
    return best, f"{best.mode}:{best.count}:{best.metric}"


def encode_metadata(
    metadata: Mapping[str, Value] | None, best: Best | None = None
) -> tuple[dict[str, str], dict[str, float]]:
    """All metadata as strings, and the numbers among them."""
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


def decode_metadata(texts: Mapping[str, str], metrics: Mapping[str, float]) -> dict[str, Value]:
    """The metadata as they were passed to save()."""
    return {name: _value(text) if name in metrics else text for name, text in texts.items()}


def _number(name: str, value: Any) -> tuple[str, float]:
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")):
        return ("true" if value else "false"), float(bool(value))
    if isinstance(value, numbers.Integral):
        whole = int(value)
        try:
            return str(whole), float(whole)
        except ValueError:  # Python refuses to convert numbers with thousands of digits
            raise UsageError(f"metadata['{name}'] has too many digits; put it into the state") from None
        except OverflowError:
            return str(whole), math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):  # a Fraction may not fit
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
