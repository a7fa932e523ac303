"""Which tensors of a state the ranks hold together, and which are a rank's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from slackwater.ranks.sharding import RankInfo
from slackwater.state.capture import Capturer
from slackwater.state.tables import Table
from slackwater.state.tree import Flattener
from test_boxes import rank_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = 1, 4


@pytest.fixture(autouse=True)
def _one_of_four() -> Iterator[None]:
    with rank_of(RANK, WORLD):
        yield


def shards(state: dict[str, Any], known: dict[str, Table] | None = None) -> dict[str, Any]:
    """Name -> (global shape, offset, group, replica, replicas), or None for what is this rank's own."""
    flat = Flattener(known=known, rank_info=RankInfo(RANK, WORLD))
    flat.flatten(state)
    if known is not None:
        known.update(flat.tables)
    found = {name: flat.torch_shards.get(index) for index, name in enumerate(flat.torch_names)}
    return {**found, **{name: flat.array_shards.get(index) for index, name in enumerate(flat.array_names)}}


def on_all(*shape: int) -> Any:
    return shape, (0,) * len(shape), "world", RANK, WORLD


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    optim = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optim.step()
    return optim


def test_plain_tensors_modules_and_arrays_are_a_ranks_own() -> None:
    model = torch.nn.Linear(3, 2)
    found = shards({"model": model, "optim": stepped(model), "t": torch.ones(2), "a": np.ones(2)})
    assert len(found) == 2 + 6 + 2 and set(found.values()) == {None}


def test_parameters_below_ddp_and_their_optimizer_state_are_replicas_and_buffers_are_rank_zeros() -> None:
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
    found = shards({"optim": stepped(model), "model": model})
    assert found["model.0.weight"] == found["optim.state.0.exp_avg"] == on_all(2, 3)
    assert found["optim.state.0.step"] == on_all()
    assert found["model.1.weight"] == on_all(2)
    assert "model.1.running_mean" not in found  # before the next forward DDP overwrites it with rank 0's
    model.broadcast_buffers = False
    assert shards({"model": model})["model.1.running_mean"] is None


def test_ddp_is_found_below_other_modules_and_behind_hooks() -> None:
    model = torch.nn.Module()
    model.inner = DistributedDataParallel(torch.nn.Linear(3, 2))
    model.own = torch.nn.Linear(2, 2)
    for hooked in (False, True):
        if hooked:
            model.register_state_dict_post_hook(lambda *_: None)
        found = shards({"model": model})
        assert found["model.inner.module.weight"] == on_all(2, 3)
        assert found["model.own.weight"] is None


def test_ddp_of_a_part_of_the_ranks_and_what_it_ignores_are_a_ranks_own() -> None:
    part = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=torch.distributed.new_group([0, 1]))
    inner = torch.nn.Linear(3, 2)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["bias"])
    found = shards({"part": part, "model": DistributedDataParallel(inner)})
    assert found["part.weight"] is None
    assert found["model.weight"] == on_all(2, 3) and found["model.bias"] is None


def test_replicated_reaches_all_that_is_below() -> None:
    model = torch.nn.BatchNorm1d(2)
    below = {"model": model, "optim": stepped(model), "rest": [torch.ones(3), np.ones(5)], "place": 1}
    found = shards({"all": sw.Replicated(below), "t": torch.ones(2)})
    assert found.pop("t") is None
    assert found["all.rest.1"] == on_all(5) and found["all.model.running_mean"] == on_all(2)
    assert None not in found.values()


def test_replicated_is_not_seen_in_names_or_trees() -> None:
    for value in (torch.ones(2), {"w": torch.ones(2), "n": 1}, torch.nn.Linear(1, 1), [1, 2]):
        plain, said = Flattener(rank_info=RankInfo(RANK, WORLD)), Flattener(rank_info=RankInfo(RANK, WORLD))
        assert plain.flatten({"a.b": value}) == said.flatten({"a.b": sw.Replicated(value)})
        assert plain.torch_names == said.torch_names


def test_tables_of_an_earlier_save_keep_their_shards() -> None:
    model = torch.nn.Linear(3, 2)
    state = {"model": sw.Replicated(model), "optim": sw.Replicated(stepped(model)), "own": {"t": torch.ones(1)}}
    known: dict[str, Table] = {}
    first = shards(state, known)
    assert {"model", "optim.state", "own"} <= set(known)
    assert shards(state, known) == first
    assert first["model.weight"] == on_all(2, 3) and first["own.t"] is None


def test_state_of_sharded_parameters_is_sharded_and_their_step_is_a_replica() -> None:
    model = torch.nn.Linear(3, 7)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    found = shards({"model": model, "optim": stepped(model)})
    assert found["model.weight"] == found["optim.state.0.exp_avg_sq"] == ((7, 3), (2, 0), "", 0, 1)
    assert found["optim.state.0.step"] == on_all()


def test_step_of_a_parameter_on_a_part_of_the_ranks_is_a_ranks_own() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "dp"))
    model = torch.nn.Linear(3, 7)
    fully_shard(model, mesh=mesh["dp"])
    found = shards({"model": model, "optim": stepped(model)})
    assert found["model.weight"] == ((7, 3), (4, 0), "", 0, 1)
    assert found["optim.state.0.step"] is None
    found = shards({"model": sw.Replicated(model), "optim": sw.Replicated(stepped(model))})
    assert found["model.weight"] == ((7, 3), (4, 0), "ranks 1-3 by 2", 0, 2)
    assert found["optim.state.0.step"] == on_all()


