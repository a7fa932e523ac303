"""torch.distributed.checkpoint through Slackwater's writer, reader and stager, in one process."""

from __future__ import annotations

import argparse
import io
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from slackwater.integrations.dcp import (
    SlackwaterReader,
    SlackwaterSavePlanner,
    SlackwaterStager,
    SlackwaterWriter,
    parts,
    release_pool,
)
from slackwater.state.memory import SIZES
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}
COMMAND = str(Path(sys.executable).with_name("slackwater"))


@pytest.fixture(scope="module", autouse=True)
def _pool() -> Any:
    yield
    release_pool()


def write(path: Any, state: dict[str, Any], **options: Any) -> dcp.metadata.Metadata:
    return dcp.save(state, storage_writer=SlackwaterWriter(path, **SMALL, **options))


def read(path: Any, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=SlackwaterReader(path, **options))
    return state


def model_and_optimizer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    return model, optimizer


# The interfaces


def test_writer_and_reader_are_whole_implementations(path: Path) -> None:
    writer, reader = SlackwaterWriter(path, **SMALL), SlackwaterReader(path)
    assert isinstance(writer, StorageWriter) and isinstance(writer, AsyncStager)
    assert isinstance(reader, StorageReader)
    assert isinstance(SlackwaterStager(writer), AsyncStager)
    assert writer.checkpoint_id == path and reader.checkpoint_id == path
    first = writer.storage_meta()
    writer.reset("other")
    second = writer.storage_meta()
    assert first is not None and second is not None
    assert second.checkpoint_id == "other" and first.save_id != second.save_id


def test_local_paths_are_valid_checkpoint_ids_and_urls_are_not(path: Path) -> None:
    for kind in (SlackwaterWriter, SlackwaterReader):
        assert kind.validate_checkpoint_id(path) and kind.validate_checkpoint_id(str(path))
        assert not kind.validate_checkpoint_id("s3://bucket/run")
    with pytest.raises(CheckpointException, match="local path"):
        write("s3://bucket/run", {"a": torch.ones(2)})


def test_arguments_of_file_system_writer_are_accepted_and_unknown_ones_are_not(path: Path) -> None:
    SlackwaterWriter(path, single_file_per_rank=True, sync_files=True, thread_count=4, cache_staged_state_dict=True)
    with pytest.raises(sw.UsageError, match="no option 'threads'"):
        SlackwaterWriter(path, threads=4)


# Saving and loading


