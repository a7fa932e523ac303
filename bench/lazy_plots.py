"""Draws the figures of docs/benchmarks.md from the JSON of `slackwater_bench lazy`. Plain SVG, nothing to install.

python bench/lazy_plots.py lazy.json docs/figures
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

STRATEGIES = {  # key: (label, colour)
    "blocking": ("blocking (model of DeepSpeed's default)", "#8c8c8c"),
    "copy_then_flush": ("copy, then flush (model of CheckFreq)", "#c28e0e"),
    "chunked": ("chunks in parallel (model of TorchSnapshot)", "#7a5195"),
    "lazy_host_fence": ("Slackwater, host fence", "#5aa9e6"),
    "lazy_device_fence": ("Slackwater, device fence", "#00589b"),
}
PAPER = {
    "blocking": "DeepSpeed",
    "copy_then_flush": "async copy",
    "chunked": "TorchSnapshot",
    "lazy_device_fence": "DataStates-LLM",
}
DISKS = {"paper": "at the paper's flush bandwidth", "this_machine": "at this disk's limit"}
INK, PALE = "#222222", "#dddddd"


@dataclass
class Drawing:
    """SVG elements on a white sheet; `save` writes them."""

    width: int
    height: int
    elements: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = PALE, width: float = 1) -> None:
        self.elements.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str, title: str) -> None:
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str, dashed: bool = False) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4" opacity="0.7"' if dashed else ""
        self.elements.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashed:
            self.elements += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{weight}>'
            f"{escape(words)}</text>"
        )

    def save(self, path: Path) -> None:
        body = "\n".join(self.elements)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'font-family="Helvetica, Arial, sans-serif">\n'
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>\n{body}\n</svg>\n'
        )
        print(path)


@dataclass
class Panel:
    """A rectangle of a drawing with an axis on its left; `y` places a value."""

    drawing: Drawing
    left: float
    top: float
    width: float
    height: float
    low: float
    high: float
    logarithmic: bool = False

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def y(self, value: float) -> float:
        scale: Callable[[float], float] = math.log10 if self.logarithmic else float
        value = min(max(value, self.low), self.high)
        return self.bottom - self.height * (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))

    def axis(self, title: str, ticks: Sequence[float], unit: str) -> None:
        self.drawing.text(self.left, self.top - 12, title, bold=True)
        for tick in ticks:
            self.drawing.line(self.left, self.y(tick), self.left + self.width, self.y(tick))
            self.drawing.text(self.left - 6, self.y(tick) + 4, f"{tick:g} {unit}", anchor="end", size=11)


def legend(drawing: Drawing, keys: Sequence[str], top: float, dashed: str = "") -> None:
    for index, key in enumerate(keys):
        label, colour = STRATEGIES[key]
        x, y = 70 + (index % 2) * 370, top + (index // 2) * 18
        drawing.bar(x, y - 9, 12, 10, colour, label)
        drawing.text(x + 18, y, label)
    if dashed:
        y = top + (len(keys) + 1) // 2 * 18
        drawing.curve([(70, y - 4), (82, y - 4)], INK, dashed=True)
        drawing.text(88, y, dashed)


def draw_blocked(rows: list[dict[str, Any]], path: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    keys = [key for key in STRATEGIES if any(row["strategy"] == key for row in rows)]
    drawing = Drawing(820, 640)
    for number, (disk, name) in enumerate(DISKS.items()):
        title = f"Blocked time per checkpoint, one at every iteration, {name}"
        panel = Panel(drawing, 70, 40 + number * 280, 730, 200, 1e-3, 100, logarithmic=True)
        panel.axis(title, [0.001, 0.01, 0.1, 1, 10, 100], "s")
        slot = panel.width / len(models)
        width = slot / (len(keys) + 1.5)
        for place, model in enumerate(models):
            middle = panel.left + (place + 0.5) * slot
            drawing.text(middle, panel.bottom + 18, model, anchor="middle")
            for index, key in enumerate(keys):
                (row,) = (r for r in rows if (r["model"], r["disk"], r["strategy"]) == (model, disk, key))
                x = middle + (index - len(keys) / 2) * width
                top = panel.y(row["blocked_s"])
                tip = f"{STRATEGIES[key][0]}, {model}: {row['blocked_s']:.3g} s"
                drawing.bar(x, top, width - 2, panel.bottom - top, STRATEGIES[key][1], tip)
                if key in PAPER:  # a tick at the paper's figure
                    mark = panel.y(row["paper"]["blocked_s"])
                    drawing.line(x - 1, mark, x + width - 1, mark, "#d1495b", 2.5)
    legend(drawing, keys, 575)
    drawing.line(440, 607, 452, 607, "#d1495b", 2.5)
    drawing.text(458, 611, "the paper's figure (checkpoint bytes / its GB/s)")
    drawing.save(path)


def draw_runs(rows: list[dict[str, Any]], iterations: int, path: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    keys = [key for key in STRATEGIES if any(row["strategy"] == key for row in rows)]
    intervals = sorted({row["every"] for row in rows if row["every"]}, reverse=True)
    drawing = Drawing(820, 60 + 250 * len(models) + 90)
    for line, model in enumerate(models):
        ours = [row for row in rows if row["model"] == model]
        (plain,) = (row["train_s"] for row in ours if row["strategy"] == "none")
        # The models that wait for the disk would squeeze everything else; what leaves the panel is in the table.
        high = 4 * plain
        for column, (disk, name) in enumerate(DISKS.items()):
            panel = Panel(drawing, 70 + column * 400, 50 + line * 250, 320, 170, 0, high)
            panel.axis(f"{model}, {iterations} iterations, {name}", [round(high * k / 4) for k in range(5)], "s")
            place = {every: panel.left + (i + 0.5) * panel.width / len(intervals) for i, every in enumerate(intervals)}
            for every, x in place.items():
                drawing.text(x, panel.bottom + 16, str(every), anchor="middle", size=11)
            drawing.line(panel.left, panel.y(plain), panel.left + panel.width, panel.y(plain), INK)
            for key in keys:
                points = {row["every"]: row for row in ours if row["strategy"] == key and row["disk"] == disk}
                colour = STRATEGIES[key][1]
                if key in PAPER and disk == "paper":
                    drawing.curve([(place[e], panel.y(points[e]["paper_s"])) for e in intervals], colour, dashed=True)
                drawing.curve([(place[e], panel.y(points[e]["train_s"])) for e in intervals], colour)
        drawing.text(70, panel.bottom + 34, "iterations from checkpoint to checkpoint; black: no checkpoints", size=11)
    legend(drawing, keys, drawing.height - 60, "dashed: the paper's figure")
    drawing.save(path)


def draw_pool(rows: list[dict[str, Any]], path: Path) -> None:
    drawing = Drawing(820, 330)
    high = max(1.0, math.ceil(max(max(row["blocked_s"], row["predicted_s"]) for row in rows)))
    for column, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        ours = [row for row in rows if row["model"] == model]
        panel = Panel(drawing, 70 + column * 400, 50, 320, 190, 0, high)
        title = f"{model}, a checkpoint every {ours[0]['every']} iterations"
        panel.axis(title, [round(high * k / 4, 2) for k in range(5)], "s")
        place = [panel.left + (i + 0.5) * panel.width / len(ours) for i in range(len(ours))]
        for x, row in zip(place, ours, strict=True):
            share = row["pool_share"]
            words = f"1/{1 / share:.0f}" if share < 1 else f"{share:g}"
            drawing.text(x, panel.bottom + 16, words, anchor="middle", size=11)
        drawing.curve([(x, panel.y(r["predicted_s"])) for x, r in zip(place, ours, strict=True)], INK, dashed=True)
        colour = STRATEGIES["lazy_device_fence"][1]
        drawing.curve([(x, panel.y(r["blocked_s"])) for x, r in zip(place, ours, strict=True)], colour)
    drawing.text(70, 280, "pool / state. Blocked time per checkpoint, Slackwater with device fence", size=11)
    drawing.text(70, 298, "dashed: (state - pool) / flush bandwidth - (forward + backward)", size=11)
    drawing.save(path)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: lazy_plots.py RESULTS.json FOLDER")
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    figures = json.loads(source.read_text())
    target.mkdir(parents=True, exist_ok=True)
    if figures["blocked"]:
        draw_blocked(figures["blocked"], target / "lazy-blocked.svg")
    if figures["train"]:
        draw_runs(figures["train"], figures["iterations"], target / "lazy-runs.svg")
    if figures["pool"]:
        draw_pool(figures["pool"], target / "lazy-pool.svg")


if __name__ == "__main__":
    main()
