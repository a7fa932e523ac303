"""Results of the benchmarks: statistics, the JSON all of them write, and the table made from it.

The C++ binary writes the same JSON (bench/harness.cpp); docs/benchmarks.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from typing import Any

CONFIDENCE = 0.90


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, linear between neighbours."""
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Narrowest pair of order statistics that holds the true median with at least 90 % probability.

    The whole range where there are too few samples for that.
    """
    ordered = sorted(samples)
    count = len(ordered)
    below, cut = 0.0, 0
    for k in range(count // 2):
        below += comb(count, k) / 2**count
        if below > (1 - CONFIDENCE) / 2:
            break
        cut = k + 1
    index = max(cut - 1, 0)
    return ordered[index], ordered[count - 1 - index]


@dataclass
class Line:
    """One figure, judged against `goal` (comparison, value) if there is one."""

    name: str
    unit: str
    samples: list[float]
    goal: tuple[str, float] | None = None

    def as_json(self) -> dict[str, Any]:
        low, high = median_interval(self.samples)
        entry: dict[str, Any] = {
            "name": self.name,
            "unit": self.unit,
            "median": median(self.samples),
            "low": low,
            "high": high,
            "p90": quantile(self.samples, 0.9),
            "verdict": self._verdict(low, high),
            "samples": self.samples,
        }
        if self.goal:
            entry["goal"] = {"comparison": self.goal[0], "value": self.goal[1]}
        return entry

    def _verdict(self, low: float, high: float) -> str:
        if not self.goal:
            return "-"
        met = self._meets(median(self.samples))
        one_sided = self._meets(low) == self._meets(high)
        return ("met" if met else "missed") + ("" if one_sided else ", narrowly")

    def _meets(self, value: float) -> bool:
        assert self.goal is not None
        comparison, limit = self.goal
        return value >= limit if comparison == ">=" else value <= limit


@dataclass
class Report:
    benchmark: str
    setup: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def write(self, path: Path) -> None:
        content = {"benchmark": self.benchmark, "setup": self.setup, "lines": [line.as_json() for line in self.lines]}
        path.write_text(json.dumps(content, indent=1) + "\n")


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def table(reports: Iterable[dict[str, Any]]) -> str:
    """The reports (as parsed from JSON) as one table for people."""
    header = ("", "median", "90 % interval", "p90", "unit", "goal", "verdict")
    rows: list[tuple[str, ...]] = []
    for report in reports:
        rows.append((report["benchmark"], *[""] * 6))
        for line in report["lines"]:
            goal = line.get("goal")
            rows.append(
                (
                    "  " + line["name"],
                    _number(line["median"]),
                    f"{_number(line['low'])} .. {_number(line['high'])}",
                    _number(line["p90"]),
                    line["unit"],
                    f"{goal['comparison']} {_number(goal['value'])}" if goal else "-",
                    line["verdict"],
                )
            )
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    right_aligned = {1, 2, 3, 5}

    def render(row: tuple[str, ...]) -> str:
        cells = [
            cell.rjust(w) if i in right_aligned else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([render(header), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(render, rows)])
