"""Tiers: the places where a run keeps its checkpoints, from ``path`` and ``tiers`` of a Checkpointer.

The engine's table of tier options decides what a tier can be told (``_core.tier_option_table``); this file only turns
Python values into the form that the table takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from typing import Any

from .errors import PermissionDeniedError, UsageError
from .state.names import an

logger = logging.getLogger("slackwater")


@dataclasses.dataclass(frozen=True)
class Tier:
    """A place below the first one, to which committed checkpoints are copied in the background.

    ``location`` is a directory, or ``s3://bucket/prefix``. Steps divisible by ``every`` are copied there. ``keep`` and
    ``keep_every`` say what stays, as for a Checkpointer. ``bandwidth`` limits the bytes per second of each rank
    (``"200MiB"``; 0: no limit). When more than ``backlog`` checkpoints wait, the oldest are skipped and counted.
    The rest says how to reach an object store, beyond the environment and the AWS profile files.
    """

    location: str | os.PathLike[str]
    every: int = 1
    keep: int = 2
    keep_every: int | None = None
    bandwidth: int | str = 0
    backlog: int = 4
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    path_style: bool = False

    def settings(self, location: bool = True) -> list[tuple[str, str]]:
        """Names and texts for the engine; without the location if that is given on its own."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del given["location"]
        if location:
            given["location"] = place(self.location)
        return [(name, _text(name, value)) for name, value in given.items() if value is not None]


@dataclasses.dataclass(frozen=True)
class Places:
    """Tier 0, the tiers below it, and what the first tier says about options of the Checkpointer."""

    path: str
    lower: list[Tier]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    staged_for: str = ""  # the object store, if ``path`` is only where checkpoints wait for it


def find_places(path: Any, tiers: Sequence[Any] | None, keep: int, keep_every: int | None) -> Places:
    if isinstance(tiers, (str, bytes, os.PathLike, Tier)):
        raise UsageError("tiers is a list, such as [sw.Tier('/shared/run', every=50)]")
    lower = [_tier(tier) for tier in tiers or ()]
    if path is None:
        if not lower:
            raise UsageError("give a directory such as 'runs/gpt' as path, or tiers")
        if is_object_location(lower[0].location):
            return _staged(lower)
        first = lower.pop(0)
        return Places(directory(first.location), lower, {"keep": first.keep, "keep_every": first.keep_every})
    if not is_object_location(path):
        return Places(directory(path), lower)
    return _staged([Tier(path, keep=keep, keep_every=keep_every), *lower])


def _staged(lower: list[Tier]) -> Places:
    """Only an object store was given. Checkpoints are written to a directory, and stay there until they are copied."""
    location = str(lower[0].location)
    return Places(staging_directory(location), lower, {"keep": 1, "keep_every": None}, staged_for=location)


_announced: set[str] = set()  # of this process


def announce_staging(places: Places) -> None:
    """Say once, where users see it, which disk fills up."""
    if not places.staged_for or places.staged_for in _announced:
        return
    _announced.add(places.staged_for)
    logger.warning(
        "checkpoints for %s are written to '%s' first; set SLACKWATER_STAGING to use another disk",
        places.staged_for,
        places.path,
    )


def is_object_location(location: Any) -> bool:
    return isinstance(location, str) and location.startswith("s3://")


def staging_directory(location: str) -> str:
    """Where checkpoints for an object store are written first: the same directory at every start on this machine."""
    base = os.environ.get("SLACKWATER_STAGING") or _default_staging()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", location.removeprefix("s3://")).strip("-")[:80]
    return os.path.join(os.path.abspath(base), f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:8]}")


def _default_staging() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return os.path.join(tempfile.gettempdir(), f"slackwater-{user}")


def _make_private(directory: str) -> None:
    """The directory belongs to this user alone: anybody may make one of this name in a temporary directory first."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionDeniedError(
            f"'{directory}' belongs to somebody else, so no checkpoint is written there; set SLACKWATER_STAGING to a "
            "directory of your own",
            path=directory,
        )
    if found.st_mode & 0o077:
        os.chmod(directory, 0o700)


def read_options_file(file: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of a Checkpointer that an options file holds (docs/tiers.md)."""
    try:
        with open(file, encoding="utf-8") as stream:
            given = json.load(stream)
    except OSError as error:
        raise UsageError(f"the options file '{os.fspath(file)}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the options file '{os.fspath(file)}' is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise UsageError(f"the options file '{os.fspath(file)}' holds {an(type(given).__name__)}, not a JSON object")
    tiers = given.get("tiers", [])
    if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
        raise UsageError(f"'tiers' in the options file '{os.fspath(file)}' takes a list of objects")
    try:
        given["tiers"] = [Tier(**tier) for tier in tiers]
    except TypeError as error:
        raise UsageError(f"a tier in the options file '{os.fspath(file)}' is wrong: {error}") from None
    return given


def place(location: Any) -> str:
    return str(location) if is_object_location(location) else directory(location)


def directory(path: Any) -> str:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"path is {an(type(path).__name__)}; give the directory as a text or a pathlib.Path") from None
    if not text:
        raise UsageError("path is empty; give a directory such as 'runs/gpt'")
    if "://" in text:
        raise UsageError(f"'{text}' is neither a directory nor s3://bucket/prefix")
    return os.path.abspath(os.path.expanduser(text))  # a later chdir() must not move it


def make_parents(places: Places) -> None:
    """Makes the parent directories. The engine makes the directory itself."""
    parent = os.path.dirname(places.path)
    try:
        if places.staged_for and not os.environ.get("SLACKWATER_STAGING"):
            _make_private(parent)
        else:
            os.makedirs(parent, exist_ok=True)
    except PermissionDeniedError:
        raise
    except OSError as error:
        # The engine says what is wrong.
        logger.debug("the directories above '%s' cannot be made: %s", places.path, error)


def _tier(tier: Any) -> Tier:
    if isinstance(tier, Tier):
        return tier
    if isinstance(tier, (str, os.PathLike)):
        return Tier(tier)
    raise UsageError(f"a tier is {an(type(tier).__name__)}; give sw.Tier(location, ...)")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, str)):
        return str(value)
    raise UsageError(f"{name} of a tier is {an(type(value).__name__)}, which no option takes")
