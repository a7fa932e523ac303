"""Names of tensors, made from where they stand in the state.

A name is the path joined with dots: ``model.layers.0.weight``. Two different paths never give the same name:

* ``.`` and ``%`` inside a key are written ``%2E`` and ``%25``; a text key that looks like a number starts with its
  percent code (``"0"`` is ``%30``, the number 0 is ``0``); keys of other types are written ``%(...)``.
* A dict that holds nothing but tensors under text keys (a ``state_dict()``) keeps its keys as they are, dots and all:
  nothing can collide there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

WRAPPERS_ANYWHERE = ("_orig_mod", "_checkpoint_wrapped_module")
WRAPPER_IN_FRONT = "module"

_SPECIAL = re.compile("[.%\ud800-\udfff]")
_NUMBER = re.compile(r"-?[0-9]+\Z")
_RESERVED = ("__metadata__", "__slackwater")


def _code(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"%{point:02X}" if point < 256 else f"%u{point:04X}"


@functools.lru_cache(maxsize=10_000)  # the same few keys come thousands of times
def _text_segment(key: str) -> str:
    if not key:
        return "%"
    if _NUMBER.match(key):
        return f"%{ord(key[0]):02X}{key[1:]}"
    return _SPECIAL.sub(_code, key)


def segment(key: Any, describe: Callable[[Any], str] = repr) -> str:
    """One key as a part of a name. ``describe`` gives exact text for keys that are neither text nor small numbers."""
    if type(key) is str:
        return _text_segment(key)
    if type(key) is int and -(1 << 63) <= key < 1 << 63:
        return str(key)
    return f"%({_SPECIAL.sub(_code, describe(key))})"


def an(noun: str) -> str:
    """With its article."""
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def join(prefix: str, part: str) -> str:
    if prefix:
        return f"{prefix}.{part}"
    if part.startswith(_RESERVED):
        return f"%5F{part[1:]}"
    return part


def is_clean(key: Any) -> bool:
    """Whether a key may stand in a name as it is, provided that no other path can lead there."""
    return (
        type(key) is str
        and key != ""
        and not key.startswith(_RESERVED)
        and "%" not in key
        and (key.isascii() or _SPECIAL.sub(_code, key).count("%") == key.count("."))
    )


def stands_for_itself(key: Any) -> bool:
    """Whether ``namer`` would give this key as it is, whatever stands beside it: most keys of an optimizer's state."""
    kind = type(key)
    return (kind is str and key.isidentifier() and key.isascii()) or (kind is int and 0 <= key < 1 << 63)


def namer(
    mapping: Mapping[Any, Any],
    prefix: str,
    holds_more_than_tensors: Callable[[Any], bool],
    describe: Callable[[Any], str] = repr,
) -> Callable[[Any], str]:
    """How the children of a dict are named. ``holds_more_than_tensors(value)`` is asked only where it matters."""
    segments = {}
    simple = True
    for key in mapping:
        part = segment(key, describe)
        segments[key] = part
        if part is not key and part != key:
            simple = False
    if not simple and all(is_clean(key) for key in mapping) and not any(map(holds_more_than_tensors, mapping.values())):
        segments = dict(zip(mapping, strip_wrappers(list(mapping)), strict=True))
    return lambda key: join(prefix, segments[key])


def strip_wrappers(keys: Sequence[str]) -> Sequence[str]:
    """Keys of a state_dict() without what torch.compile, DDP and others add; unchanged where two would collide."""
    if not keys:
        return keys
    stripped: Sequence[str] = keys
    if any(wrapper in key for key in keys for wrapper in WRAPPERS_ANYWHERE):
        stripped = [".".join(part for part in key.split(".") if part not in WRAPPERS_ANYWHERE) for key in keys]
    front = WRAPPER_IN_FRONT + "."
    while all(key.startswith(front) for key in stripped):
        stripped = [key[len(front) :] for key in stripped]
    if stripped is keys or len(set(stripped)) != len(keys) or not all(stripped):
        return keys
    return stripped


def canonical(keys: list[Any]) -> Sequence[Any]:
    """Keys of any dict, without wrappers if it may be a state_dict()."""
    return strip_wrappers(keys) if all(type(key) is str for key in keys) else keys


