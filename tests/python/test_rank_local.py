"""What belongs to single ranks, on another number of them: random states are left alone, weights never in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from slackwater.restore.rank_local import RankLocal, kind_of_lost
from support import need
from torch import nn

COMMON = """
import copy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))

def hooked(seed):
    made = net(seed)
    made.register_state_dict_pre_hook(lambda *_: None)  # goes through state_dict(), which hands out other tensors
    return made

def train(model, optim):
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, 6)).mean().backward()
    optim.step()
    optim.zero_grad()
"""


def run(program: str, world: int, path: Path) -> list[str]:
    answer = run_ranks(COMMON + program, world, path)
    assert answer["codes"] == [0] * world, answer["errors"]
    return answer["lines"]


def alone() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(99)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    return model, torch.optim.AdamW(model.parameters())


# DDP elsewhere

INNER = """
def main(rank):
    join(rank)
    inner = {"plain": net, "hooked": hooked}["KIND"](1)
    model = DistributedDataParallel(inner)
    optim = torch.optim.AdamW(inner.parameters())
    train(model, optim)
    with sw.Checkpointer(f"{path}-KIND", **SMALL) as ckpt:
        ckpt.save(1, {"model": model.module, "optim": optim, "rng": sw.Rng()})
    with sw.Checkpointer(f"{path}-KIND-optim", **SMALL) as ckpt:
        ckpt.save(1, {"optim": optim})
    if rank == 0:
        torch.save([inner.state_dict(), optim.state_dict()], f"{path}-KIND.pt")
"""


@pytest.mark.parametrize("kind", ["plain", "hooked"])
def test_module_inside_ddp_and_its_optimizer_are_replicas(kind: str, tmp_path: Path) -> None:
    run(INNER.replace("KIND", kind), 2, tmp_path / "run")
    saved, moments = torch.load(tmp_path / f"run-{kind}.pt")
    for part in ("", "-optim"):
        model, optim = alone()
        state = {"optim": optim} if part else {"model": model, "optim": optim, "rng": sw.Rng()}
        with sw.Checkpointer(tmp_path / f"run-{kind}{part}", pool="2MiB", slab="1MiB") as ckpt:
            assert ckpt.restore(state) == 1
        assert part or all(torch.equal(tensor, saved[key]) for key, tensor in model.state_dict().items())
        for number, state_of in optim.state_dict()["state"].items():
            assert all(torch.equal(tensor, moments["state"][number][key]) for key, tensor in state_of.items())


ACCELERATE = """
def main(rank):
    store = join(rank)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    inner = net(1)
    model, optim = accelerator.prepare(inner, torch.optim.AdamW(inner.parameters()))
    assert type(optim).__name__ == "AcceleratedOptimizer" and isinstance(model, DistributedDataParallel)
    train(model, optim)
    with sw.Checkpointer(path, **SMALL) as ckpt:
        ckpt.save(1, {"model": model, "optim": optim})
    again = net(2)
    again, fresh = accelerator.prepare(again, torch.optim.AdamW(again.parameters()))
    with sw.Checkpointer(path, **SMALL) as ckpt:
        assert ckpt.restore({"model": again, "optim": fresh}) == 1
    first, second = optim.state_dict()["state"], fresh.state_dict()["state"]
    assert all(torch.equal(first[n][key], second[n][key]) for n in first for key in first[n])
    if rank == 0:
        torch.save(first, f"{path}.pt")
"""


def test_wrapped_optimizer_of_accelerate_is_the_optimizer_inside(tmp_path: Path) -> None:
    need("accelerate")
    run(ACCELERATE, 2, tmp_path / "run")
    model, optim = alone()
    with sw.Checkpointer(tmp_path / "run", pool="2MiB", slab="1MiB") as ckpt:
        assert ckpt.restore({"model": model, "optim": optim}) == 1  # on one rank, without Accelerate, without options
    saved = torch.load(tmp_path / "run.pt")
    for number, state in optim.state_dict()["state"].items():
        assert all(torch.equal(tensor, saved[number][key]) for key, tensor in state.items())


class Scaled(torch.optim.SGD):
    """Looks like a wrapper, and keeps something of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self.optimizer.state_dict(), "scale": 3.0}


def test_wrapper_with_state_of_its_own_is_not_unwrapped() -> None:
    from slackwater.integrations.torch_state import inner_optimizer

    inner = torch.optim.SGD([nn.Parameter(torch.ones(2))])
    wrapper = Scaled(inner)
    assert inner_optimizer(wrapper) is wrapper and inner_optimizer(inner) is inner and inner_optimizer("x") == "x"


# What is no replica

