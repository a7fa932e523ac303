"""Tiers: the places where a run keeps its checkpoints, from ``path`` and ``tiers`` of a Checkpointer.

The engine decides what a tier can be told (``_core.tier_option_table``), which tier can be the first, and what stands
in an options file. This file turns Python values into the form that the engine takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from . import _core
from .arguments import checks_options, option_text
from .errors import PermissionDeniedError, UsageError
from .ranks.transport import Ranks, Transport, distributed
from .state.names import an

logger = logging.getLogger("slackwater")


@dataclasses.dataclass(frozen=True)
class Tier:
    """A place below the first one, to which committed checkpoints are copied in the background.

    ``location`` is a directory, or ``s3://bucket/prefix``. Steps divisible by ``every`` are copied there. ``keep`` and
    ``keep_every`` say what stays, as for a Checkpointer. ``bandwidth`` limits the bytes per second of each rank
    (``"200MiB"``; 0: no limit). When more than ``backlog`` checkpoints wait, the oldest are skipped and counted.
    ``endpoint`` to ``path_style`` say how to reach an object store, beyond the environment and the AWS profile files.
    ``node_local`` is for a first tier that takes the place of ``path``: another directory on each node.
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
    node_local: bool = False

    def settings(self, location: bool = True) -> list[tuple[str, str]]:
        """Names and texts for the engine; without the location if that is given on its own."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del given["location"]
        if location:
            given["location"] = place(self.location)
        return [(name, option_text(f"{name} of a tier", value)) for name, value in given.items() if value is not None]


Tier.__init__ = checks_options("sw.Tier")(Tier.__init__)  # type: ignore[method-assign]


@dataclasses.dataclass(frozen=True)
class Places:
    """Tier 0 with its options, and the tiers below it."""

    path: str
    lower: list[Tier]
    every: int
    keep: int
    keep_every: int | None
    node_local: bool
    staged_for: str | None = None  # only this object store was given; path is where checkpoints wait for it

    def node_local_with(self, ranks: Ranks, transport: Transport) -> bool:
        """Whether each node has a directory of its own, and that the ranks have what they need for that."""
        world = ranks.world or 1
        several_nodes = world > 1 and ranks.local_ranks != world
        staged = self.staged_for is not None and several_nodes
        if ranks.store is not None or world == 1:
            return self.node_local or staged
        if self.node_local:
            what = "node_local=True needs"
        elif staged and ranks.local_ranks is not None:
            what = f"with ranks on several nodes, each stages its part for '{self.staged_for}', which needs"
        else:
            return False
        remedy = "call init_process_group() first, with a TCPStore"
        if transport == "directory":
            remedy = "leave out coordinator='directory'"
        elif distributed() is not None:
            remedy = "use a TCPStore, and if you give rank= and world=, also coordinator='torch'"
        raise UsageError(f"{what} the store of torch.distributed, because the nodes share no directory; {remedy}")


def find_places(
    path: Any, tiers: Sequence[Any] | None, *, every: int, keep: int, keep_every: int | None, node_local: bool
) -> Places:
    if isinstance(tiers, (str, bytes, os.PathLike, Tier)):
        raise UsageError("tiers is a list, such as [sw.Tier('/shared/run', every=50)]")
    lower = [_tier(tier) for tier in tiers or ()]
    if path is None:
        if not lower:
            raise UsageError("give a directory such as 'runs/gpt' as path, or tiers")
        if is_object_location(lower[0].location):
            lower[0] = dataclasses.replace(
                lower[0],
                keep=_either("keep", keep, lower[0].keep, default=2),
                keep_every=_either("keep_every", keep_every, lower[0].keep_every, default=None),
            )
            return _staged(lower, every, node_local)
        first = lower.pop(0)
        # Steps that `every` leaves out are not saved at all. The engine says what else a first tier cannot have.
        _core.check_first_tier(dataclasses.replace(first, every=1).settings())
        return Places(
            directory(first.location),
            lower,
            _either("every", every, first.every, default=1),
            _either("keep", keep, first.keep, default=2),
            _either("keep_every", keep_every, first.keep_every, default=None),
            bool(node_local or first.node_local),
        )
    if not is_object_location(path):
        return Places(directory(path), lower, every, keep, keep_every, bool(node_local))
    return _staged([Tier(path, keep=keep, keep_every=keep_every), *lower], every, node_local)


def _staged(lower: list[Tier], every: int, node_local: bool) -> Places:
    """Only an object store was given. Checkpoints are written to a directory, and stay there until they are copied."""
    location = str(lower[0].location)
    if not re.match("s3://[^/]", location):
        raise UsageError(f"'{location}' names no bucket; give s3://bucket/prefix")
    return Places(staging_directory(location), lower, every, 1, None, bool(node_local), location)


def _either(name: str, given: Any, of_tier: Any, default: Any) -> Any:
    """What was given to the Checkpointer, or to the first tier."""
    if given != default and of_tier not in (default, given):
        raise UsageError(f"{name} is given twice: {given}, and {of_tier} of the first tier")
    return of_tier if given == default else given


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
    return isinstance(location, str) and _core.is_object_location(location)


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


def read_options_file(file: str | os.PathLike[str], arguments: Iterable[str]) -> dict[str, Any]:
    """The arguments of a Checkpointer that an options file holds (docs/tiers.md)."""
    known = {row["name"] for row in _core.option_table()} | {"path", "tiers"}
    options, tiers = _core.read_options_file(os.fsdecode(file), sorted(set(arguments) - known))
    return {**options, "tiers": [Tier(**tier) for tier in tiers]}


def place(location: Any) -> str:
    return str(location) if is_object_location(location) else directory(location)


def directory(path: Any) -> str:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"path is {an(type(path).__name__)}; give the directory as a text or a pathlib.Path") from None
    if not text:
        raise UsageError("path is empty; give a directory such as 'runs/gpt'")
    if "://" in text or text.startswith("s3:/"):
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
