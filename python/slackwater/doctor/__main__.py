"""``python -m slackwater.doctor --dir DIR [--quick]``: one JSON object per check on standard output.

``slackwater doctor`` runs it, once per rank. Exit code 0 unless the doctor itself crashed. Files go to a temporary
directory below DIR, which is removed at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

from .children import Children
from .lines import Line, Outcome, Printer, Status, sentence
from .scratch import Scratch

_CHILDREN = 12  # the most that the table takes, on the CPU and on a GPU


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    printer = Printer()
    rank, local_rank, world = _number("RANK", 0), _number("LOCAL_RANK", 0), _number("WORLD_SIZE", 1)
    alone = world == 1
    prints = alone or rank == 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _look(options.dir)
        # Before torch is loaded: the process that removes it stays small.
        scratch = Scratch(options.dir) if prints or local_rank == 0 else None
        jobs = _load_torch()
    except Obstacle as obstacle:
        if prints:
            printer.print(obstacle.line)
        return 0
    children = Children()
    if scratch is not None:
        children.fork(_CHILDREN, jobs)  # no child may run what follows, its `finally` least of all
    try:
        from .runner import run  # which may use CUDA and threads

        where = None if scratch is None else scratch.path
        run(where, children, options.quick, options.only, printer.print, None if alone else (rank, local_rank))
    except KeyboardInterrupt:
        return 130
    finally:
        children.close()
        if scratch is not None:
            scratch.close()
    return 0


class Obstacle(Exception):
    """Why no check can run at all."""

    def __init__(self, check: str, status: Status, figure: str, remedy: str = "") -> None:
        super().__init__(figure)
        self.line = Line(check, Outcome(status, figure, "", remedy))


def _look(directory: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        raise Obstacle("version", "SKIP", "torch is not installed")
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        remedy = "give a directory that exists and can be written to"
        raise Obstacle("directory", "FAIL", f"'{directory}' is not a directory that can be written to", remedy)


def _load_torch() -> dict[str, Any]:
    """What children can be asked for. Whatever they would otherwise load, each for itself, is loaded here."""
    try:
        import torch._dynamo  # which the first optimizer of a process loads, and FSDP
        import torch.distributed.fsdp  # noqa: F401
    except Exception as error:
        remedy = "install torch anew, for this Python and this driver"
        raise Obstacle("version", "FAIL", f"torch cannot be imported: {sentence(error)}", remedy) from error
    from .checks import JOBS

    return JOBS


def _parse(arguments: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m slackwater.doctor", description="The torch checks of the doctor.")
    parser.add_argument("--dir", type=Path, required=True, help="where checkpoints will be; left as it was")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and nothing compiled")
    parser.add_argument("--only", default="", metavar="CHECK", help="one check, by the name of its line")
    return parser.parse_args(arguments)


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; taking torch apart would take seconds