def test_boxes_given_by_hand() -> None:
    first, second = torch.ones(2, 3), torch.zeros(1, 3)
    state = {
        "one": sw.Shard(np.ones((2, 3)), (8, 3), (2, 0)),
        "two": [sw.Shard(first, (8, 3), (2, 0)), sw.Shard(second, (8, 3), (7, 0))],
    }
    flat = Flattener(rank_info=RankInfo(RANK, WORLD))
    assert flat.flatten(state) == {"one": {"$a": "one"}, "two": {"$t": "two"}}
    assert flat.torch_names == ["two", "two"] and flat.torch_tensors[1] is second
    assert [flat.torch_shards[index][1] for index in (0, 1)] == [(2, 0), (7, 0)]
    assert flat.array_shards == {0: ((8, 3), (2, 0), "", 0, 1)}


@pytest.mark.parametrize(
    ("shape", "offset", "problem"),
    [((8,), (0, 0), "same length"), ((8, 3), (7, 0), "within"), ((8, -3), (0, 0), "global_shape"), (8, (0,), "global")],
)
def test_boxes_that_cannot_be_are_refused(shape: Any, offset: Any, problem: str) -> None:
    with pytest.raises(sw.UsageError, match=problem):
        sw.Shard(torch.ones(2, 3), shape, offset)


def test_boxes_of_different_tensors_under_one_name_are_refused() -> None:
    with pytest.raises(sw.UsageError, match="'w'"):
        shards({"w": [sw.Shard(torch.ones(2), (4,), (0,)), sw.Shard(torch.ones(2), (8,), (2,))]})


def test_a_tensor_in_several_boxes_has_a_view_for_each() -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    whole = torch.arange(16)
    placements = [_StridedShard(0, split_factor=2)]
    tensor = distribute_tensor(whole, init_device_mesh("cpu", (WORLD,)), placements, src_data_rank=None)
    flat = Flattener(rank_info=RankInfo(RANK, WORLD))
    flat.flatten({"w": tensor})
    assert flat.torch_names == ["w", "w"]
    for index, part in enumerate(flat.torch_tensors):
        start = flat.torch_shards[index][1][0]
        assert torch.equal(part, whole[start : start + len(part)])
        assert part.untyped_storage().data_ptr() == tensor._local_tensor.untyped_storage().data_ptr()


def test_a_slice_of_no_larger_mesh_in_replicated_is_refused() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    tensor = distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0, 1]), [Shard(0)], src_data_rank=None)
    with pytest.raises(sw.UsageError, match="'w' is in sw.Replicated"):
        shards({"w": sw.Replicated(tensor)})


def test_whole_tensors_of_one_shape_may_be_held_by_all_or_handed_over_by_one() -> None:
    for order in (("whole", "alone"), ("alone", "whole")):
        rank_info = RankInfo(RANK, WORLD)
        found = {method: getattr(rank_info, method)((2, 3)) for method in order}
        assert found == {"whole": on_all(2, 3), "alone": ((2, 3), (0, 0), "", 0, 1)}


def test_what_follows_replicated_is_a_ranks_own_again() -> None:
    box = sw.Shard(torch.ones(2), (8,), (2,))
    found = shards({"a": sw.Replicated(torch.ones(3)), "box": box, "t": torch.ones(4), "z": sw.Replicated(np.ones(5))})
    assert found["box"] == ((8,), (2,), "", 0, 1)
    assert found["t"] is None
    assert found["a"] == on_all(3) and found["z"] == on_all(5)


def test_structure_of_an_earlier_save_is_not_used_for_other_shards() -> None:
    """The same names, shapes and memory, but other ranks hold them, too."""
    tensor, array = torch.ones(3), np.ones(3)
    for plain, shared in (
        (tensor, sw.Replicated(tensor)),
        (array, sw.Replicated(array)),
        (sw.Shard(tensor, (6,), (0,)), sw.Shard(tensor, (6,), (3,))),
    ):
        capturer = Capturer(False, RANK, WORLD)
        first = capturer.capture({"x": plain}).structure
        assert capturer.capture({"x": plain}).structure is first
        assert capturer.capture({"x": shared}).structure is not first


def test_shards_keep_their_tensors_when_buffers_are_left_to_rank_zero() -> None:
    """BatchNorm stands between: its buffers are handed over by rank 0, and all behind them move up."""
    layers = [torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 5)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    flat = Flattener(rank_info=RankInfo(RANK, WORLD))
    flat.flatten({"model": model, "own": torch.ones(4)})
    assert "model.1.running_mean" not in flat.torch_names
    assert len(flat.torch_names) == len(flat.torch_tensors) == len(flat.torch_updates)
    for index, (name, tensor) in enumerate(zip(flat.torch_names, flat.torch_tensors, strict=True)):
        expected = None if name == "own" else on_all(*tensor.shape)
        assert flat.torch_shards.get(index) == expected, name
    assert all(index < len(flat.torch_names) for index in flat.torch_shards)


def test_buffers_that_ddp_does_not_broadcast_are_a_ranks_own() -> None:
    model = DistributedDataParallel(torch.nn.BatchNorm1d(3), broadcast_buffers=False)
    found = shards({"model": model})
    assert found["model.running_mean"] is None
    assert found["model.weight"] == on_all(3)


def test_equal_tensors_inside_and_outside_replicated_are_told_apart() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "dp"))
    for order in (("plain", "shared"), ("shared", "plain")):
        tensor = distribute_tensor(torch.ones(4), mesh["dp"], [Shard(0)], src_data_rank=None)
        values = {"plain": tensor, "shared": sw.Replicated(tensor)}
        found = shards({name: values[name] for name in order})
        assert found["plain"] == ((4,), (2,), "", 0, 1)
        assert found["shared"] == ((4,), (2,), "ranks 1-3 by 2", 0, 2)
