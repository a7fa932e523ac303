"""An unmodified DeepSpeed, switched to our engine by its config alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepspeed_ranks import DeepSpeedRanks
from support import need

OURS: dict[str, Any] = {"datastates_ckpt": {"host_cache_size": 0.0625, "slab": "1MiB"}}
WHOLE = os.environ.get("SLACKWATER_DEEPSPEED_MATRIX") == "all"
BF16 = {"bf16": {"enabled": True}}

# Stage, ranks, more of the config. `make soak` runs them all.
CASES: list[tuple[int, int, dict[str, Any]]] = [(0, 2, {}), (1, 1, BF16), (2, 2, {}), (3, 2, BF16)]
if WHOLE:
    CASES = [(stage, world, more) for stage in (0, 1, 2, 3) for world in (1, 2) for more in ({}, BF16)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeepSpeedRanks]:
    need("deepspeed")
    made = DeepSpeedRanks(tmp_path_factory.mktemp("deepspeed"))
    yield made
    made.close()


@pytest.mark.parametrize(("stage", "world", "more"), CASES)
def test_a_run_killed_and_resumed_equals_that_of_the_torch_engine(
    ranks: DeepSpeedRanks, tmp_path: Path, stage: int, world: int, more: dict[str, Any]
) -> None:
    ours = {"stage": stage, "world": world, "dir": str(tmp_path / "ours"), "config": {**more, **OURS}}
    killed = ranks.run(**ours, steps=5, kill=3, well=False)
    assert set(killed.codes) == {-9}, killed.logs
    resumed = ranks.run(**ours, steps=5)
    began = resumed.results[0]["began"]
    theirs = {"stage": stage, "world": world, "dir": str(tmp_path / "theirs"), "config": more}
    ranks.run(**theirs, steps=began)  # ends there by itself: what is not in a checkpoint is lost here too
    reference = ranks.run(**theirs, steps=5)
    for mine, other in zip(resumed.results, reference.results, strict=True):
        assert mine["engine"] == "DataStatesCheckpointEngine" and other["engine"] == "TorchCheckpointEngine"
        assert mine["began"] == other["began"] == began and 1 <= began <= 3
        assert mine["client"] == repr([mine["began"], {"a": (1, 2)}])
        for part in ("module", "optimizer", "scheduler"):
            assert mine[part] == other[part]
    assert (tmp_path / "ours" / "latest").read_text() == "global_step5"


TOOLS = """
import contextlib, glob, io, runpy
deepspeed.init_distributed("gloo", verbose=False)
engine = make_engine(request)
one_step(engine, rank)
one_step(engine, rank)
engine.save_checkpoint(request["dir"])
engine.save_16bit_model(request["dir"])
masters = [group.clone() for group in engine.optimizer.state_dict()["single_partition_of_fp32_groups"]]
weights = {name: tensor.float() for name, tensor in engine.module.state_dict().items()}
engine.destroy()
torch.distributed.barrier()
if rank == 0:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    found = get_fp32_state_dict_from_zero_checkpoint(request["dir"])
    plain = torch.load(request["dir"] + "/pytorch_model.bin", weights_only=True)
    result = {
        "weights": all(torch.equal(found[name].float(), weights[name]) for name in weights),
        "plain": all(torch.equal(plain[name].float(), weights[name]) for name in weights),
    }
"""


def test_the_tools_of_deepspeed_read_the_files_as_they_are(ranks: DeepSpeedRanks, tmp_path: Path) -> None:
    """zero_to_fp32, and save_16bit_model whose file others read."""
    outcome = ranks.run(world=2, stage=2, dir=str(tmp_path / "run"), config=OURS, code=TOOLS)
    assert outcome.results[0] == {"weights": True, "plain": True}


LOADS = """
deepspeed.init_distributed("gloo", verbose=False)
engine = make_engine(request)
one_step(engine, rank)
engine.save_checkpoint(request["dir"])
found = [engine.load_checkpoint(request["dir"])[0]]
engine.save_checkpoint(request["dir"], tag="side", save_latest=False)
found.append(engine.load_checkpoint(request["dir"], tag="side")[0])
latest = Path(request["dir"], "latest").read_text()
other = make_engine(request)
engine.save_checkpoint(request["dir"], tag="last")
found.append(other.load_checkpoint(request["dir"])[0])
result = [Path(path).parent.name for path in found] + [latest]
"""


def test_what_is_in_flight_is_loaded_by_all_ranks(ranks: DeepSpeedRanks, tmp_path: Path) -> None:
    """Also on rank 1, which writes nothing here; by its name; by another engine; and `latest` stays if it is to."""
    outcome = ranks.run(world=2, stage=0, dir=str(tmp_path / "run"), config=OURS, code=LOADS)
    assert outcome.results == [["global_step1", "side", "last", "global_step1"]] * 2


HALF = """
deepspeed.init_distributed("gloo", verbose=False)
engine = make_engine(request)
one_step(engine, rank)
engine.save_checkpoint(request["dir"])
one_step(engine, rank)
save_zero, result = engine._save_zero_checkpoint, []
def broken(*given):
    raise RuntimeError("between two files")
engine._save_zero_checkpoint = broken
try:
    engine.save_checkpoint(request["dir"])
except RuntimeError:
    result.append("raised")
engine._save_zero_checkpoint = save_zero
one_step(engine, rank)
try:
    engine.checkpoint_engine.ckpt_engine.wait(persist=True)
except slackwater.AbortedError as error:
    result.append("between two files" in str(error))
torch.distributed.barrier()
result.append(Path(request["dir"], "latest").read_text())
engine.save_checkpoint(request["dir"])
result.append(Path(engine.load_checkpoint(request["dir"])[0]).parent.name)
"""


def test_half_a_checkpoint_does_not_count_although_training_goes_on(ranks: DeepSpeedRanks, tmp_path: Path) -> None:
    outcome = ranks.run(world=2, stage=1, dir=str(tmp_path / "run"), config=OURS, code=HALF)
    assert outcome.results == [["raised", True, "global_step1", "global_step3"]] * 2
