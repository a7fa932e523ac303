"""``Checkpointer.save_on_signal``: real processes that get a real signal, and wait for nothing but what they need."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from support import SECONDS, start

# The trainer says when it is where the test wants it, and goes on when it is told to.
_TRAINER = """
    import logging, os, signal, sys, threading, time, numpy as np, slackwater as sw
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = sys.argv[1]
    w = np.zeros(1 << 18)
    ckpt = sw.Checkpointer(path, pool="4MiB", slab="1MiB", every=100)
    def hit():
        os.kill(os.getpid(), signal.SIGTERM)
"""


def outcome(code: str, path: Path) -> tuple[int, str, str]:
    process = start(_TRAINER + code, path)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def steps(path: Path) -> list[int]:
    with sw.Checkpointer(path) as ckpt:
        return ckpt.steps()


@pytest.mark.parametrize("then", ["signal", "exit", "return"])
def test_the_next_save_is_committed_and_the_process_ends_as_chosen(path: Path, then: str) -> None:
    code, out, err = outcome(
        f"""
    ckpt.save_on_signal(within=600, then="{then}")
    for step in range(1, 1000):
        if step == 7:
            hit()
        w += 1
        ckpt.save(step, {{"w": w}})
        if ckpt.stop_requested:
            print("asked to stop at", step, end="")
            break
    """,
        path,
    )
    assert code == {"signal": -signal.SIGTERM, "exit": 128 + signal.SIGTERM, "return": 0}[then], err
    assert out == ("asked to stop at 7" if then == "return" else "")
    assert "SIGTERM: step 7 is committed" in err
    assert steps(path) == [7]
    assert sw.open(path)["w"][0] == 7


@pytest.mark.parametrize("then", ["signal", "return"])
def test_a_loop_that_asks_between_the_signal_and_the_next_save_still_saves(path: Path, then: str) -> None:
    code, _, err = outcome(
        f"""
    ckpt.save_on_signal(within=600, then="{then}")
    for step in range(1, 1000):
        w += 1
        ckpt.save(step, {{"w": w}})
        if step == 7:
            hit()  # during an evaluation
        if ckpt.stop_requested:
            break
    ckpt.close()
    """,
        path,
    )
    assert code == {"signal": -signal.SIGTERM, "return": 0}[then], err
    assert steps(path) == [8]


def test_a_signal_inside_save_ends_that_step(path: Path) -> None:
    code, _, err = outcome(
        """
    ckpt.save_on_signal(within=600)
    class Slow:
        def state_dict(self):
            hit()
            return {"x": 1}
        def load_state_dict(self, state): pass
    ckpt.save(100, {"w": w, "slow": Slow()})
    print("never reached")
    """,
        path,
    )
    assert code == -signal.SIGTERM, err
    assert steps(path) == [100]


def test_without_a_save_in_time_the_newest_step_remains_and_is_named(path: Path) -> None:
    code, _, err = outcome(
        """
    ckpt.save(100, {"w": w})
    ckpt.wait()
    ckpt.save_on_signal(within=0.2)
    hit()
    while True:
        signal.pause()  # no step ever ends
    """,
        path,
    )
    assert code == -signal.SIGTERM, err
    assert "no save() came within" in err and "the newest committed checkpoint: step 100" in err
    assert steps(path) == [100]


def test_a_handler_that_was_there_is_called_at_the_end(path: Path) -> None:
    code, out, err = outcome(
        """
    def mine(number, frame):
        print("mine", ckpt.stop_requested, flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, mine)
    ckpt.save_on_signal(within=600)
    hit()
    hit()
    ckpt.save(5, {"w": w})
    while True:
        signal.pause()
    """,
        path,
    )
    assert (code, out) == (3, "mine True\n"), err
    assert steps(path) == [5]


def test_forked_workers_end_by_the_signal_and_save_nothing(path: Path) -> None:
    code, out, err = outcome(
        """
    ckpt.save_on_signal(within=600)
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        while True:
            signal.pause()
    os.read(hear, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ckpt.stop_requested)
    ckpt.save(100, {"w": w})
    ckpt.close()
    """,
        path,
    )
    assert (code, out) == (0, f"{-signal.SIGTERM} False\n"), err
    assert steps(path) == [100]


def test_a_signal_that_no_save_answers_ends_the_program_after_close(path: Path) -> None:
    code, out, err = outcome(
        """
    ckpt.save_on_signal(within=600)
    ckpt.save(100, {"w": w})
    hit()
    print("buffered")
    ckpt.close()
    print("never reached")
    """,
        path,
    )
    assert (code, out) == (-signal.SIGTERM, "buffered\n"), err
    assert steps(path) == [100]


def test_close_puts_the_handler_back_and_misuse_is_refused(path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sw.Checkpointer(path) as ckpt:
        for options in ({"within": 0}, {"then": "never"}):
            with pytest.raises(sw.UsageError):
                ckpt.save_on_signal(**options)  # type: ignore[arg-type]
        ckpt.save_on_signal()
        assert signal.getsignal(signal.SIGTERM) != before
        assert not ckpt.stop_requested
        with pytest.raises(sw.UsageError, match="called before"):
            ckpt.save_on_signal()
        ckpt.save(1, {"w": torch.ones(2)})
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("hit", [1, 2])
def test_ranks_agree_on_the_last_step(path: Path, hit: int) -> None:
    """Only some ranks get the signal, at different steps. The step after the first one is saved by all."""
    result = run_ranks(
        f"""
    def main(rank):
        join(rank)
        ckpt = sw.Checkpointer(path, every=100, **SMALL)
        ckpt.save_on_signal(within=600, then="return")
        for step in range(1, 50):
            dist.barrier()                                  # as a collective in every step
            if (rank, step) in {{0: [(0, 4)], 1: [(1, 4)], 2: [(1, 4), (2, 5)]}}[{hit}]:
                os.kill(os.getpid(), signal.SIGTERM)
            ckpt.save(step, {{"w": torch.full((3,), step)}})
            if ckpt.stop_requested:
                break
        print(f"{{rank}} ended at {{step}}, {{ckpt.steps()}}")
        ckpt.close()
    """,
        3,
        path,
        severed=True,
    )
    assert result["lines"] == [f"{rank} ended at 5, [5]" for rank in range(3)], result["errors"]
