"""Boxes of local shards, proved against the contents of real DTensors: every element knows its own place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import slackwater as sw
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from slackwater.integrations.torch_ranks import Meshes
from slackwater.ranks import boxes
from slackwater.ranks.boxes import Box, Cut, local_boxes
from slackwater.ranks.sharding import group_text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """This process as one rank of many: torch cuts tensors as it always does, only nobody answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def numbered(*shape: int) -> torch.Tensor:
    """A tensor whose elements are their own linear indices."""
    return torch.arange(math.prod(shape)).reshape(shape)


def cut_out(tensor: torch.Tensor, start: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    return tensor[tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))]


def check(local: torch.Tensor, found: tuple[Box, ...], whole: torch.Tensor, what: Any) -> None:
    """Every element of the local tensor is in one box, and is the one of the global tensor that the box says."""
    seen = torch.zeros(local.shape, dtype=torch.int)
    for box in found:
        assert torch.equal(cut_out(local, box.start, box.shape), cut_out(whole, box.offset, box.shape)), what
        cut_out(seen, box.start, box.shape).add_(1)
    assert torch.all(seen == 1), what
    assert boxes.fit(found, tuple(local.shape)), what


PLACEMENTS = [Replicate(), Shard(0), Shard(1)]


@pytest.mark.parametrize("mesh_shape", [(2,), (3,), (6,), (2, 2), (2, 3), (3, 2), (2, 2, 2)], ids=str)
def test_boxes_are_what_distribute_tensor_gives(mesh_shape: tuple[int, ...]) -> None:
    world = math.prod(mesh_shape)
    for rank in range(world):
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            meshes = Meshes(rank, world)
            for placements in itertools.product(PLACEMENTS, repeat=len(mesh_shape)):
                for rows in range(14):
                    whole = numbered(rows, 5)
                    tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
                    where = meshes.locate(tensor, "w")
                    check(tensor.to_local(), where.boxes, whole, (rank, placements, rows))


def test_dimensions_may_be_counted_from_the_end() -> None:
    assert local_boxes((5, 7), (2,), (1,), (Cut(-1),)) == local_boxes((5, 7), (2,), (1,), (Cut(1),))
    with rank_of(1, 2):
        tensor = distribute_tensor(numbered(5, 7), init_device_mesh("cpu", (2,)), [Shard(-1)], src_data_rank=None)
        check(tensor.to_local(), Meshes(1, 2).locate(tensor, "w").boxes, numbered(5, 7), "from the end")


@pytest.mark.parametrize("split_factor", [2, 3, 4, 7])
def test_a_strided_dimension_alone_gives_several_boxes(split_factor: int) -> None:
    for rank, rows in itertools.product(range(3), range(14)):
        with rank_of(rank, 3):
            mesh, whole = init_device_mesh("cpu", (3,)), numbered(rows, 2)
            placement = _StridedShard(0, split_factor=split_factor)
            tensor = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
            check(tensor.to_local(), Meshes(rank, 3).locate(tensor, "w").boxes, whole, (rank, rows))
    assert len(local_boxes((12,), (3,), (1,), (Cut(0, 2),))) == 2


