"""torch.distributed.checkpoint through Slackwater on several ranks: shards, other numbers of ranks, failures."""

from __future__ import annotations

from pathlib import Path

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from slackwater.integrations.dcp import SlackwaterReader

_COMMON = """
    import threading, warnings
    warnings.simplefilter("ignore")
    import torch.distributed.checkpoint as dcp
    from slackwater.integrations.dcp import SlackwaterReader, SlackwaterSavePlanner, SlackwaterWriter
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def full(tensor):
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def trained(mesh, seed, steps=2):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(steps):
            torch.manual_seed(100 + step)
            model(torch.randn(4, 10)).square().mean().backward()
            optim.step()
            optim.zero_grad()
        return model, optim

    def states(model, optim, step):
        model_state, optim_state = get_state_dict(model, optim)
        return {"model": model_state, "optim": optim_state, "step": step}

    def numbers(model, optim):
        found = {name: full(value).detach().clone() for name, value in model.state_dict().items()}
        for number, entry in enumerate(optim.state.values()):
            found |= {f"{number}.{key}": full(value).clone() for key, value in entry.items()}
        return found
"""


def passed(answer: dict[str, object], world: int) -> None:
    assert answer["codes"] == [0] * world, answer["errors"]


_SAVE = (
    _COMMON
    + """
    def main(rank):
        join(rank)
        model, optim = trained(init_device_mesh("cpu", (world,)), seed=1)
        state = states(model, optim, 2)
        writer = SlackwaterWriter(f"{path}/step-2", **SMALL)
        if ASYNC:
            # A group of its own: collectives of training run at the same time.
            response = dcp.async_save(state, storage_writer=writer, process_group=dist.new_group())
            response.staging_completion.result()
            kept = numbers(model, optim)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            response.upload_completion.result()
        else:
            dcp.save(state, storage_writer=writer)
            kept = numbers(model, optim)
        if rank == 0:
            torch.save(kept, f"{path}/expected.pt")
"""
)

_LOAD = (
    _COMMON
    + """
    def main(rank):
        join(rank)
        model, optim = trained(init_device_mesh("cpu", (world,)), seed=9, steps=1)
        state = states(model, optim, 0)
        dcp.load(state, storage_reader=SlackwaterReader(f"{path}/step-2"))
        set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
        expected, found = torch.load(f"{path}/expected.pt"), numbers(model, optim)
        assert state["step"] == 2
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
"""
)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async_save"])
def test_fsdp2_saved_on_4_ranks_loads_on_2_and_on_1(tmp_path: Path, asynchronous: bool) -> None:
    passed(run_ranks(f"    ASYNC = {asynchronous}\n" + _SAVE, 4, tmp_path), 4)
    passed(run_ranks(_LOAD, 2, tmp_path), 2)
    expected = torch.load(tmp_path / "expected.pt")
    with sw.open(tmp_path / "step-2") as reader:
        assert reader.step == 2 and reader.tree()["step"] == 2
        for name, tensor in reader.tree()["model"].items():
            assert torch.equal(tensor, expected[name])


