"""Arguments: what a caller gave, checked and in the form that it is needed in."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from .errors import UnknownOptionError, UsageError
from .state.names import an

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def checks_options(of: str) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorator. If a call gets an option that its signature does not have, the error names the nearest one. Python's
    own error does that only from 3.13 on. ``of``: the name of the call, as users write it."""

    def decorate(call: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        known = [name for name in inspect.signature(call).parameters if name != "self"]

        @functools.wraps(call)
        def checked(*positional: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
            for name in options:
                if name not in known:
                    raise UnknownOptionError(f"unknown option '{name}' of {of}; {_nearest(name, known, of)}")
            return call(*positional, **options)

        return checked

    return decorate


def _nearest(name: str, known: list[str], of: str) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"help({of}) lists them all"


def whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < least or number >= 1 << 63:
        shown = repr(value) if isinstance(value, (int, float, str, type(None))) else an(type(value).__name__)
        raise UsageError(f"{name} is {shown}; it is a whole number, {least} or more")
    return number


def listed(globs: Any) -> Any:
    """The patterns as a list, because they are used once for each checkpoint that is tried."""
    return globs if globs is None or isinstance(globs, (str, bool)) or not isinstance(globs, Iterable) else list(globs)


def seconds_or(default: float, value: Any) -> float:
    """The value as a number. What is not one gets the default here: the engine refuses it, and says what it takes."""
    try:
        return default if value is None else float(value)
    except (TypeError, ValueError):
        return default


def option_text(name: str, value: Any) -> str:
    """The value of an option in the form that the engine's tables take."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6f}"
    try:
        return str(operator.index(value))
    except TypeError:
        raise UsageError(f"{name} is {an(type(value).__name__)}; expected a number, text or bool") from None