@pytest.mark.parametrize("mesh_shape", [(2, 2), (3, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_boxes_are_what_fully_shard_gives_on_top_of_tensor_parallel(mesh_shape: tuple[int, int], style: Any) -> None:
    """Uneven rows included, which DTensor's own chunk list has wrong."""
    world = math.prod(mesh_shape)
    for rank, rows in itertools.product(range(world), (*range(1, 14), 26)):
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("dp", "tp"))
            linear = torch.nn.Linear(6, rows, bias=True, dtype=torch.float64)
            weight, bias = numbered(rows, 6), numbered(rows)
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            parallelize_module(linear, mesh["tp"], style(), src_data_rank=None)
            fully_shard(linear, mesh=mesh["dp"])
            meshes = Meshes(rank, world)
            for parameter, whole in ((linear.weight, weight), (linear.bias, bias)):
                assert isinstance(parameter, DTensor)
                where = meshes.locate(parameter, "w")
                check(parameter.to_local().detach().long(), where.boxes, whole, (rank, rows, parameter.placements))


def test_boxes_of_all_ranks_tile_the_global_tensor_with_three_dimensions() -> None:
    mesh_shape, cuts = (2, 2, 3), (Cut(0, 6), Cut(0, 3), Cut(0))
    for rows in range(40):
        seen = [0] * rows
        for coordinate in itertools.product(*map(range, mesh_shape)):
            for box in local_boxes((rows,), mesh_shape, coordinate, cuts):
                for row in range(box.offset[0], box.offset[0] + box.shape[0]):
                    seen[row] += 1
        assert seen == [1] * rows


cut = st.none() | st.builds(Cut, st.integers(-2, 1), st.integers(1, 5))


@given(
    shape=st.tuples(st.integers(0, 20), st.integers(0, 6)),
    mesh=st.lists(st.tuples(st.integers(1, 4), cut), min_size=1, max_size=4),
)
def test_any_cuts_tile_the_global_tensor(shape: tuple[int, int], mesh: list[tuple[int, Cut | None]]) -> None:
    mesh_shape, cuts = tuple(size for size, _ in mesh), tuple(cut for _, cut in mesh)
    copies = math.prod(size for size, cut in mesh if cut is None)
    seen = torch.zeros(shape, dtype=torch.int)
    for coordinate in itertools.product(*map(range, mesh_shape)):
        found = local_boxes(shape, mesh_shape, coordinate, cuts)
        assert len(found) == 1 or not any(box.is_empty for box in found)
        for box in found:
            assert all(first + size <= end for first, size, end in zip(box.offset, box.shape, shape, strict=True))
            cut_out(seen, box.offset, box.shape).add_(1)
    assert torch.all(seen == copies)


def test_replicas_are_the_ranks_along_replicate_dimensions() -> None:
    for rank in range(6):
        with rank_of(rank, 6):
            mesh = init_device_mesh("cpu", (3, 2))
            meshes = Meshes(rank, 6)

            def replicas(*placements: Any) -> Any:
                tensor = distribute_tensor(numbered(6, 2), mesh, placements, src_data_rank=None)
                return meshes.locate(tensor, "w").replicas

            assert replicas(Shard(0), Shard(1)) == ("", 0, 1)
            column, row = rank % 2, rank - rank % 2
            assert replicas(Replicate(), Shard(0)) == (f"ranks {column}-{column + 4} by 2", rank // 2, 3)
            assert replicas(Shard(0), Replicate()) == (f"ranks {row}-{row + 1} by 1", column, 2)
            assert replicas(Replicate(), Replicate()) == ("world", rank, 6)


def test_a_slice_of_a_mesh_in_replicated_is_repeated_along_the_rest() -> None:
    for rank in range(4):
        with rank_of(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            tensor = distribute_tensor(numbered(6, 2), mesh["tp"], [Shard(0)], src_data_rank=None)
            meshes = Meshes(rank, 4)
            assert meshes.locate(tensor, "w").replicas == ("", 0, 1)
            group = f"ranks {rank % 2}-{rank % 2 + 2} by 2"
            assert meshes.locate(tensor, "w", replicated=True).replicas == (group, rank // 2, 2)


def test_groups_have_one_name_whatever_the_order() -> None:
    assert group_text([2, 0], 4) == group_text([0, 2], 4) == "ranks 0-2 by 2"
    assert group_text([0, 1, 3], 5) == "ranks 0,1,3"
    assert group_text([1, 0], 2) == "world"


def test_partial_sums_are_refused_by_name() -> None:
    with rank_of(0, 2):
        tensor = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Partial()], run_check=False)
        with pytest.raises(sw.UnsupportedError, match=r"'optim\.sum'.*Partial.*redistribute"):
            Meshes(0, 2).locate(tensor, "optim.sum")


def test_a_local_tensor_of_another_size_is_refused_by_name() -> None:
    """Cut strided dimensions first, as distribute_tensor does it, and uneven rows come to lie elsewhere."""
    refused = 0
    for rank in range(6):
        with rank_of(rank, 6):
            placements = [_StridedShard(0, split_factor=2), Shard(0)]
            tensor = distribute_tensor(numbered(7, 2), init_device_mesh("cpu", (3, 2)), placements, src_data_rank=None)
            try:
                check(tensor.to_local(), Meshes(rank, 6).locate(tensor, "w").boxes, numbered(7, 2), rank)
            except sw.UnsupportedError as error:
                assert "'w'" in str(error) and "sw.Shard" in str(error)
                refused += 1
    assert refused == 2


def test_a_checkpointer_of_other_ranks_is_refused() -> None:
    with rank_of(1, 2):
        tensor = distribute_tensor(numbered(4), init_device_mesh("cpu", (2,)), [Shard(0)], src_data_rank=None)
        with pytest.raises(sw.UsageError, match="rank 1 of 2, and this checkpointer is rank 0 of 1"):
            Meshes(0, 1).locate(tensor, "w")


def test_places_are_worked_out_once() -> None:
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        first, second = (distribute_tensor(numbered(4), mesh, [Shard(0)], src_data_rank=None) for _ in range(2))
        meshes = Meshes(0, 2)
        assert meshes.locate(first, "a") is meshes.locate(second, "b")


def test_boxes_that_leave_a_hole_or_overlap_do_not_fit() -> None:
    first, last = Box((0,), (0,), (2,)), Box((3,), (7,), (1,))
    assert boxes.fit([first, Box((2,), (4,), (1,)), last], (4,))
    assert not boxes.fit([first, last], (4,)), "a hole"
    assert not boxes.fit([first, Box((1,), (4,), (2,)), last], (4,)), "an overlap"
    assert not boxes.fit([first], (4,)), "too short"
    assert not boxes.fit([first, Box((2,), (4,), (3,))], (4,)), "too long"
