"""A directory on each node (node_local): three simulated nodes with two ranks each, and one tier that they share."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from slackwater.ranks.transport import Ranks
from slackwater.tiers import find_places

# Each rank holds some rows of a grid. Two steps are saved after whatever is restored.
PROGRAM = """
ROWS = 12

def main(rank):
    os.environ["LOCAL_WORLD_SIZE"] = "2"  # as torchrun does on nodes of two ranks
    join(rank)
    rows = ROWS // world
    own = slice(rank * rows, (rank + 1) * rows)
    mine = torch.zeros(rows, 4096)
    state = {"grid": sw.Shard(mine, (ROWS, 4096), (own.start, 0)), "step": 0}
    directory = f"{path}/node{rank // 2}"
    with sw.Checkpointer(directory, node_local=True, tiers=[sw.Tier(f"{path}/shared", keep=0)], **SMALL) as ckpt:
        start = ckpt.restore(state) or 0
        assert start == EXPECTED, start
        if start:
            assert torch.equal(mine, values(start)[own]) and state["step"] == start
        for step in range(start + 1, start + 1 + STEPS):
            mine.copy_(values(step)[own])
            state["step"] = step
            ckpt.save(step, state)
            ckpt.fence()
        ckpt.wait_copied()
    print(f"rank {rank} good")
"""


def values(step: int) -> torch.Tensor:
    return torch.randn(12, 4096, generator=torch.Generator().manual_seed(step))


def run(world: int, path: Path, expected: int, steps: int = 2) -> None:
    program = f"EXPECTED, STEPS = {expected}, {steps}\n{inspect.getsource(values)}\n{PROGRAM}"
    result = run_ranks(program, world, path)
    assert result["codes"] == [0] * world, result["errors"]
    assert result["lines"] == [f"rank {rank} good" for rank in range(world)]
    assert result["left"] == []


def data_files(directory: Path) -> list[str]:
    return sorted(file.name[:10] for file in directory.glob("step-0000000002.*/rank-*.safetensors"))


def test_a_lost_node_and_fewer_ranks_restore_from_the_shared_tier_bit_for_bit(tmp_path: Path) -> None:
    run(6, tmp_path, expected=0)
    assert [data_files(tmp_path / f"node{node}") for node in range(3)] == [
        ["rank-00000", "rank-00001"],
        ["rank-00002", "rank-00003"],
        ["rank-00004", "rank-00005"],
    ]
    shutil.rmtree(tmp_path / "node2")
    run(4, tmp_path, expected=2)
    assert not (tmp_path / "node2").exists()
    run(4, tmp_path, expected=4, steps=0)
    for step in range(1, 5):
        assert torch.equal(sw.load(tmp_path / "shared", step=step)["grid"], values(step))


def test_only_the_files_of_the_lost_disk_are_fetched(tmp_path: Path) -> None:
    run(6, tmp_path, expected=0)
    shutil.rmtree(tmp_path / "node1")  # the node is back, with an empty disk
    kept = [tmp_path / "node0", tmp_path / "node2"]
    before = {file: file.stat() for node in kept for file in node.glob("step-*/rank-*.safetensors")}
    run(6, tmp_path, expected=2, steps=0)
    assert data_files(tmp_path / "node1") == ["rank-00002", "rank-00003"]
    after = {file: file.stat() for node in kept for file in node.glob("step-*/rank-*.safetensors")}
    assert {file: (one.st_ino, one.st_mtime_ns) for file, one in after.items()} == {
        file: (one.st_ino, one.st_mtime_ns) for file, one in before.items()
    }


def test_without_a_store_an_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(sw.UsageError, match="node_local=True needs the store of torch.distributed.*init_process_group"):
        sw.Checkpointer(tmp_path / "run", node_local=True, rank=0, world=2)
    with pytest.raises(sw.UsageError, match=r"leave out coordinator='directory'"):
        sw.Checkpointer(tmp_path / "run", node_local=True, rank=0, world=2, coordinator="directory")
    assert not (tmp_path / "run").exists()


def test_only_the_first_tier_can_be_of_one_node(tmp_path: Path) -> None:
    lower = [sw.Tier(tmp_path / "lower", node_local=True)]
    with pytest.raises(sw.UsageError, match="node_local is for the first tier"):
        sw.Checkpointer(tmp_path / "run", tiers=lower)
    first = [sw.Tier(tmp_path / "run", node_local=True), tmp_path / "lower"]
    assert places(None, first).node_local_with(Ranks(0, 4, 2, store=object()), "auto")
    with sw.Checkpointer(tiers=first) as ckpt:  # one rank has one node
        ckpt.save(1, {"n": 1})


def places(path: Any, tiers: Any = None, node_local: bool = False) -> Any:
    return find_places(path, tiers, every=1, keep=2, keep_every=None, node_local=node_local)


def test_an_object_store_alone_is_staged_on_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STAGING", str(tmp_path))
    staged = places("s3://bucket/run")
    assert staged.node_local_with(Ranks(0, 4, 2, store=object()), "auto")
    assert not staged.node_local_with(Ranks(0, 4, 4, store=object()), "auto"), "one node"
    assert not staged.node_local_with(Ranks(None, None, None), "auto"), "one rank"
    assert not staged.node_local_with(Ranks(0, 4, 4), "directory")
    with pytest.raises(sw.UsageError, match=r"ranks on several nodes, each stages its part for 's3://bucket/run'"):
        staged.node_local_with(Ranks(0, 4, 2), "auto")
    assert not places(tmp_path / "run").node_local_with(Ranks(0, 4, 2), "directory"), "a shared directory"
