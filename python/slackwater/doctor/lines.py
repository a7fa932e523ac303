"""What a check found, and how it is reported: one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Literal

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]
_WORST_FIRST: tuple[Status, ...] = ("FAIL", "WARN", "PASS", "SKIP")
_SENTENCE = 300  # characters of an exception that are worth a line


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``figure`` says what was found, or why a check was skipped. ``remedy`` is what the user can do about it."""

    status: Status
    figure: str
    threshold: str = ""
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    check: str
    outcome: Outcome
    rank: int = 0

    def as_json(self) -> str:
        return json.dumps({"section": "torch", "check": self.check, **vars(self.outcome), "rank": self.rank})


def sentence(error: BaseException) -> str:
    """One line that names the exception."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= _SENTENCE else text[: _SENTENCE - 3] + "..."


def worst(outcomes: dict[int, Outcome]) -> Outcome:
    """Of several ranks: the outcome of the lowest rank that has the worst status, which it is named in."""
    status = min((outcome.status for outcome in outcomes.values()), key=_WORST_FIRST.index)
    rank, found = next((rank, outcome) for rank, outcome in sorted(outcomes.items()) if outcome.status == status)
    if status in ("PASS", "SKIP"):
        return found
    return dataclasses.replace(found, figure=f"rank {rank}: {found.figure}")


class Printer:
    """Keeps standard output for itself: whatever else writes to it, C code too, reaches standard error instead."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def print(self, line: Line) -> None:
        """At once, so that the reader sees a check when it ends."""
        rest = memoryview(f"{line.as_json()}\n".encode())
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