def test_model_and_optimizer_come_back_bit_by_bit(path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = model_and_optimizer(1)
    saved = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    write(path, saved)
    other, other_optimizer = model_and_optimizer(2)
    state = dict(zip(("model", "optim"), get_state_dict(other, other_optimizer), strict=True))
    read(path, state)
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    before, after = optimizer.state_dict(), other_optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for key, entry in before["state"].items():
        assert all(torch.equal(value, after["state"][key][name]) for name, value in entry.items())


def test_stateful_objects_save_and_load_themselves(path: Path) -> None:
    class Counter:
        def __init__(self, count: int) -> None:
            self.count = count

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    write(path, {"counter": Counter(7)})
    other = Counter(0)
    read(path, {"counter": other})
    assert other.count == 7


@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_every_dtype_comes_back(path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype, None)
    if kind is None:
        pytest.skip(f"this torch has no {dtype}")
    data = torch.randint(0, 255, (SIZES[dtype] * 12,), dtype=torch.uint8)
    tensor = (data & 1).bool() if dtype == "bool" else data.view(kind)
    write(path, {"t": tensor})
    target = torch.zeros_like(data).bool() if dtype == "bool" else torch.zeros_like(data).view(kind)
    read(path, {"t": target})
    assert torch.equal(target.view(torch.uint8), tensor.view(torch.uint8))


def test_scalars_empty_strided_and_expanded_tensors_come_back(path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    saved = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "transposed": base.t(),
        "sliced": base[1:, ::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    }
    write(path, saved)
    state = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in saved.items()}
    state["transposed"] = torch.zeros(4, 6).t()  # a target with strides of its own
    read(path, state)
    for name, tensor in saved.items():
        assert torch.equal(state[name], tensor.detach()), name


def test_tied_tensors_are_written_once_and_load_under_both_names(path: Path) -> None:
    weight = torch.randn(512, 512)
    write(path, {"embedding": weight, "head": weight})
    files = sum(file.stat().st_size for file in path.rglob("*.safetensors"))
    assert files < 1.5 * weight.numel() * 4
    state = read(path, {"embedding": torch.zeros(512, 512), "head": torch.zeros(512, 512)})
    assert torch.equal(state["embedding"], weight) and torch.equal(state["head"], weight)


def test_plain_values_come_back_exactly_and_no_pickle_is_in_the_files(path: Path) -> None:
    values = {
        "int": 1 << 70,
        "float": float("-inf"),
        "none": None,
        "text": "wörter",
        "bytes": pickle.dumps({"state": [1, 2]}),
        "tuple": (1, (2, 3)),
        "set": {1, 2},
        "numbers": [1, 2.5, None],
        "namespace": argparse.Namespace(lr=0.1),
        "ordered": (OrderedDict(a=1),),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "numpy": np.float32(1.5),
    }
    write(path, {"nested": dict(values), "step": 9})
    state = read(path, {"nested": dict.fromkeys(values), "step": 0})
    assert state["step"] == 9
    for name, value in values.items():
        assert state["nested"][name] == value and type(state["nested"][name]) is type(value), name
    for file in path.rglob("*"):
        assert not file.is_file() or b"torch._utils" not in file.read_bytes()


def test_tensors_and_arrays_in_tuples_and_streams_come_back(path: Path) -> None:
    stream = io.BytesIO(b"extra state")
    pair = (torch.arange(5), {"rng": ("MT19937", np.arange(4, dtype=np.uint32), 3)})
    write(path, {"pair": pair, "stream": stream, "array": np.eye(2)})
    state = read(path, {"pair": None, "stream": None, "array": None})
    assert torch.equal(state["pair"][0], pair[0])
    assert np.array_equal(state["pair"][1]["rng"][1], np.arange(4)) and state["pair"][1]["rng"][1].dtype == np.uint32
    assert state["stream"].getvalue() == b"extra state"
    assert np.array_equal(state["array"], np.eye(2))


class Unknown:
    def __init__(self, value: int) -> None:
        self.value = value


def test_objects_without_a_plain_form_are_refused_unless_pickles_are_allowed(path: Path) -> None:
    with pytest.raises(
        CheckpointException, match=r"'thing' is a .*Unknown.*SlackwaterWriter\(..., allow_pickle=True\)"
    ):
        write(path, {"thing": Unknown(3)})
    with pytest.raises(sw.NotFoundError):
        SlackwaterReader(path).read_metadata()
    write(path, {"thing": Unknown(3)}, allow_pickle=True)
    with pytest.raises(CheckpointException, match="allow_pickle=True"):
        read(path, {"thing": None})
    assert read(path, {"thing": None}, allow_pickle=True)["thing"].value == 3


def test_bytes_of_a_planner_of_ones_own_are_not_unpickled_unless_allowed(path: Path) -> None:
    class Pickling(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return super().transform_object(write_item, object)

    dcp.save({"a": 1}, storage_writer=SlackwaterWriter(path, **SMALL), planner=Pickling())
    with pytest.raises(CheckpointException, match="planner of your own"):
        read(path, {"a": 0})
    assert read(path, {"a": 0}, allow_pickle=True)["a"] == 1


def test_a_part_of_the_state_can_be_loaded(path: Path) -> None:
    write(path, {"model": {"a": torch.ones(3), "b": torch.full((2,), 2.0)}, "step": 4})
    assert torch.equal(read(path, {"model": {"b": torch.zeros(2)}})["model"]["b"], torch.full((2,), 2.0))
    with pytest.raises(CheckpointException, match="Missing key"):
        read(path, {"model": {"c": torch.zeros(2)}})
    state = {"model": {"b": torch.zeros(2), "c": torch.zeros(2)}}
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, storage_reader=SlackwaterReader(path), planner=planner)
    assert torch.equal(state["model"]["b"], torch.full((2,), 2.0)) and not state["model"]["c"].any()
    with pytest.raises(CheckpointException, match="Size mismatch"):
        read(path, {"model": {"a": torch.zeros(4)}})


def test_the_state_can_be_rebuilt_from_the_checkpoint_alone(path: Path) -> None:
    write(path, {"model": {"a": torch.ones(3)}, "list": [torch.zeros(2), 5], "step": 4})
    everything = _load_state_dict_from_keys(storage_reader=SlackwaterReader(path))
    assert torch.equal(everything["model"]["a"], torch.ones(3))
    assert everything["list"][1] == 5 and everything["step"] == 4
    assert set(_load_state_dict_from_keys("model", storage_reader=SlackwaterReader(path))) == {"model"}


def test_a_tensor_is_converted_to_the_dtype_of_the_state(path: Path) -> None:
    write(path, {"a": torch.tensor([1.5, 2.5])})
    assert torch.equal(read(path, {"a": torch.zeros(2, dtype=torch.bfloat16)})["a"].float(), torch.tensor([1.5, 2.5]))


def test_metadata_is_read_back_as_it_was_saved(path: Path) -> None:
    saved = write(path, {"model": {"a": torch.ones(3, 2), "b": torch.tensor(1)}, "step": 4})
    found = SlackwaterReader(path).read_metadata()
    assert found.state_dict_metadata == saved.state_dict_metadata
    assert found.planner_data == saved.planner_data
    assert isinstance(found.state_dict_metadata["step"], BytesStorageMetadata)
    assert isinstance(found.state_dict_metadata["model.a"], TensorStorageMetadata)
    assert found.storage_meta is not None and found.storage_meta.load_id is not None


def test_flattening_can_be_switched_off(path: Path) -> None:
    state = {"a": torch.ones(2), "b": {"c": 1}}
    dcp.save(
        state, storage_writer=SlackwaterWriter(path, **SMALL), planner=DefaultSavePlanner(flatten_state_dict=False)
    )
    target = {"a": torch.zeros(2), "b": None}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(target, storage_reader=SlackwaterReader(path), planner=planner)
    assert torch.equal(target["a"], torch.ones(2)) and target["b"] == {"c": 1}


def test_deprecated_calls_of_dcp_work(path: Path) -> None:
    dcp.save_state_dict({"a": torch.ones(2)}, SlackwaterWriter(path, **SMALL), no_dist=True)
    state = {"a": torch.zeros(2)}
    dcp.load_state_dict(state, SlackwaterReader(path), no_dist=True)
    assert torch.equal(state["a"], torch.ones(2))


def test_saving_without_collectives_makes_a_checkpoint_for_the_rank(path: Path) -> None:
    writer = SlackwaterWriter(path, **SMALL)
    dcp.save({"a": torch.ones(2), "n": 3}, storage_writer=writer, use_collectives=False)
    state = {"a": torch.zeros(2), "n": 0}
    dcp.load(state, storage_reader=SlackwaterReader(path))
    assert torch.equal(state["a"], torch.ones(2)) and state["n"] == 3


# Directories


def test_one_writer_saves_to_several_directories(tmp_path: Path) -> None:
    writer, reader = SlackwaterWriter(tmp_path / "unused", **SMALL), SlackwaterReader(tmp_path / "unused")
    for step in (1, 2, 3):
        dcp.save({"a": torch.full((4,), float(step))}, checkpoint_id=tmp_path / f"step-{step}", storage_writer=writer)
    for step in (3, 1, 2):
        state = {"a": torch.zeros(4)}
        dcp.load(state, checkpoint_id=str(tmp_path / f"step-{step}"), storage_reader=reader)
        assert torch.equal(state["a"], torch.full((4,), float(step)))
    assert not (tmp_path / "unused").exists()


def test_a_checkpoint_is_replaced_once_the_new_one_is_committed(path: Path) -> None:
    write(path, {"a": torch.zeros(4), "old": torch.ones(1000)})
    before = len(list(path.glob("step-*")))
    write(path, {"a": torch.ones(4)})
    assert before == len(list(path.glob("step-*"))) == 1
    assert torch.equal(read(path, {"a": torch.zeros(4)})["a"], torch.ones(4))
    assert "old" not in SlackwaterReader(path).read_metadata().state_dict_metadata


def test_overwrite_false_keeps_the_checkpoint_that_is_there(path: Path) -> None:
    write(path, {"a": torch.zeros(4)}, overwrite=False)
    with pytest.raises(CheckpointException, match="Checkpoint already exists"):
        write(path, {"a": torch.ones(4)}, overwrite=False)
    assert not read(path, {"a": torch.ones(4)})["a"].any()


def test_a_save_that_fails_leaves_the_earlier_checkpoint_and_the_directory_usable(path: Path) -> None:
    write(path, {"a": torch.zeros(4)})

    class Failing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            raise OSError("disk on fire")

    with pytest.raises(CheckpointException, match="disk on fire"):
        dcp.save({"a": torch.ones(4)}, storage_writer=SlackwaterWriter(path, **SMALL), planner=Failing())
    assert not read(path, {"a": torch.ones(4)})["a"].any()
    write(path, {"a": torch.full((4,), 2.0)})
    assert torch.equal(read(path, {"a": torch.ones(4)})["a"], torch.full((4,), 2.0))
    assert len(list(path.glob("step-*"))) == 1  # what the failed save left behind is gone


def test_checkpoints_of_a_run_are_never_replaced(path: Path) -> None:
    with sw.Checkpointer(path, **SMALL) as checkpointer:
        checkpointer.save(5, {"a": torch.ones(2)})
    with pytest.raises(CheckpointException, match="holds checkpoints of a Slackwater run"):
        write(path, {"a": torch.zeros(2)})
    assert sw.open(path).step == 5
    with pytest.raises(CheckpointException, match="not saved through torch.distributed.checkpoint"):
        read(path, {"a": torch.zeros(2)})


def test_of_two_saves_into_one_directory_at_the_same_time_the_later_one_wins(path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()
    failed: list[str] = []

    class Waiting(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            started.set()
            assert go_on.wait(60)
            return super().resolve_data(write_item)

    def earlier() -> None:
        try:
            dcp.save({"a": torch.ones(2)}, storage_writer=SlackwaterWriter(path, **SMALL), planner=Waiting())
        except CheckpointException as error:
            failed.append(str(error))

    thread = threading.Thread(target=earlier)
    thread.start()
    assert started.wait(60)
    write(path, {"a": torch.full((2,), 2.0)})
    go_on.set()
    thread.join()
    assert len(failed) == 1 and "replaces this one" in failed[0]
    assert torch.equal(read(path, {"a": torch.zeros(2)})["a"], torch.full((2,), 2.0))


def test_a_missing_checkpoint_is_said_plainly(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SlackwaterReader(path).read_metadata()
    with pytest.raises(CheckpointException):
        read(path, {"a": torch.zeros(2)})


def test_damage_is_noticed_and_named(path: Path) -> None:
    write(path, {"a": torch.arange(1 << 16, dtype=torch.float32)})
    (file,) = path.rglob("rank-00001.safetensors")
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointException, match="rank-00001.safetensors"):
        read(path, {"a": torch.zeros(1 << 16)})


# Other tools


def test_slackwater_and_safetensors_open_what_dcp_saved(tmp_path: Path) -> None:
    path = tmp_path / "step-40"
    write(path, {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 40, "lr": [0.1, 0.2]})
    with sw.open(path) as reader:
        assert reader.step == 40 and list(reader) == ["model.weight"]
        assert torch.equal(reader["model.weight"], torch.arange(6.0).reshape(2, 3))
        tree = reader.tree()
    assert tree["step"] == 40 and tree["lr"] == [0.1, 0.2]
    assert torch.equal(tree["model"]["weight"], torch.arange(6.0).reshape(2, 3))
    (file,) = path.rglob("rank-00001.safetensors")
    with safe_open(str(file), framework="pt") as stock:
        assert torch.equal(stock.get_tensor("model.weight"), torch.arange(6.0).reshape(2, 3))
    for words in (["ls"], ["show", "--tree"], ["verify"]):
        done = subprocess.run([COMMAND, *words, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if words[0] == "show":
            assert "model.weight" in done.stdout or "weight" in done.stdout


# Asynchronous saves


def test_async_save_returns_a_fence_and_a_completion(path: Path) -> None:
    writer = SlackwaterWriter(path, **SMALL)
    state = {"a": torch.randn(1 << 18), "step": 3}
    response = dcp.async_save(state, storage_writer=writer)
    response.staging_completion.result()
    expected = state["a"].clone()
    state["a"].zero_()  # after the fence: does no harm
    metadata = response.upload_completion.result()
    assert "a" in metadata.state_dict_metadata
    assert torch.equal(read(path, {"a": torch.zeros(1 << 18)})["a"], expected)


def test_planning_does_not_wait_for_staging(path: Path) -> None:
    """The executor asks for the state dict before a byte is copied, and gets the live one."""
    writer = SlackwaterWriter(path, **SMALL)
    tensor = torch.randn(1 << 18)
    future = writer.stage({"a": tensor})
    assert isinstance(future, Future) and not future.done()
    assert future.result()["a"] is tensor and not future.done()
    future.finish()
    assert future.done() and future.result()["a"] is tensor


def test_a_stager_may_be_given_apart_from_the_writer(path: Path) -> None:
    writer = SlackwaterWriter(path, **SMALL)
    response = dcp.async_save({"a": torch.ones(9)}, storage_writer=writer, async_stager=SlackwaterStager(writer))
    response.staging_completion.result()
    response.upload_completion.result()
    assert torch.equal(read(path, {"a": torch.zeros(9)})["a"], torch.ones(9))


def test_the_stager_of_torch_works_with_this_writer(path: Path) -> None:
    stager = DefaultStager(StagingOptions(False, False, False, False))
    future = dcp.async_save({"a": torch.ones(9)}, storage_writer=SlackwaterWriter(path, **SMALL), async_stager=stager)
    future.result()
    stager.close()
    assert torch.equal(read(path, {"a": torch.zeros(9)})["a"], torch.ones(9))


def test_several_saves_may_be_in_flight(tmp_path: Path) -> None:
    writer = SlackwaterWriter(tmp_path / "unused", **SMALL)
    tensors = [torch.full((1 << 18,), float(index)) for index in range(4)]
    responses = [
        dcp.async_save({"a": tensor}, checkpoint_id=tmp_path / f"step-{index}", storage_writer=writer)
        for index, tensor in enumerate(tensors)
    ]
    for response in responses:
        response.upload_completion.result()
    for index, tensor in enumerate(tensors):
        assert torch.equal(read(tmp_path / f"step-{index}", {"a": torch.ones(1 << 18)})["a"], tensor)


def test_small_tensors_and_plain_values_may_change_right_after_async_save(path: Path) -> None:
    held = _HeldPlanner()
    counter, history = torch.tensor(1), [1]
    state = {"counter": counter, "history": history, "large": torch.randn(1 << 18)}
    response = dcp.async_save(state, storage_writer=SlackwaterWriter(path, **SMALL), planner=held)
    counter += 1
    history.append(2)
    held.go_on.set()
    response.upload_completion.result()
    found = read(path, {"counter": torch.tensor(0), "history": None, "large": torch.zeros(1 << 18)})
    assert found["counter"] == 1 and found["history"] == [1]


class _HeldPlanner(DefaultSavePlanner):
    """Planning waits for the test."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self._fails = fails

    def create_local_plan(self) -> Any:
        assert self.go_on.wait(60)
        if self._fails:
            raise RuntimeError("no plan")
        return super().create_local_plan()


def test_a_write_before_the_fence_is_noticed_and_nothing_becomes_visible(path: Path) -> None:
    held = _HeldPlanner()
    state = {"a": torch.randn(1 << 18)}
    response = dcp.async_save(state, storage_writer=SlackwaterWriter(path, **SMALL), planner=held)
    state["a"].add_(1)  # the fence has not come
    held.go_on.set()
    with pytest.raises(CheckpointException, match="'a' was written to between save"):
        response.upload_completion.result()
    response.staging_completion.result()  # training goes on
    with pytest.raises(sw.NotFoundError):
        SlackwaterReader(path).read_metadata()
    # From now on it is copied when it is staged, as a buffer that changes in every forward pass.
    held = _HeldPlanner()
    expected = state["a"].clone()
    response = dcp.async_save(state, storage_writer=SlackwaterWriter(path, **SMALL), planner=held)
    state["a"].add_(1)
    held.go_on.set()
    response.upload_completion.result()
    assert torch.equal(read(path, {"a": torch.zeros(1 << 18)})["a"], expected)


def test_optimizer_steps_wait_for_the_fence_by_themselves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 512)).square().mean().backward()
    expected = model.weight.detach().clone()
    held = _HeldPlanner()
    response = dcp.async_save(model.state_dict(), storage_writer=SlackwaterWriter(path, **SMALL), planner=held)
    fence = parts.PartEngine.fence

    def planned_now(engine: parts.PartEngine) -> None:
        held.go_on.set()
        fence(engine)

    monkeypatch.setattr(parts.PartEngine, "fence", planned_now)
    optimizer.step()
    assert response.staging_completion.done() and not torch.equal(model.weight, expected)
    response.upload_completion.result()
    assert torch.equal(read(path, {"weight": torch.zeros(512, 512)})["weight"], expected)


def test_the_fence_opens_when_a_save_fails_before_it_writes(path: Path) -> None:
    held = _HeldPlanner(fails=True)
    writer = SlackwaterWriter(path, **SMALL)
    response = dcp.async_save({"a": torch.randn(1 << 18)}, storage_writer=writer, planner=held)
    held.go_on.set()
    with pytest.raises(CheckpointException, match="no plan"):
        response.upload_completion.result()
    response.staging_completion.result(60)
    writer.synchronize_staging()
    assert not parts.engine_for(writer._settings)._pending


def test_the_process_executor_is_refused_in_one_sentence(path: Path) -> None:
    writer = SlackwaterWriter(path, **SMALL)
    with pytest.raises(sw.UnsupportedError, match="AsyncCheckpointerType.THREAD"):
        dcp.async_save(
            {"a": torch.ones(2)}, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS
        )
    with pytest.raises(sw.UsageError, match="AsyncCheckpointerType.THREAD"):
        pickle.dumps(writer)


# The plan cache


@pytest.mark.parametrize(
    "planner", [lambda: DefaultSavePlanner(enable_plan_caching=True), SlackwaterSavePlanner], ids=["torch", "ours"]
)
def test_cached_plans_never_hide_a_changed_dtype(tmp_path: Path, planner: Any) -> None:
    from torch.distributed.checkpoint.planner import SavePlanner

    for cache in ("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans", "_cached_global_plan"):
        getattr(SavePlanner, cache).clear()
    SavePlanner._cached_metadata.clear()
    writer = SlackwaterWriter(tmp_path / "unused", **SMALL)
    dtypes = [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
    for step, dtype in enumerate(dtypes):
        tensor = torch.arange(8).to(dtype) + step
        dcp.save({"a": tensor, "n": step}, checkpoint_id=tmp_path / f"{step}", storage_writer=writer, planner=planner())
        found = _load_state_dict_from_keys(storage_reader=SlackwaterReader(tmp_path / f"{step}"))
        assert found["a"].dtype == dtype and torch.equal(found["a"], tensor) and found["n"] == step


def test_an_unchanged_plan_is_not_sent_again() -> None:
    first = SlackwaterSavePlanner(cache_key="not sent again")
    first.set_up_planner({"a": torch.ones(2)}, is_coordinator=True)
    (plan,), _ = first.create_global_plan([first.create_local_plan()])
    assert plan.usable and len(first.finish_plan(plan).items) == 1
    second = SlackwaterSavePlanner(cache_key="not sent again")
    second.set_up_planner({"a": torch.ones(2)}, is_coordinator=True)
    local = second.create_local_plan()
    assert not local.usable and local.items == []
    (plan,), metadata = second.create_global_plan([local])
    assert not plan.usable and "a" in metadata.state_dict_metadata
    assert len(second.finish_plan(plan).items) == 1