class Globs:
    """Name patterns of one option, such as ``only=["model.*", "epoch"]``; parents select children."""

    def __init__(self, option: str, globs: str | Iterable[str]) -> None:
        self.option = option
        self.globs = [globs] if isinstance(globs, str) else list(globs)
        self._each = {glob: _compile(option, glob) for glob in self.globs}
        self._any = re.compile("|".join(f"(?:{regex.pattern})" for regex in self._each.values()) or r"(?!)")
        self._unmatched = dict(self._each)

    def __call__(self, name: str) -> bool:
        if not self._any.match(name):
            return False
        if self._unmatched:
            self._unmatched = {glob: regex for glob, regex in self._unmatched.items() if not regex.match(name)}
        return True

    def check(self, known: Iterable[str]) -> None:
        """Raise if a pattern has matched none of the names it was asked about. ``known`` are names to suggest."""
        for glob in self._unmatched:
            raise no_match(f"{self.option}={glob!r}", glob, known)

    def without(self, found: Iterable[str]) -> list[str]:
        """Patterns that match none of these."""
        left = dict(self._each)
        for name in found:
            if not left:
                break
            left = {glob: regex for glob, regex in left.items() if not regex.match(name)}
        return list(left)


class Pattern:
    """Which names a caller asked for: ``only`` and ``exclude``, each one glob or several."""

    def __init__(self, only: str | Iterable[str] | None = None, exclude: str | Iterable[str] | None = None) -> None:
        self.only = None if only is None else Globs("only", only)
        self.exclude = None if exclude is None else Globs("exclude", exclude)
        self.everything = self.only is None and self.exclude is None
        self.asked: dict[str, None] = {}

    def __call__(self, name: str) -> bool:
        if self.everything:
            return True
        self.asked[name] = None
        wanted = self.only is None or self.only(name)
        return not (self.exclude is not None and self.exclude(name)) and wanted

    def excludes(self, name: str) -> bool:
        return self.exclude is not None and self.exclude(name)

    def check(self, known: Iterable[str]) -> None:
        """After all names were asked about: each pattern has matched something, or it is an error."""
        known = [*known, *self.asked]
        for globs in (self.only, self.exclude):
            if globs is not None:
                globs.check(known)


def _compile(option: str, glob: Any) -> re.Pattern[str]:
    import fnmatch

    from ..errors import UsageError

    if not isinstance(glob, str):
        raise UsageError(f"{option}=: a name pattern is a text such as 'model.*', not {type(glob).__name__}")
    # fnmatch ends its pattern with \Z; "model" is to select "model.weight" as well.
    return re.compile(rf"(?:{fnmatch.translate(glob)}|{fnmatch.translate(glob + '.*')})")


# Names that were meant

_SUGGESTED = 3
_COMPARED = 20_000  # names; a comparison takes microseconds


def no_match(what: str, glob: str, known: Iterable[str]) -> Exception:
    from ..errors import UsageError

    return UsageError(f"{what} matches nothing that is there; {suggest(glob, known)}")


def suggest(glob: str, known: Iterable[str]) -> str:
    """Half a sentence: names near to a pattern, or else what there is at the top."""
    import difflib

    known = list(dict.fromkeys(known))
    tops = list(dict.fromkeys(name.partition(".")[0] for name in known))
    stem = glob.strip("*").strip(".")
    depth = stem.count(".") + 1
    parents = (".".join(name.split(".")[:depth]) for name in known[:_COMPARED])
    candidates = list(dict.fromkeys([*tops, *parents, *known[:_COMPARED]]))
    near = difflib.get_close_matches(stem, candidates, _SUGGESTED)
    if near:
        return f"did you mean {' or '.join(repr(name) for name in near)}?"
    return f"there is {listing(tops)}"


def listing(items: Iterable[str], shown: int = 5) -> str:
    """The first few, and how many more."""
    found = list(items)
    text = ", ".join(f"'{name}'" for name in found[:shown])
    return text if len(found) <= shown else f"{text} and {len(found) - shown} more"
