"""When a tag of DeepSpeed's counts: what ends it, who must have taken part, and what `latest` then says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from datastates import CheckpointEngine
from rank_processes import run_ranks
from support import same

FILE = "mp_rank_00_model_states.pt"
SMALL: dict[str, Any] = {"host_cache_size": 4 / 1024, "slab": "1MiB"}
STATE: dict[str, Any] = {"module": {"w": torch.arange(70_000.0)}, "global_steps": 7}
Make = Callable[..., CheckpointEngine]


@pytest.fixture
def make() -> Iterator[Make]:
    engines = []

    def make_one(**keys: Any) -> CheckpointEngine:
        engines.append(CheckpointEngine({"datastates_ckpt": {**SMALL, **keys}}, 0))
        return engines[-1]

    yield make_one
    for engine in engines:
        engine._writer.close_quietly()


def save(engine: CheckpointEngine, run: Path, tag: str) -> Path:
    (run / tag).mkdir(parents=True, exist_ok=True)
    engine.save(STATE, str(run / tag / FILE))
    return run / tag / FILE


def step() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    torch.optim.SGD([weight], lr=0.1).step()


def test_a_program_that_runs_inside_an_except_block_is_checkpointed(make: Make, tmp_path: Path) -> None:
    """As after ``try: import ... except ImportError: main()``."""
    engine = make()
    try:
        raise ImportError("an optional library")
    except ImportError:
        path = save(engine, tmp_path, "a")
        step()
        engine.wait(persist=True)
    assert (tmp_path / "latest").read_text() == "a" and same(engine.load(path), STATE)


def test_the_checkpoint_of_a_handler_survives_the_end_of_the_program(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``except KeyboardInterrupt: save_checkpoint(); raise``."""
    engine, interrupt = make(), KeyboardInterrupt()
    try:
        raise interrupt
    except KeyboardInterrupt:
        path = save(engine, tmp_path, "a")
    monkeypatch.setattr(sys, "last_value", interrupt, raising=False)
    engine.wait(persist=True)  # as at the end of the program
    assert (tmp_path / "latest").read_text() == "a" and same(engine.load(path), STATE)


def test_another_exception_in_the_middle_of_a_handlers_checkpoint_gives_it_up(make: Make, tmp_path: Path) -> None:
    engine = make()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        save(engine, tmp_path, "a")
        try:
            raise OSError("in the middle of save_checkpoint")
        except OSError:
            step()
    with pytest.raises(sw.ClosedError, match="ended with an exception"):
        engine.wait(persist=True)
    assert not (tmp_path / "latest").exists()


RANKS = """
from datastates import CheckpointEngine
from slackwater.integrations.deepspeed.board import Board

def main(rank):
    join(rank)
    keys = {"host_cache_size": 4 / 1024, "slab": "1MiB", "keep": 1}
    engine = CheckpointEngine({"datastates_ckpt": keys, **CONFIG}, rank)
    weight = torch.nn.Parameter(torch.ones(3))
    optim = torch.optim.SGD([weight], lr=0.1)
    announce = Board.announce
    for step in (1, 2):
        tag = f"{path}/global_step{step}"
        os.makedirs(tag, exist_ok=True)
        if rank == 1 and step == FAILS:
            def broken(self, key):
                raise sw.StorageError("the store of torch.distributed cannot be reached")
            Board.announce = broken
        state = {"fp32": torch.full((50_000,), float(10 * step + rank))}
        engine.save(state, f"{tag}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        Board.announce = announce
        dist.barrier()  # as save_checkpoint does
        weight.grad = torch.ones(3)
        optim.step()
    try:
        engine.wait(persist=True)
        print(f"{rank}: no error")
    except sw.Error as error:
        print(f"{rank}: {'cannot be reached' in str(error)}")
    dist.barrier()
    latest = open(f"{path}/latest").read() if os.path.exists(f"{path}/latest") else "nothing"
    print(f"{rank}: {latest}")
    if latest != "nothing":
        engine.load(f"{path}/{latest}/zero_pp_rank_1_mp_rank_00_optim_states.pt")
    engine.close()
"""


@pytest.mark.parametrize(("fails", "config", "latest"), [(1, {"zero_optimization": {"stage": 1}}, 2), (2, {}, 1)])
def test_a_rank_that_cannot_reach_the_store_is_missed(
    tmp_path: Path, fails: int, config: dict[str, Any], latest: int
) -> None:
    """At the first tag, ZeRO says that each rank writes. Later, the tag before says it."""
    result = run_ranks(f"FAILS, CONFIG = {fails}, {config}\n{RANKS}", 2, tmp_path)
    assert result["codes"] == [0, 0], result["errors"]
    found = [line for rank in (0, 1) for line in (f"{rank}: True", f"{rank}: global_step{latest}")]
    assert result["lines"] == sorted(found)


class Custom:
    value = 3


def test_torch_load_runs_the_pickles_of_a_stub_only_if_it_may(make: Make, tmp_path: Path) -> None:
    from slackwater.integrations.deepspeed.stub import read_stub

    engine = make(allow_pickle=True)
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / FILE
    engine.save({"client": Custom()}, str(path))
    engine.wait(persist=True)
    assert torch.load(path, weights_only=False)["client"].value == 3
    with torch.serialization.safe_globals([read_stub]), pytest.raises(Exception, match="allow_pickle"):
        torch.load(path, weights_only=True)