def test_tensor_parallel_and_hybrid_shards_replicas_and_values_of_single_ranks(tmp_path: Path) -> None:
    """Two-dimensional shards, HSDP (shards that are also replicated), plain tensors, and a value of each rank."""
    answer = run_ranks(
        _COMMON
        + """
    def main(rank):
        join(rank)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        whole = torch.arange(7 * 6.0).reshape(7, 6)
        state = {
            "2d": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
            "hsdp": distribute_tensor(whole + 1, mesh, [Replicate(), Shard(0)]),
            "tp": distribute_tensor(whole + 2, mesh, [Replicate(), Shard(1)]),
            "copies": distribute_tensor(whole + 3, mesh, [Replicate(), Replicate()]),
            "few rows": distribute_tensor(torch.ones(1, 3), mesh, [Shard(0), Replicate()]),
            "plain": whole + 4,
            f"rank {rank}": {"seen": rank * 10},
        }
        tied = state["hsdp"]
        state["tied"] = tied
        dcp.save(state, storage_writer=SlackwaterWriter(path, **SMALL))

        other = {
            "2d": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(1), Shard(0)]),
            "hsdp": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(0), Replicate()]),
            "tp": torch.zeros(7, 6),
            "copies": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(0), Shard(0)]),
            "few rows": torch.zeros(1, 3),
            "plain": torch.zeros(7, 6),
            "tied": torch.zeros(7, 6),
            f"rank {(rank + 1) % world}": {"seen": None},
        }
        dcp.load(other, storage_reader=SlackwaterReader(path))
        for name, added in {"2d": 0, "hsdp": 1, "tp": 2, "copies": 3, "plain": 4, "tied": 1}.items():
            assert torch.equal(full(other[name]), whole + added), name
        assert torch.equal(other["few rows"], torch.ones(1, 3))
        assert other[f"rank {(rank + 1) % world}"] == {"seen": (rank + 1) % world * 10}
""",
        4,
        tmp_path / "run",
    )
    passed(answer, 4)
    metadata = SlackwaterReader(tmp_path / "run").read_metadata()
    assert metadata.planner_data["rank 3.seen"] == ("rank 3", "seen")
    assert sw.load(tmp_path / "run")["rank 2"] == {"seen": 20}


def test_one_group_of_ranks_saves_and_single_ranks_save_alone(tmp_path: Path) -> None:
    answer = run_ranks(
        _COMMON
        + """
    def main(rank):
        join(rank)
        group = dist.new_group([1, 2])
        if rank in (1, 2):
            dcp.save({"a": torch.full((3,), 7.0)}, storage_writer=SlackwaterWriter(f"{path}/group", **SMALL),
                     process_group=group)
        dist.barrier()
        mesh = init_device_mesh("cpu", (world,))
        sharded = distribute_tensor(torch.arange(9.0), mesh, [Shard(0)])
        # Alone: only this rank's box of the tensor is in the checkpoint.
        dcp.save({"s": sharded, "rank": rank}, storage_writer=SlackwaterWriter(f"{path}/alone-{rank}", **SMALL),
                 no_dist=True)
        dcp.save({"s": sharded, "rank": rank}, storage_writer=SlackwaterWriter(f"{path}/each", **SMALL),
                 use_collectives=False)
        for reader, options in ((SlackwaterReader(f"{path}/alone-{rank}"), {"no_dist": True}),
                                (SlackwaterReader(f"{path}/each"), {})):
            state = {"s": distribute_tensor(torch.zeros(9), mesh, [Shard(0)]), "rank": None}
            dcp.load(state, storage_reader=reader, **options)
            assert state["rank"] == rank
            assert torch.equal(state["s"].full_tensor(), torch.arange(9.0))
        if rank == 0:
            state = {"a": torch.zeros(3)}
            dcp.load(state, storage_reader=SlackwaterReader(f"{path}/group"), no_dist=True)
            assert torch.equal(state["a"], torch.full((3,), 7.0))
""",
        3,
        tmp_path,
    )
    passed(answer, 3)


def test_a_rank_that_fails_makes_all_fail_and_nothing_becomes_visible(tmp_path: Path) -> None:
    answer = run_ranks(
        _COMMON
        + """
    class Failing(DefaultSavePlanner):
        def resolve_data(self, item):
            raise OSError("rank 1 has no disk")

    def main(rank):
        join(rank)
        mesh = init_device_mesh("cpu", (world,))
        state = {"a": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
        writer = SlackwaterWriter(path, **SMALL)
        dcp.save(state, storage_writer=writer)
        worse = {"a": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
        try:
            dcp.save(worse, storage_writer=writer, planner=Failing() if rank == 1 else None)
            print(f"rank {rank}: saved")
        except CheckpointException as error:
            assert "rank 1 has no disk" in str(error)
        try:  # and in the background
            response = dcp.async_save(worse, storage_writer=writer, planner=Failing() if rank == 1 else None)
            response.staging_completion.result()
            response.upload_completion.result()
            print(f"rank {rank}: saved")
        except CheckpointException as error:
            assert "rank 1 has no disk" in str(error)
        found = {"a": torch.zeros(8)}
        dcp.load(found, storage_reader=SlackwaterReader(path))
        assert torch.equal(found["a"], torch.arange(8.0))
        better = {"a": distribute_tensor(torch.ones(8), mesh, [Shard(0)])}
        dcp.save(better, storage_writer=writer)
        dcp.load(found, storage_reader=SlackwaterReader(path))
        assert torch.equal(found["a"], torch.ones(8))
""",
        2,
        tmp_path / "run",
    )
    passed(answer, 2)
    assert answer["lines"] == []
    assert len(list((tmp_path / "run").glob("step-*"))) == 1


