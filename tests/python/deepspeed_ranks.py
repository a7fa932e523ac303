"""The other side of deepspeed_server.py: one server per test file, several ranks per call."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    codes: list[int]
    results: list[Any]  # by rank; None for one that did not end well
    logs: list[str]


class DeepSpeedRanks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("deepspeed_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, *, world: int = 1, well: bool = True, **request: Any) -> Outcome:
        out = self._folder / f"run-{next(self._numbers)}"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"world": world, "out": str(out), **request}) + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("["):  # what DeepSpeed prints at its import
            assert line, "the server has ended"
        codes = json.loads(line)
        results, logs = [], []
        for rank, code in enumerate(codes):
            results.append(json.loads(Path(f"{out}-{rank}.json").read_text()) if code == 0 else None)
            logs.append(Path(f"{out}-{rank}.log").read_text(errors="replace"))
        assert not well or not any(codes), "\n".join(logs)
        return Outcome(codes, results, logs)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
