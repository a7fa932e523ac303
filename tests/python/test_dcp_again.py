"""DCP: what a writer, a reader or a planner remembers from one save or load to the next, and options of torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
import torch.distributed.checkpoint as dcp
from rank_processes import run_ranks
from slackwater import _core
from slackwater.integrations.dcp import SlackwaterReader, SlackwaterSavePlanner, SlackwaterWriter, release_pool, writer
from support import wait_until
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import SerializationFormat

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


@pytest.fixture(scope="module", autouse=True)
def _pool() -> Any:
    yield
    release_pool()


def test_a_reader_that_is_used_again_reads_what_was_saved_meanwhile(path: Path) -> None:
    one, reader = SlackwaterWriter(path, **SMALL), SlackwaterReader(path)
    state = {"a": torch.zeros(4), "n": 0}
    for count in (1, 2):
        dcp.save({"a": torch.full((4,), float(count)), "n": count}, storage_writer=one)
        dcp.load(state, storage_reader=reader)
        assert state["a"].tolist() == [count] * 4 and state["n"] == count


class FailsElsewhere(SlackwaterWriter):
    """As if another rank failed after this one has written: DCP then calls nothing of ours any more."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        super().write_data(plan, planner)
        raise RuntimeError("another rank")


def test_a_background_save_that_failed_elsewhere_gives_the_directory_free(path: Path) -> None:
    response: Any = dcp.async_save(
        {"a": torch.ones(3)}, storage_writer=(failing := FailsElsewhere(path, **SMALL)), async_stager=failing
    )
    with pytest.raises(CheckpointException):
        response.upload_completion.result()
    wait_until(lambda: not writer._coordinated, "the thread of the save has ended")
    _core.PartCommitter.open(str(path), "another", _core.Mailbox())  # the lock is free


class FailsInStorage(SlackwaterWriter):
    def prepare_global_plan(self, plans: Any) -> Any:
        raise RuntimeError("no space left")


def test_a_plan_whose_save_failed_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    full = {"model": torch.ones(3), "optimizer": torch.full((5,), 2.0)}

    def save(step: int, state: dict[str, Any], kind: type[SlackwaterWriter] = SlackwaterWriter) -> None:
        planner = SlackwaterSavePlanner(cache_key="failed before")
        dcp.save(state, storage_writer=kind(tmp_path / f"{step}", **SMALL), planner=planner)

    save(1, full)
    with pytest.raises(CheckpointException):
        save(2, {"model": full["model"]}, FailsInStorage)
    save(3, full)
    assert set(SlackwaterReader(tmp_path / "3").read_metadata().state_dict_metadata) == {"model", "optimizer"}


def test_options_of_file_system_writer_are_taken_in_its_order(path: Path) -> None:
    one = SlackwaterWriter(path, True, True, 4, 1 << 20, False, False, None, SerializationFormat.TORCH_SAVE, **SMALL)
    assert not one.overwrite and SlackwaterWriter(path, **SMALL).overwrite
    SlackwaterWriter(path, serialization_format=SerializationFormat.SAFETENSORS, _extensions=[])
    for wrong in ({"_extensions": [object()]},):
        with pytest.raises(sw.UnsupportedError, match="stream extensions"):
            SlackwaterWriter(path, **wrong)
    with pytest.raises(sw.UnsupportedError, match="stream extensions"):
        SlackwaterReader(path, object())
    with pytest.raises(TypeError, match="sync_files twice"):
        SlackwaterWriter(path, True, True, sync_files=True)
    with pytest.raises(TypeError, match="too many"):
        SlackwaterWriter(path, *range(9))


SHARDED = """
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def main(rank):
    join(rank)
    mesh = init_device_mesh("cpu", (world,))
    state = {"model": {"w": distribute_tensor(torch.arange(1200.0).reshape(30, 40), mesh, [Shard(0)]),
                       "b": torch.arange(7)}, "epoch": 3}
    dcp.save(state, checkpoint_id=f"{path}/stock")
    with sw.Checkpointer(f"{path}/ours", **SMALL) as ckpt:
        ckpt.save(1, {**state, "model": {**state["model"], "b": sw.Replicated(state["model"]["b"])}})
"""


def test_shards_of_several_ranks_are_imported_and_exported_whole(tmp_path: Path) -> None:
    answer = run_ranks(SHARDED, 2, tmp_path)
    assert answer["codes"] == [0, 0], answer["errors"]
    import subprocess
    import sys

    command = str(Path(sys.executable).with_name("slackwater"))
    expected = torch.arange(1200.0).reshape(30, 40)
    subprocess.run([command, "import", str(tmp_path / "stock"), str(tmp_path / "imported")], check=True)
    found = sw.load(tmp_path / "imported")
    assert torch.equal(found["model"]["w"], expected) and found["model"]["b"].tolist() == list(range(7))
    assert found["epoch"] == 3
    subprocess.run([command, "export", str(tmp_path / "ours"), str(tmp_path / "dcp"), "--dcp"], check=True)
    state = {"model": {"w": torch.zeros(30, 40), "b": torch.zeros(7, dtype=torch.int64)}, "epoch": 0}
    dcp.load(state, checkpoint_id=tmp_path / "dcp")
    assert torch.equal(state["model"]["w"], expected)  # type: ignore[index]
    assert state["epoch"] == 3
    subprocess.run([command, "export", str(tmp_path / "ours"), str(tmp_path / "t.pt"), "--torch"], check=True)
    assert torch.equal(torch.load(tmp_path / "t.pt", weights_only=True)["model"]["w"], expected)