_KILLED = (
    _COMMON
    + """
    class Killed(DefaultSavePlanner):
        # The rank dies when it has been told what to write, or, as the coordinator, when all have written.
        def resolve_data(self, item):
            if WHEN == "write":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(item)

    class KilledWriter(SlackwaterWriter):
        def finish(self, metadata, results):
            os.kill(os.getpid(), signal.SIGKILL)

    def main(rank):
        join(rank)
        mesh = init_device_mesh("cpu", (world,))
        dcp.save({"a": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}, checkpoint_id=path,
                 storage_writer=SlackwaterWriter(path, **SMALL))
        dies = rank == 0 if WHEN == "finish" else rank == 1
        kind = KilledWriter if dies and WHEN == "finish" else SlackwaterWriter
        try:
            dcp.save({"a": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])},
                     storage_writer=kind(path, **SMALL), planner=Killed() if dies else None)
        except BaseException:
            os._exit(3)
        os._exit(4)
"""
)


@pytest.mark.parametrize("when", ["write", "finish"])
def test_a_rank_killed_in_the_middle_leaves_nothing_visible(tmp_path: Path, when: str) -> None:
    path = tmp_path / "run"
    answer = run_ranks(f"    WHEN = {when!r}\n" + _KILLED, 2, path, severed=True)
    dead = 0 if when == "finish" else 1
    assert answer["codes"][dead] == -9 and answer["codes"][1 - dead] == 3, answer["errors"]
    assert len(list(path.glob("step-*"))) == 2  # the one that is committed, and what is left of the other
    found = run_ranks(
        _COMMON
        + """
    def main(rank):
        join(rank)
        found = {"a": torch.zeros(8)}
        dcp.load(found, storage_reader=SlackwaterReader(path))
        assert torch.equal(found["a"], torch.arange(8.0))
        dcp.save({"a": torch.ones(8)}, storage_writer=SlackwaterWriter(path, **SMALL))
        dcp.load(found, storage_reader=SlackwaterReader(path))
        assert torch.equal(found["a"], torch.ones(8))
""",
        1,
        path,
    )
    passed(found, 1)
    assert len(list(path.glob("step-*"))) == 1


def test_plans_are_cached_on_several_ranks_and_changes_on_one_are_noticed(tmp_path: Path) -> None:
    answer = run_ranks(
        _COMMON
        + """
    def main(rank):
        join(rank)
        mesh = init_device_mesh("cpu", (world,))
        writer = SlackwaterWriter("unused", **SMALL)
        kinds = [torch.float32, torch.float32, torch.bfloat16, torch.float32, torch.float32]
        for planner in (SlackwaterSavePlanner, lambda: DefaultSavePlanner(enable_plan_caching=True)):
            for step, kind in enumerate(kinds):
                state = {"s": distribute_tensor((torch.arange(6.0) + step).to(kind), mesh, [Shard(0)]), "n": step}
                if step == 3 and rank == 1:
                    state["only here"] = torch.full((2,), 5.0)
                dcp.save(state, checkpoint_id=f"{path}/{step}", storage_writer=writer, planner=planner())
                found = {"s": torch.zeros(6, dtype=kind), "n": None}
                if step == 3:
                    found["only here"] = torch.zeros(2)
                dcp.load(found, storage_reader=SlackwaterReader(f"{path}/{step}"))
                assert found["n"] == step and torch.equal(found["s"], (torch.arange(6.0) + step).to(kind))
                assert step != 3 or torch.equal(found["only here"], torch.full((2,), 5.0))
""",
        2,
        tmp_path,
    )
    passed(answer, 2)
