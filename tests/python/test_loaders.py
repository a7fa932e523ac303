"""Random states come back last, and data loaders with state go on as if nothing had happened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from resume_cases import Samples
from resume_server import Server
from support import library, need
from torch.utils.data import DataLoader

Make = Callable[..., sw.Checkpointer]
Ask = Callable[..., dict[str, Any]]


def stateful(workers: int = 0, **options: Any) -> Any:
    module = library("torchdata.stateful_dataloader")
    return module.StatefulDataLoader(Samples(augmented=False), 4, shuffle=True, num_workers=workers, **options)


# Killed with SIGKILL after a certain step, in processes of their own


@pytest.fixture(scope="module")
def ask(resume_server: Server) -> Ask:
    """Runs one training to its end, or to its kill, and says how it ended."""

    def order(path: Path, kill_at: int | None = None, **case: str) -> dict[str, Any]:
        answer = resume_server.ask(case=case, path=str(path), steps=12, kill_at=kill_at)
        assert not answer["errors"], answer["errors"]
        return answer

    return order


@pytest.fixture(scope="module")
def alone(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """How a run ends that nobody interrupts."""

    @functools.cache
    def ends(**case: str) -> dict[str, str]:
        return ask(tmp_path_factory.mktemp("alone") / "run", **case, save="epoch")["ends"]

    return ends


@pytest.mark.parametrize(
    ("save", "kill_at"), [("step", 3), ("step", 5), ("epoch", 5)], ids=["within", "last", "between"]
)
@pytest.mark.parametrize(
    ("loop", "loader"),
    [("plain", "stateful-0"), ("plain", "stateful-2"), ("plain", "plain"), ("accelerate", "stateful-0")],
)
def test_killed_run_ends_with_the_same_bits(
    loop: str, loader: str, save: str, kill_at: int, ask: Ask, alone: Callable[..., Any], tmp_path: Path
) -> None:
    """An epoch has 5 batches: the checkpoint is one within it, one at its last batch, or one between two epochs."""
    if loader != "plain":
        need("torchdata")
    if loop == "accelerate":
        need("accelerate")
    killed = ask(tmp_path / "run", kill_at, loop=loop, loader=loader, save=save)
    assert not killed["ends"]
    resumed = ask(tmp_path / "run", loop=loop, loader=loader, save=save)
    assert resumed["start"] == kill_at
    assert resumed["ends"] == alone(loop=loop, loader=loader)


# The rules, one by one


class Drawer:
    """An object that draws while its state is taken, and while it is loaded."""

    def state_dict(self) -> dict[str, float]:
        return {"drawn": torch.rand(()).item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        torch.rand(3)


@pytest.mark.parametrize("keys", ["ab", "ba"])
def test_random_states_are_taken_and_set_last_whatever_the_order_of_keys(keys: str, make: Make) -> None:
    state = {key: sw.Rng() if key == "a" else Drawer() for key in keys}
    with make() as ckpt:
        ckpt.save(1, state)
        expected = torch.rand(4)
        torch.rand(2)
        assert ckpt.restore(state) == 1
        assert torch.equal(torch.rand(4), expected)


def test_random_states_may_stand_anywhere(make: Make) -> None:
    own = torch.Generator().manual_seed(1)
    state = {"deep": [{"rng": sw.Replicated(sw.Rng(own=own))}], "w": torch.arange(3.0)}
    with make() as ckpt:
        ckpt.save(1, state)
        expected = torch.rand(4), torch.rand(4, generator=own)
        ckpt.restore(state)
        assert torch.equal(torch.rand(4), expected[0]) and torch.equal(torch.rand(4, generator=own), expected[1])
    assert sw.load(ckpt.path)["deep"][0]["rng"].keys() >= {"python", "torch", "generators"}


@pytest.mark.parametrize("workers", [0, 2])
def test_iterator_of_a_loader_within_its_epoch_takes_back_what_was_drawn(workers: int, make: Make) -> None:
    loader = stateful(workers)
    batches = iter(loader)
    next(batches)
    with make() as ckpt:
        ckpt.save(1, {"data": loader, "rng": sw.Rng()})
        expected = next(batches), torch.rand(4)
    again = stateful(workers)
    with make() as ckpt:
        assert ckpt.restore({"data": again, "rng": sw.Rng()}) == 1
        torch.rand(3)  # before the loop begins
        batch = next(iter(again))
        assert torch.equal(batch, expected[0]) and torch.equal(torch.rand(4), expected[1])
    assert "_get_iterator" not in vars(again)
    state = torch.get_rng_state()
    iter(again)
    assert not torch.equal(torch.get_rng_state(), state)  # the next epoch draws as ever


def test_loader_between_epochs_leaves_what_is_drawn_before_it_begins(make: Make) -> None:
    """There the program goes on as the run that was not interrupted does: nothing but the remade iterator is undone."""

    def begin_epoch(loader: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.rand(3)
        return next(iter(loader)), torch.rand(4)

    loader = stateful()
    list(loader)
    with make() as ckpt:
        ckpt.save(1, {"data": loader, "rng": sw.Rng()})
        expected = begin_epoch(loader)
    again = stateful()
    with make() as ckpt:
        ckpt.restore({"data": again, "rng": sw.Rng()})
        assert all(map(torch.equal, begin_epoch(again), expected))


def test_second_loader_does_not_turn_time_back(make: Make) -> None:
    def go_on(train: Iterator[Any], second: Any) -> list[torch.Tensor]:
        return [next(train), torch.rand(4), next(iter(second)), torch.rand(4)]

    loader, second = stateful(), stateful()
    batches = iter(loader)
    next(batches)
    with make() as ckpt:
        ckpt.save(1, {"rng": sw.Rng(), "train": loader, "second": second})  # which begins the second one's first epoch
        expected = go_on(batches, second)
    state = {"rng": sw.Rng(), "train": stateful(), "second": stateful()}
    with make() as ckpt:
        ckpt.restore(state)
        assert all(map(torch.equal, go_on(iter(state["train"]), state["second"]), expected))


def test_loader_restored_twice_goes_on_from_the_second(make: Make) -> None:
    loader = stateful()
    batches = iter(loader)
    state = {"data": loader, "rng": sw.Rng()}
    with make(keep=0) as ckpt:
        for step in (1, 2):
            next(batches)
            torch.rand(1)
            ckpt.save(step, state)
        ckpt.wait()
        ckpt.restore(state)
        ckpt.restore(state, step=1)
        iter(loader)
        first = torch.rand(4)
        ckpt.restore(state, step=1)
        assert torch.equal(torch.rand(4), first)


def test_loader_without_random_states_draws_as_ever(make: Make) -> None:
    loader = stateful()
    next(iter(loader))
    with make() as ckpt:
        ckpt.save(1, {"data": loader})
        ckpt.restore({"data": loader})
    state = torch.get_rng_state()
    iter(loader)
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fetched", [2, 5, None])
def test_sampler_that_keeps_its_place_begins_the_next_epoch_at_its_beginning(fetched: int | None, make: Make) -> None:
    """None: the epoch has ended. torchdata alone would give an empty epoch then."""
    samplers = library("torchdata.stateful_dataloader.sampler")
    module = library("torchdata.stateful_dataloader")

    def build() -> Any:
        samples = Samples(augmented=False)
        sampler = samplers.StatefulDistributedSampler(samples, num_replicas=1, rank=0, seed=3)
        return module.StatefulDataLoader(samples, 4, sampler=sampler)

    loader, again = build(), build()
    batches = iter(loader)
    for _ in batches if fetched is None else range(fetched):
        if fetched is not None:
            next(batches)
    with make() as ckpt:
        ckpt.save(1, {"data": loader})
        ckpt.restore({"data": again})
    if fetched is not None:
        assert len(list(again)) == 5 - fetched
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in build()]


def test_block_of_resume_takes_back_what_is_drawn_inside(make: Make) -> None:
    state = {"rng": sw.Rng(), "epoch": 3}
    with make() as ckpt:
        with ckpt.resume(state) as start:
            assert start == 0
            torch.manual_seed(5)
        assert torch.initial_seed() == 5  # nothing was restored, nothing is set
        ckpt.save(1, state)
        expected = torch.rand(4)
        with ckpt.resume(state, strict=False) as start:
            assert start == 1
            torch.rand(9)
        assert torch.equal(torch.rand(4), expected)
        with pytest.raises(KeyError), ckpt.resume(state):
            raise KeyError("comes through")


def test_loader_of_accelerate_without_state_is_named(make: Make) -> None:
    accelerate = library("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(Samples(augmented=False), 4))
    with make() as ckpt, pytest.raises(sw.UnsupportedError, match="'data'.*use_stateful_dataloader=True"):
        ckpt.save(1, {"data": loader})
