"""Runs trainer_cases.py, kills it, runs it again, and compares the ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import slackwater as sw
import torch
from docs_server import Server
from support import same

SCRIPT = str(Path(__file__).with_name("trainer_cases.py"))


class Runs:
    """Trainings of one test, each in a directory of its own."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server, self._directory = server, directory

    def directory(self, name: str) -> Path:
        found = self._directory / name
        found.mkdir(exist_ok=True)
        return found

    def run(self, where: Path, case: str, *options: str, ranks: int | None = None, kill_at: int | None = None) -> str:
        """What it wrote. It must end well, or as it was told to be killed."""
        codes, output = self._server.run(SCRIPT, case, *options, directory=where, ranks=ranks, kill_at=kill_at)
        assert set(codes) == {0 if kill_at is None else -signal.SIGKILL}, output
        return output

    def refused(self, where: Path, case: str, *options: str) -> str:
        codes, output = self._server.run(SCRIPT, case, *options, directory=where)
        assert codes == [1], output
        return output

    def ends(self, case: str, *options: str, kills: tuple[int, ...], ranks: int | None = None) -> list[list[Any]]:
        """The end of a run that was not interrupted, and that of one that was."""
        found = []
        for name, steps in (("whole", ()), ("killed", kills)):
            where = self.directory(name)
            for step in steps:
                self.run(where, case, *options, ranks=ranks, kill_at=step)
                assert sw.open(where / "run").step == step
            spoiled = tuple(option for option in options if name == "killed" or not option.startswith("early"))
            self.run(where, case, *spoiled, ranks=ranks)
            found.append([end_of(where, rank) for rank in range(ranks or 1)])
        return found


def end_of(where: Path, rank: int = 0) -> tuple[Any, dict[int, list[Any]]]:
    """Everything at the end, and the samples of each step."""
    order: dict[int, list[Any]] = {}
    before = None
    for line in (where / f"order-{rank}.jsonl").read_text().splitlines():
        step, ids = json.loads(line)
        if step != before:
            order[step] = []
        order[step].append(ids)
        before = step
    return torch.load(where / f"end-{rank}.pt", weights_only=False), order


def assert_same(one: list[Any], other: list[Any]) -> None:
    for (end, order), (end_again, order_again) in zip(one, other, strict=True):
        assert order == order_again, "the same samples in each step"
        for key in end:
            assert same(end[key], end_again[key]), key


def steps_of(where: Path) -> list[int]:
    """The committed steps."""
    return sorted(int(path.parent.name[5:15]) for path in (where / "run").glob("step-*/manifest.json"))
