"""What a restore did: one line in the log, a warning about what was left out, and a report with all names."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .. import _core
from ..errors import MismatchError, UsageError
from ..state.names import Pattern, listing, suggest
from .problems import Problems
from .rename import Renaming

logger = logging.getLogger("slackwater")


@dataclass(frozen=True)
class RestoreReport:
    """What the last ``Checkpointer.restore`` did. Names are those in the given state, unless stated otherwise."""

    step: int
    tensors: int  # restored
    total: int  # in the checkpoint, as far as this rank's state is concerned
    size_bytes: int  # read into this rank's state
    seconds: float
    restored: tuple[str, ...]  # tensors, plain values, and objects that have no tensors
    left_alone: tuple[str, ...]  # of the state: the checkpoint does not have it, or an optimizer of another class
    unused: tuple[str, ...]  # in the checkpoint, under its names there, and not in the state
    added: tuple[str, ...]  # of restored: plain values that the state did not have, and has now
    not_selected: tuple[str, ...]  # tensors of the checkpoint that only= and exclude= leave out
    new_parameters: tuple[str, ...]  # "optim: model.head.weight": the optimizer has no state for it yet
    dropped: tuple[str, ...]  # belonged to single ranks of another number of ranks
    renamed: tuple[tuple[str, str], ...]  # (name in the checkpoint, name in the state)
    damaged: tuple[str, ...]  # checkpoints that were passed over, and why
    _absent: tuple[str, ...] = field(default=(), repr=False)  # of left_alone: the checkpoint does not have it
    _other_class: tuple[str, ...] = field(default=(), repr=False)  # of left_alone: why optimizers are

    def log(self) -> None:
        logger.info(
            "restored %d of %d tensors of step %d, %s in %.1f s",
            self.tensors,
            self.total,
            self.step,
            size_text(self.size_bytes),
            self.seconds,
        )
        rest = []
        if self._absent:
            rest.append(f"not in the checkpoint, and left as they were: {listing(self._absent)}")
            if self.added:
                rest.append(f"the checkpoint has others, which are new keys of the state now: {listing(self.added)}")
        rest.extend(f"{text}, so it is left as it was" for text in self._other_class)
        if self.unused:
            rest.append(f"in the checkpoint, and not used: {listing(self.unused)}")
        if self.new_parameters:
            rest.append(f"parameters without optimizer state in the checkpoint: {listing(self.new_parameters)}")
        if rest:
            logger.warning("step %d was restored in part; %s", self.step, "; ".join(rest))


class ReportBuilder:
    """Counts what a restore will do, while it is planned."""

    def __init__(self, step: int, selected: Pattern, rename: Renaming, problems: Problems) -> None:
        self._step = step
        self._selected = selected
        self._rename = rename
        self._problems = problems
        self._tensors: dict[str, None] = {}  # of the checkpoint, by their names there
        self._tops: list[str] = []
        self._renamed: dict[str, str] = {}
        self._restored: dict[str, None] = {}
        self._added: dict[str, None] = {}
        self._read: dict[str, int] = {}  # bytes of each tensor that come into this state

    def checkpoint(self, tops: Iterable[str], tensors: Iterable[str], renamed: dict[str, str]) -> None:
        """Notes what the checkpoint has."""
        self._tops = list(tops)
        self._tensors = dict.fromkeys(tensors)
        self._renamed = renamed

    def add(self, name: str, new: bool = False) -> None:
        """A value or an object of the state is restored. ``new``: the state did not have it."""
        self._restored[name] = None
        if new:
            self._added[name] = None

    def add_tensor(self, info: _core.TensorInfo, box: Sequence[int] | None) -> None:
        """A tensor of the checkpoint is restored, or a box of it with this shape."""
        name = info.name
        self._restored[self._rename(name) if self._rename else name] = None
        if box is not None:
            itemsize = info.size_bytes // max(1, math.prod(info.shape))
            self._read[name] = self._read.get(name, 0) + math.prod(box) * itemsize
        else:
            self._read[name] = 0 if info.alias_of in self._read else info.size_bytes

    def check_patterns(self) -> None:
        """Checks that each pattern has matched something in the checkpoint or in the state."""
        self._selected.check([*self._tops, *self._tensors])

    def refuse_nothing(self, modules: Iterable[str]) -> None:
        """A restore that restores nothing is a mistake: training would go on from random weights. ``modules``: the
        names of the modules in the state."""
        done = {**self._restored, **dict.fromkeys(self._problems.dropped)}
        if self._problems.of_other_class and not done:
            raise MismatchError(
                f"nothing of the checkpoint of step {self._step} can be restored: "
                f"{'; '.join(self._problems.of_other_class.values())}; leave the optimizer out to start it anew"
            )
        self._check_options({**done, **dict.fromkeys(self._problems.of_other_class)})
        missing = self._problems.all_missing
        spare = [name for name in self._tensors if name not in self._read and self._wanted(name)]
        if not missing or not spare:
            return
        prefixes = [f"{name}." for name in modules]
        lost = [prefix[:-1] for prefix in prefixes if any(name.startswith(prefix) for name in missing)]
        found = any(name.startswith(prefix) for prefix in prefixes for name in done)
        if self._read and (found or not lost):
            return
        tops = dict.fromkeys(name.partition(".")[0] for name in spare)
        here = lost or list(dict.fromkeys(name.partition(".")[0] for name in missing))
        raise MismatchError(
            f"nothing of {listing(here)} is in the checkpoint of step {self._step}, which has {listing(tops)}: use the "
            f"keys that it was saved with, or rename={{'{next(iter(tops))}': '{here[0]}'}}; only= restores other parts"
        )

    def _check_options(self, done: dict[str, None]) -> None:
        only = self._selected.only
        for glob in only.without(done) if only is not None else []:
            raise UsageError(
                f"only={glob!r} restores nothing: the checkpoint of step {self._step} and the given state have nothing "
                f"of that name in common; {suggest(glob, done or self._tops)}"
            )
        if only is not None and not only.globs:
            raise UsageError("only=[] selects nothing; leave it out to restore everything")
        if any(map(self._selected, self._renamed.values())):
            for rule in self._rename.unrestored(self._renamed, done):
                raise UsageError(f"rename={{{rule}}} restores nothing: the given state has no such names")

    def _wanted(self, saved: str) -> bool:
        return self._selected.everything or self._selected(self._rename(saved))

    def build(self, seconds: float, damaged: Iterable[str]) -> RestoreReport:
        return RestoreReport(
            step=self._step,
            tensors=len(self._read),
            total=len(self._tensors | dict.fromkeys(self._read)),
            size_bytes=sum(self._read.values()),
            seconds=seconds,
            restored=tuple(self._restored),
            left_alone=self._problems.left_alone,
            unused=self._problems.all_unused,
            added=tuple(self._added),
            not_selected=tuple(name for name in self._tensors if not self._wanted(name)),
            new_parameters=self._problems.new_parameters,
            dropped=self._problems.dropped,
            renamed=tuple(self._renamed.items()),
            damaged=tuple(damaged),
            _absent=self._problems.all_absent,
            _other_class=tuple(self._problems.of_other_class.values()),
        )


def size_text(size_bytes: int) -> str:
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