OWN = """
def main(rank):
    join(rank)
    inner = net(1)
    model = DistributedDataParallel(inner)
    optim = torch.optim.AdamW(inner.parameters())
    own = net(2)
    own_optim = torch.optim.SGD(own.parameters(), momentum=0.9)
    train(model, optim)
    train(own, own_optim)
    with sw.Checkpointer(path, **SMALL) as ckpt:
        ckpt.save(1, {
            "model": model, "optim": optim, "own": own, "own_optim": own_optim, "ema": copy.deepcopy(inner),
            "weights": {"a": torch.randn(3)}, "list": [torch.randn(2)], "seeds": torch.arange(3) + rank, "seat": rank,
            "rng": sw.Rng(), "epoch": 4,
        })
        ckpt.wait()
"""


def own_state(*keys: str) -> dict[str, Any]:
    torch.manual_seed(5)
    model, optim = alone()
    own, _ = alone()
    own_optim = torch.optim.SGD(own.parameters(), momentum=0.9)
    everything = {
        "model": model,
        "optim": optim,
        "own": own,
        "own_optim": own_optim,
        "ema": alone()[0],
        "weights": {"a": torch.zeros(3)},
        "list": [torch.zeros(2)],
        "seeds": torch.zeros(3, dtype=torch.int64),
        "seat": -1,
        "rng": sw.Rng(),
        "epoch": 0,
    }
    return {key: everything[key] for key in ("model", "optim", "rng", "epoch", *keys)}


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "run"
    run(OWN, 2, path)
    return path


@pytest.fixture
def restore(saved_by_two: Path) -> Any:
    def call(*keys: str, **options: Any) -> dict[str, Any]:
        state = own_state(*keys)
        only = {"only": list(state)}
        with sw.Checkpointer(saved_by_two, pool="2MiB", slab="1MiB") as ckpt:
            assert ckpt.restore(state, **only, **options) == 1
        return state

    return call


def test_random_states_alone_are_left_out_by_themselves(restore: Any, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(77)
    state = restore()
    assert state["epoch"] == 4 and torch.initial_seed() != 0
    assert "'rng'" in caplog.text and "left as it is here" in caplog.text
    with pytest.raises(sw.MismatchError, match="'rng'"):
        restore(rank_local="error")


@pytest.mark.parametrize("key", ["own", "own_optim", "ema", "weights", "list"])
@pytest.mark.parametrize("said", ["random", "drop", "error"])
def test_weights_are_never_left_out_unless_they_are_named(key: str, said: str, restore: Any) -> None:
    with pytest.raises(sw.MismatchError, match=rf"'{key}.*sw\.Replicated.*rank_local=\[.*'{key}'"):
        restore(key, rank_local=said)
    state = restore(key, rank_local=[f"{key}.*"])
    assert state["epoch"] == 4
    if key in ("own", "ema"):
        assert torch.equal(state[key][0].weight, own_state(key)[key][0].weight)


@pytest.mark.parametrize("key", ["seeds", "seat"])
def test_other_things_are_left_out_with_drop(key: str, restore: Any) -> None:
    with pytest.raises(sw.MismatchError, match=f"'{key}'.*rank_local='drop'"):
        restore(key)
    for said in ("drop", [key]):
        state = restore(key, rank_local=said)
        assert state["epoch"] == 4
        assert state["seat"] == -1 if key == "seat" else not state["seeds"].any()
    with pytest.raises(sw.MismatchError, match=f"'{key}'"):
        restore(key, rank_local=["other.*"])


def test_what_can_be_said() -> None:
    for wrong in ("dorp", "model.*", 5):
        with pytest.raises(sw.UsageError, match="rank_local is"):
            RankLocal(wrong)  # type: ignore[arg-type]
    with pytest.raises(sw.UsageError, match="pattern"):
        RankLocal([5])  # type: ignore[list-item]


def test_what_a_saved_thing_is() -> None:
    rng = {"$": "object", "of": "object", "class": "slackwater.rng.Rng", "v": {"torch": {"$t": "r"}}}
    loader = {"$": "object", "of": "object", "class": "x.Loader", "v": {"n": 1, "order": {"$t": "bytes"}}}
    dtypes = {"r": "uint8", "bytes": "uint8", "w": "bfloat16"}
    for node, kind in (
        (rng, "random"),
        ({"a": rng, "b": [rng]}, "random"),
        ({"a": rng, "epoch": 1}, "other"),
        (loader, "other"),
        ({"a": rng, "w": {"$t": "w"}}, "weights"),
        ({"a": {"$t": "unknown"}}, "weights"),
        ([{"$": "object", "of": "optimizer", "class": "x", "v": {}}], "weights"),
        (3, "other"),
    ):
        assert kind_of_lost(node, dtypes.get) == kind, node
