"""Restoring in place: what is written where, and what is refused."""

from __future__ import annotations

import copy
import logging
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from slackwater import _core
from support import data_file, same
from test_state import DlPack, Hooked
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]


def test_tensors_are_restored_in_place(save_once: SaveOnce, make: Make) -> None:
    tensor, array = torch.randn(10), np.arange(5)
    save_once({"t": tensor, "deep": [{"a": array}]})
    own_tensor, own_array = torch.zeros(10), np.zeros(5, int)
    target = {"t": own_tensor, "deep": [{"a": own_array}]}
    assert make().restore(target) == 1
    assert target["t"] is own_tensor
    assert target["deep"][0]["a"] is own_array
    assert torch.equal(own_tensor, tensor)
    assert np.array_equal(own_array, array)


def test_plain_values_are_replaced_in_their_containers(save_once: SaveOnce, make: Make) -> None:
    saved = {
        "epoch": 3,
        "best": 0.5,
        "config": {"lr": 0.1, "new": [1]},
        "log": [1, 2, 3],
        "pair": (1, "b"),
        "ns": Namespace(a=1),
        "t": torch.ones(1),
    }
    save_once(saved)
    config, log = {"lr": 9, "old": 1}, [0]
    target = {
        "epoch": 0,
        "config": config,
        "log": log,
        "pair": (0, "a"),
        "ns": Namespace(),
        "t": torch.zeros(1),
        "mine": "kept",
    }
    make().restore(target)
    assert target == {**saved, "mine": "kept"}
    assert target["config"] is config
    assert target["log"] is log


def test_tuples_with_tensors_and_values(save_once: SaveOnce, make: Make) -> None:
    save_once({"pair": (torch.ones(2), 5)})
    tensor = torch.zeros(2)
    target = {"pair": (tensor, 0)}
    make().restore(target)
    assert target["pair"][1] == 5
    assert target["pair"][0] is tensor
    assert tensor.tolist() == [1, 1]


def test_module_parameters_keep_their_identity(save_once: SaveOnce, make: Make) -> None:
    saved = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    saved(torch.randn(8, 3))
    save_once({"m": saved})
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    identities = list(map(id, fresh.parameters()))
    versions = [p._version for p in fresh.parameters()]
    make().restore({"m": fresh})
    assert same(dict(fresh.state_dict()), dict(saved.state_dict()))
    assert list(map(id, fresh.parameters())) == identities
    assert all(p._version > before for p, before in zip(fresh.parameters(), versions, strict=True))
    assert all(p.requires_grad and p.is_leaf for p in fresh.parameters())


def test_autograd_notices_a_restore_in_between(save_once: SaveOnce, make: Make) -> None:
    weight = torch.ones(3, requires_grad=True)
    save_once({"w": weight})
    loss = (weight * weight).sum()
    make().restore({"w": weight})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_module_and_its_state_dict_stand_for_each_other(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    save_once({"m": model.state_dict()})
    fresh = nn.Linear(2, 2)
    make().restore({"m": fresh})
    assert same(dict(fresh.state_dict()), dict(model.state_dict()))


def test_state_dict_restored_from_a_module(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    save_once({"m": model})
    fresh = nn.Linear(2, 2)
    make().restore({"m": fresh.state_dict()})
    assert torch.equal(fresh.weight, model.weight)


def test_wrapped_and_bare_models_stand_for_each_other(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    save_once(
        {
            "m": torch.compile(model, backend="eager"),
            "sd": OrderedDict(("module." + k, v) for k, v in model.state_dict().items()),
        }
    )
    fresh = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    make().restore({"m": fresh, "sd": other.state_dict()})
    assert torch.equal(fresh.weight, model.weight)
    assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fresh_adamw_gets_its_state_with_the_saved_dtypes(dtype: torch.dtype, save_once: SaveOnce, make: Make) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(4, 3).to(dtype)
        return model, torch.optim.AdamW(model.parameters(), lr=0.5)

    model, optim = build()
    model(torch.ones(1, 4, dtype=dtype)).sum().backward()
    optim.step()
    for state in optim.state.values():
        state["exp_avg_sq"] = state[
            "exp_avg_sq"
        ].float()  # torch's own load_state_dict would cast it to the parameter's dtype
    optim.param_groups[0]["lr"] = 0.25
    save_once({"o": optim})
    _, fresh = build()
    make().restore({"o": fresh})
    assert same(fresh.state_dict(), optim.state_dict())
    assert all(state["exp_avg_sq"].dtype is torch.float32 for state in fresh.state.values())


def test_optimizer_state_is_written_where_it_is(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optim.step()
    save_once({"o": optim})
    saved = copy.deepcopy(optim.state_dict())
    kept = optim.state[model.weight]["exp_avg"]
    group = optim.param_groups[0]
    optim.step()
    make().restore({"o": optim})
    assert same(optim.state_dict(), saved)
    assert optim.state[model.weight]["exp_avg"] is kept
    assert optim.param_groups[0] is group


def test_state_an_optimizer_did_not_have_yet_is_taken_away(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.AdamW(model.parameters())
    save_once({"m": model, "o": optim})
    model(torch.ones(1, 2)).sum().backward()
    optim.step()
    make().restore({"m": model, "o": optim})
    assert not optim.state


@pytest.mark.parametrize(
    "factory",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), amsgrad=True, foreach=False),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.Rprop(p),
    ],
    ids=["SGD", "Adam", "AdamW-fused", "Adagrad", "RMSprop", "LBFGS", "NAdam", "Rprop"],
)
def test_optimizers_of_torch(factory: Callable[[Any], torch.optim.Optimizer], save_once: SaveOnce, make: Make) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        return model, factory(model.parameters())

    def step(model: nn.Module, optim: torch.optim.Optimizer) -> None:
        def closure() -> torch.Tensor:
            optim.zero_grad()
            loss = model(torch.ones(2, 3)).square().sum()
            loss.backward()
            return loss

        optim.step(closure)

    model, optim = build()
    step(model, optim)
    save_once({"m": model, "o": optim})
    other, fresh = build()
    make().restore({"m": other, "o": fresh})
    assert same(fresh.state_dict(), optim.state_dict())
    step(model, optim)
    step(other, fresh)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(fresh.state_dict(), optim.state_dict())


def test_optimizer_with_other_groups_is_refused(save_once: SaveOnce, make: Make) -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    save_once({"o": torch.optim.SGD([{"params": a.parameters()}, {"params": b.parameters()}], lr=0.1)})
    with pytest.raises(sw.MismatchError, match="'o' has 1 parameter groups here and 2 in the checkpoint"):
        make().restore({"o": torch.optim.SGD(a.parameters(), lr=0.1)})


def test_optimizer_with_other_parameters_is_refused(save_once: SaveOnce, make: Make) -> None:
    a = nn.Linear(2, 2)
    save_once({"o": torch.optim.SGD(a.parameters(), lr=0.1)})
    with pytest.raises(sw.MismatchError, match="group 0 of 'o' has 1 parameters here and 2 in the checkpoint"):
        make().restore({"o": torch.optim.SGD([a.weight], lr=0.1)})


def test_another_kind_of_optimizer_is_warned_about(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a = nn.Linear(2, 2)
    save_once({"a": a, "o": torch.optim.SGD(a.parameters(), lr=0.1)})
    make().restore({"a": a, "o": torch.optim.Adam(a.parameters())}, strict=False)
    assert "was saved from torch.optim.sgd.SGD and is restored into torch.optim.adam.Adam" in caplog.text


def test_module_with_extra_state_goes_through_load_state_dict(save_once: SaveOnce, make: Make) -> None:
    module = Hooked()
    module.calls = 7
    save_once({"m": module})
    fresh = Hooked()
    address = fresh.weight.data_ptr()
    make().restore({"m": fresh})
    assert fresh.calls == 7
    assert fresh.note.tolist() == [7, 7, 7]
    assert torch.equal(fresh.weight, module.weight)
    assert fresh.weight.data_ptr() == address


def test_load_hooks_run_and_may_rename(save_once: SaveOnce, make: Make) -> None:
    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.old_name = nn.Parameter(torch.randn(3))

    class New(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.new_name = nn.Parameter(torch.zeros(3))
            self.register_load_state_dict_pre_hook(self._rename)

        @staticmethod
        def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            if prefix + "old_name" in state:
                state[prefix + "new_name"] = state.pop(prefix + "old_name")

    old, new = Old(), New()
    save_once({"m": old})
    make().restore({"m": new})
    assert torch.equal(new.new_name, old.old_name)


def test_refusal_of_load_state_dict_is_a_mismatch(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": nn.Linear(2, 2)})
    with pytest.raises(sw.MismatchError, match=r"load_state_dict\(\) of 'm' refused.*_extra_state"):
        make().restore({"m": Hooked()})


def test_dtype_mismatch_of_a_hooked_module_is_refused_too(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": Hooked()})
    with pytest.raises(sw.MismatchError, match=r"'m\.weight' has dtype float16 here"):
        make().restore({"m": Hooked().half()})


class Loader:
    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.order = torch.arange(2000) + position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.order = state["position"], state["order"]


def test_objects_with_state_dict(save_once: SaveOnce, make: Make) -> None:
    loader = Loader(41)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    save_once({"data": loader, "scaler": scaler, "nested": [loader]})
    fresh, listed, empty = Loader(), Loader(), torch.amp.GradScaler("cpu")
    make().restore({"data": fresh, "scaler": empty, "nested": [listed]})
    assert fresh.position == listed.position == 41
    assert torch.equal(fresh.order, loader.order)
    assert empty.state_dict() == scaler.state_dict()


def test_nothing_changes_when_the_state_does_not_fit(save_once: SaveOnce, make: Make) -> None:
    save_once({"a": torch.ones(2), "b": torch.ones(3), "data": Loader(4), "n": 5})
    target = {"a": torch.zeros(2), "b": torch.zeros(4), "data": Loader(0), "n": 0}
    with pytest.raises(sw.MismatchError):
        make().restore(target)
    assert target["a"].tolist() == [0, 0]
    assert target["data"].position == 0
    assert target["n"] == 0


def test_missing_and_extra_names_are_listed(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": {"both": torch.ones(2), "saved": torch.ones(2)}})
    with pytest.raises(sw.MismatchError) as caught:
        make().restore({"m": {"both": torch.zeros(2), "given": torch.zeros(2)}, "data": Loader()})
    message = str(caught.value)
    assert "the checkpoint lacks 'm.given', 'data.order'" in message
    assert "the given state lacks 'm.saved'" in message
    assert "strict=False" in message


def test_long_lists_of_problems_are_cut(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": {f"k{i}": torch.ones(1) for i in range(20)}})
    with pytest.raises(sw.MismatchError, match=r"'m.k4' and 15 more"):
        make().restore({"m": {}, "t": {}})


def test_without_strict_what_both_have_is_restored(save_once: SaveOnce, make: Make) -> None:
    save_once({"both": torch.ones(2), "saved": torch.ones(2)})
    target = {"both": torch.zeros(2), "given": torch.zeros(2)}
    assert make().restore(target, strict=False) == 1
    assert target["both"].tolist() == [1, 1]
    assert target["given"].tolist() == [0, 0]
    assert "saved" not in target


@pytest.mark.parametrize("strict", [True, False])
def test_shape_mismatch_is_refused(strict: bool, save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.ones(2, 3)})
    with pytest.raises(sw.MismatchError, match=r"'t' has shape \(3, 2\) here and \(2, 3\) in the checkpoint"):
        make().restore({"t": torch.zeros(3, 2)}, strict=strict)


def test_dtype_mismatch_is_refused_with_the_remedy(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.ones(2)})
    with pytest.raises(
        sw.MismatchError, match=r"'t' has dtype bfloat16 here and float32 in the checkpoint \(cast=True"
    ):
        make().restore({"t": torch.zeros(2, dtype=torch.bfloat16)})


def test_tensor_where_a_plain_value_was_saved_is_refused(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": 5})
    with pytest.raises(sw.MismatchError, match="'t' is a Tensor here and an int in the checkpoint"):
        make().restore({"t": torch.zeros(2)})


def test_cast_converts_dtypes(save_once: SaveOnce, make: Make) -> None:
    values, array = torch.randn(1000), np.arange(4.0)
    save_once({"t": values, "a": array, "same": values, "m": nn.Linear(2, 2)})
    target = {
        "t": torch.zeros(1000, dtype=torch.bfloat16),
        "a": np.zeros(4, "int32"),
        "same": torch.zeros(1000),
        "m": nn.Linear(2, 2).half(),
    }
    assert make().restore(target, cast=True) == 1
    assert torch.equal(target["t"], values.bfloat16())
    assert target["a"].tolist() == [0, 1, 2, 3]
    assert torch.equal(target["same"], values)
    assert target["m"].weight.dtype is torch.float16


def test_cast_goes_through_little_memory(save_once: SaveOnce, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater import reader
    from slackwater.restore import converted

    monkeypatch.setattr(converted, "_COPY_BYTES", 5000)
    sizes: list[int] = []
    read = reader.Reader._read
    monkeypatch.setattr(reader.Reader, "_read", lambda self, batch: (sizes.append(len(batch)), read(self, batch))[1])
    save_once({"t": [torch.full((1000,), float(i)) for i in range(4)]})
    target = {"t": [torch.zeros(1000, dtype=torch.float64) for _ in range(4)]}
    make().restore(target, cast=True)
    assert sizes == [1, 1, 1, 1]
    assert [t[0].item() for t in target["t"]] == [0, 1, 2, 3]


def test_strided_targets(save_once: SaveOnce, make: Make) -> None:
    values = torch.randn(4, 6)
    save_once({"t": values, "c": values.to(torch.complex64), "a": values.numpy()})
    base = torch.zeros(6, 8)
    lazy_conjugate = torch.zeros(4, 6, dtype=torch.complex64).conj()
    array = np.zeros((4, 6), "float32")[::-1]
    make().restore({"t": base[:, ::2].t(), "c": lazy_conjugate, "a": array})
    assert torch.equal(base[:, ::2].t(), values)
    assert torch.equal(lazy_conjugate.resolve_conj(), values.to(torch.complex64))
    assert np.array_equal(array, values.numpy())


def test_targets_that_cannot_be_written_are_refused(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.ones(3, 4), "a": np.ones(2)})
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(sw.MismatchError, match=r"'t' cannot be written in place.*'a' cannot be written in place"):
        make().restore({"t": torch.zeros(1).expand(3, 4), "a": frozen})


def test_dlpack_targets(save_once: SaveOnce, make: Make) -> None:
    save_once({"a": np.arange(3.0)})
    array = np.zeros(3)
    make().restore({"a": DlPack(array)})
    assert array.tolist() == [0, 1, 2]


def test_tied_parameters_stay_tied(save_once: SaveOnce, make: Make) -> None:
    def build() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    saved, fresh = build(), build()
    save_once({"m": saved})
    make().restore({"m": fresh})
    assert fresh[1].weight is fresh[0].weight
    assert torch.equal(fresh[0].weight, saved[0].weight)


def test_tied_tensors_restored_into_separate_ones(save_once: SaveOnce, make: Make) -> None:
    tensor = torch.randn(5)
    save_once({"a": tensor, "b": tensor})
    target = {"a": torch.zeros(5), "b": torch.zeros(5)}
    make().restore(target)
    assert torch.equal(target["a"], tensor)
    assert torch.equal(target["b"], tensor)


def test_separate_tensors_restored_into_tied_ones_are_warned_about(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"a": torch.zeros(5), "b": torch.ones(5)})
    tensor = torch.full((5,), 9.0)
    make().restore({"a": tensor, "b": tensor})
    assert "'a' and 'b' share their memory" in caplog.text
    assert tensor.tolist() == [1] * 5


def test_only_and_exclude(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": nn.Linear(2, 2), "n": 5, "data": Loader(9), "t": torch.ones(1)})
    fresh = nn.Linear(2, 2)
    bias = fresh.bias.clone()
    target = {"m": fresh, "n": 0, "data": Loader(), "t": torch.zeros(1)}
    make().restore(target, only=["m", "n"], exclude="*.bias")
    assert torch.equal(fresh.bias, bias)
    assert target["n"] == 5
    assert target["data"].position == 0
    assert target["t"].item() == 0


def test_only_ignores_what_is_missing_elsewhere(save_once: SaveOnce, make: Make) -> None:
    save_once({"m": nn.Linear(2, 2), "big": torch.ones(2)})
    assert make().restore({"m": nn.Linear(2, 2), "new": torch.ones(2)}, only="m") == 1


def test_part_of_an_object_cannot_be_restored(save_once: SaveOnce, make: Make) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optim.step()
    save_once({"o": optim})
    with pytest.raises(sw.UsageError, match="part of 'o'"):
        make().restore({"o": optim}, only="o.state.0")


def test_restore_of_a_chosen_step_rolls_back(make: Make) -> None:
    ckpt = make(keep=0)
    value = torch.zeros(1)
    for step in range(1, 6):
        value.fill_(step)
        ckpt.save(step, {"v": value})
        ckpt.fence()
    ckpt.wait()
    assert ckpt.steps() == [1, 2, 3, 4, 5]
    assert ckpt.restore({"v": value}, step=3) == 3
    assert value.item() == 3
    ckpt.save(4, {"v": value})
    ckpt.wait()
    assert ckpt.steps() == [1, 2, 3, 4]
    value.zero_()
    assert ckpt.restore({"v": value}) == 4
    assert value.item() == 3


def test_restore_of_an_absent_step_is_refused(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.ones(1)}, step=4)
    with pytest.raises(sw.NotFoundError, match=r"no checkpoint of step 9.*4"):
        make().restore({"t": torch.ones(1)}, step=9)


def test_restore_while_snapshots_are_in_flight(make: Make) -> None:
    ckpt = make()
    value = torch.arange(100_000.0)
    ckpt.save(1, {"v": value})
    assert ckpt.restore({"v": value}) == 1
    assert torch.equal(value, torch.arange(100_000.0))


def test_pickled_values_need_consent_on_both_sides(path: Path, make: Make) -> None:
    class_ = type(logging.makeLogRecord({}))
    state = {"odd": logging.makeLogRecord({"msg": "hello"})}
    with pytest.raises(sw.UnsupportedError, match=r"'odd' is a logging\.LogRecord.*allow_pickle=True"):
        make().save(1, state)
    make_other = path.with_name("other")
    with make(make_other, allow_pickle=True) as ckpt:
        ckpt.save(1, state)
    with pytest.raises(sw.UnsupportedError, match=r"pickled logging\.LogRecord"):
        sw.load(make_other)
    with make(make_other) as ckpt, pytest.raises(sw.UnsupportedError, match=r"pickled logging\.LogRecord"):
        ckpt.restore({"odd": None})
    target: dict[str, Any] = {"odd": None}
    with make(make_other, allow_pickle=True) as ckpt:
        ckpt.restore(target)
    assert type(target["odd"]) is class_
    assert target["odd"].msg == "hello"
    assert sw.load(make_other, allow_pickle=True)["odd"].msg == "hello"


def flip(path: Path, offset: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def two_steps(make: Make, size: int = 1000) -> None:
    with make() as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"t": torch.full((size,), float(step)), "n": step})


def test_damaged_checkpoint_is_named_and_the_one_before_used(
    path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    two_steps(make)
    flip(data_file(path, 2))
    target = {"t": torch.zeros(1000), "n": 0}
    assert make().restore(target) == 1
    assert target["t"][0].item() == 1
    assert target["n"] == 1
    assert "step 2 is damaged" in caplog.text
    assert "rank-00000.safetensors" in caplog.text


def test_damaged_checkpoint_is_an_error_if_asked_for(path: Path, make: Make) -> None:
    two_steps(make, size=500_000)
    flip(data_file(path, 2))
    with pytest.raises(sw.DamagedError, match=r"tensor t.*rank-00000\.safetensors"):
        make(on_damage="raise").restore({"t": torch.zeros(500_000), "n": 0})


def test_damaged_checkpoint_of_a_chosen_step_is_an_error(path: Path, make: Make) -> None:
    two_steps(make)
    flip(data_file(path, 2))
    with pytest.raises(sw.DamagedError):
        make().restore({"t": torch.zeros(1000), "n": 0}, step=2)


def test_damage_found_while_casting_falls_back_too(path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    two_steps(make, size=500_000)
    flip(data_file(path, 2))
    target = {"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}
    assert make().restore(target, cast=True) == 1
    assert target["t"][0].item() == 1
    assert target["n"] == 1


def three_steps(make: Make) -> None:
    with make(keep=0) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"t": torch.full((500_000,), float(step)), "n": step})


@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["flipped", "lost"])
def test_damage_found_while_casting_falls_back_as_far_as_needed(
    harm: Callable[[Path], Any], path: Path, make: Make
) -> None:
    three_steps(make)
    flip(data_file(path, 3))
    harm(data_file(path, 2))
    target = {"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}
    assert make().restore(target, cast=True) == 1
    assert target["t"][0].item() == 1
    assert target["n"] == 1


def test_damage_of_all_found_while_casting_names_them_all(path: Path, make: Make) -> None:
    three_steps(make)
    for step in (1, 2, 3):
        flip(data_file(path, step))
    with pytest.raises(sw.DamagedError, match=r"(?s)step 3.*step 2.*step 1") as caught:
        make().restore({"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}, cast=True)
    assert says_undefined(caught.value)


def says_undefined(error: BaseException) -> bool:
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return "the state was partly overwritten and is undefined" in text


def test_refusal_after_a_damaged_version_was_placed_says_that_the_state_is_undefined(path: Path, make: Make) -> None:
    with make() as ckpt:
        ckpt.save(1, {"t": torch.ones(7)})
        ckpt.save(2, {"t": torch.ones(500_000)})
    flip(data_file(path, 2))
    with pytest.raises(sw.MismatchError) as caught:
        make().restore({"t": torch.zeros(500_000)})
    assert says_undefined(caught.value)


def test_refusal_before_anything_was_placed_leaves_the_state_alone(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.ones(7)})
    with pytest.raises(sw.MismatchError) as caught:
        make().restore({"t": torch.zeros(500_000)})
    assert not says_undefined(caught.value)


def test_failing_load_state_dict_says_that_the_state_is_undefined(save_once: SaveOnce, make: Make) -> None:
    class Stubborn:
        def state_dict(self) -> dict[str, int]:
            return {"n": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise ZeroDivisionError

    save_once({"t": torch.ones(7), "s": Stubborn()})
    with pytest.raises(ZeroDivisionError) as caught:
        make().restore({"t": torch.zeros(7), "s": Stubborn()})
    assert says_undefined(caught.value)


def test_restore_fences_with_a_time_limit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(7)})
    fences = []
    original = ckpt._session.fence
    monkeypatch.setattr(ckpt._session, "fence", lambda: (fences.append(1), original()))
    assert ckpt.restore({"t": torch.zeros(7)}) == 1
    assert fences == [1]


def test_namespaces_that_hold_tensors_are_restored_in_place(save_once: SaveOnce, make: Make) -> None:
    saved = {kind.__name__: kind(t=torch.full((3,), 5.0), n=5) for kind in (Namespace, SimpleNamespace)}
    save_once(saved)
    state = {kind.__name__: kind(t=torch.zeros(3), n=0) for kind in (Namespace, SimpleNamespace)}
    before = {name: space.t for name, space in state.items()}
    make().restore(state)
    for name, space in state.items():
        assert space.t is before[name]
        assert space.t.tolist() == [5.0] * 3
        assert space.n == 5


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_cast_of_a_chosen_step_takes_all_of_it_from_that_step(kind: str, make: Make) -> None:
    """What is converted is read aside: from the step that was asked for, not from the newest."""
    with make(keep=0) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"direct": torch.full((5,), float(step)), "cast": np.full(5, float(step)), "n": step})
    cast = torch.zeros(5) if kind == "torch" else np.zeros(5, "float32")
    state = {"direct": torch.zeros(5), "cast": cast, "n": 0}
    assert make().restore(state, step=2, cast=True) == 2
    assert (state["direct"].tolist(), cast.tolist(), state["n"]) == ([2.0] * 5, [2.0] * 5, 2)


@pytest.mark.parametrize("kind", [sw.StorageError, sw.NotFoundError])
def test_storage_that_fails_while_casting_is_not_taken_for_damage(
    kind: type[sw.Error], path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another try may find the bytes whole: no older checkpoint is used instead."""
    from slackwater.restore import restorer

    two_steps(make)

    def failing(*arguments: Any) -> None:
        raise kind("the disk does not answer", errno=5)

    monkeypatch.setattr(restorer, "read_copies", failing)
    ckpt = make()
    with pytest.raises(kind, match="does not answer"):
        ckpt.restore({"t": torch.zeros(1000, dtype=torch.float64), "n": 0}, cast=True)
    monkeypatch.undo()
    assert ckpt.restore({"t": torch.zeros(1000, dtype=torch.float64), "n": 0}, cast=True) == 2


@pytest.mark.parametrize(
    ("strides", "refused"),
    [((2, 1), True), ((1, 1), True), ((0, 1), True), ((3, 1), False), ((1, 2), False), ((4, 1), False)],
)
def test_views_whose_elements_share_an_address_are_refused(
    strides: tuple[int, int], refused: bool, save_once: SaveOnce, make: Make
) -> None:
    """Rows of three that begin every two elements: the last of one is the first of the next."""
    save_once({"t": torch.arange(6.0).reshape(2, 3)})
    target = torch.zeros(20).as_strided((2, 3), strides)
    if refused:
        with pytest.raises(sw.MismatchError, match="expanded view"):
            make().restore({"t": target})
    else:
        make().restore({"t": target})
        assert torch.equal(target, torch.arange(6.0).reshape(2, 3))


def test_dimensions_of_size_one_may_have_any_stride(save_once: SaveOnce, make: Make) -> None:
    save_once({"t": torch.arange(3.0).reshape(1, 3)})
    target = torch.zeros(3).as_strided((1, 3), (0, 1))
    make().restore({"t": target})
    assert target.tolist() == [[0.0, 1.0, 2.0]]


def test_optimizer_state_of_another_shape_is_made_anew(save_once: SaveOnce, make: Make) -> None:
    def optimizer(size: int) -> torch.optim.Optimizer:
        optim = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        optim.state[optim.param_groups[0]["params"][0]] = {"history": torch.full((size,), float(size))}
        return optim

    save_once({"optim": optimizer(3)})
    target = optimizer(5)
    make().restore({"optim": target})
    [state] = target.state.values()
    assert state["history"].tolist() == [3.0] * 3


def test_empty_tensors_are_each_checked(save_once: SaveOnce, make: Make) -> None:
    """They have no address by which they could be told apart."""
    save_once({"a": torch.zeros(0, 3), "b": torch.zeros(0, 3), "c": torch.zeros(2)})
    state = {"a": torch.zeros(0, 3), "b": torch.zeros(0, 3), "c": torch.ones(2)}
    ckpt = make()
    assert len(_placed(ckpt, state)) == 3
    assert ckpt.restore(state) == 1


def _placed(ckpt: sw.Checkpointer, state: dict[str, Any]) -> list[Any]:
    from slackwater.restore.restore_plan import RestorePlan
    from slackwater.state.names import Pattern

    contents = _core.Checkpoint.open(ckpt.path).contents()
    return RestorePlan(state, contents, strict=True, cast=False, selected=Pattern(), allow_pickle=False).targets()


def _of_another_world(path: Path, state: dict[str, Any], *, lost: str = "", values: tuple[str, ...] = ()) -> Any:
    """The plan of one of two ranks for what one rank has saved. ``lost``: a prefix of tensors that single ranks had."""
    from slackwater.ranks.sharding import RankInfo
    from slackwater.restore.rank_local import RankLocal
    from slackwater.restore.restore_plan import RestorePlan
    from slackwater.state.names import Pattern

    real = _core.Checkpoint.open(str(path)).contents()
    contents: Any = SimpleNamespace(
        version=real.version,
        tree=real.tree,
        tensors=[info for info in real.tensors if not (lost and info.name.startswith(lost))],
        rank_local_values=list(values),
    )
    options = {"strict": True, "cast": False, "selected": Pattern(), "allow_pickle": False}
    return RestorePlan(state, contents, **options, rank_info=RankInfo(0, 2), rank_local=RankLocal("drop"))


def test_dropping_what_single_ranks_own_never_drops_the_model(save_once: SaveOnce) -> None:
    path = save_once({"model": nn.Linear(2, 2), "seeds": torch.ones(2).long(), "n": 1})
    state = {"model": nn.Linear(2, 2), "seeds": torch.zeros(2).long(), "n": 0}
    assert len(_of_another_world(path, state, lost="seeds").targets()) == 2
    with pytest.raises(sw.MismatchError, match="rank_local=\\['model'\\]"):
        _of_another_world(path, state, lost="model.bias")
    with pytest.raises(sw.MismatchError, match="sw.Replicated"):
        _of_another_world(path, {"model": nn.Linear(2, 2), "n": 0}, lost="model")


def test_only_values_at_the_top_differ_between_ranks(save_once: SaveOnce) -> None:
    """A key further down that has the same name is restored."""
    path = save_once({"seed": 1, "deep": {"seed": 5, "t": torch.ones(2)}})
    state = {"seed": 0, "deep": {"seed": 0, "t": torch.zeros(2)}}
    _of_another_world(path, state, values=("seed",)).finish()
    assert (state["seed"], state["deep"]["seed"]) == (0, 5)


def test_damage_found_while_casting_falls_back_to_the_one_before(path: Path, make: Make) -> None:
    """Not further than needed: every step back is training lost."""
    three_steps(make)
    flip(data_file(path, 3))
    target = {"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}
    assert make().restore(target, cast=True) == 2
    assert (target["t"] == 2).all()
    assert target["n"] == 2


def test_damage_of_a_chosen_step_found_while_casting_is_an_error(path: Path, make: Make) -> None:
    three_steps(make)
    flip(data_file(path, 2))
    with pytest.raises(sw.DamagedError):
        make().restore({"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}, step=2, cast=True)


def test_plan_that_refuses_an_older_checkpoint_ends_the_restore(
    path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is damaged. That the state does not fit the one before is no reason to go further back."""
    from slackwater import checkpointer

    three_steps(make)
    flip(data_file(path, 3))
    plan = checkpointer.RestorePlan

    def fussy(state: Any, contents: _core.Contents, **options: Any) -> Any:
        if contents.version.step == 2:
            raise sw.NotFoundError("what this state needs is not there")
        return plan(state, contents, **options)

    monkeypatch.setattr(checkpointer, "RestorePlan", fussy)
    with pytest.raises(sw.NotFoundError, match="not there"):
        make().restore({"t": torch.zeros(500_000, dtype=torch.float64), "n": 0}, cast=True)


def test_values_of_parameter_groups_are_those_of_the_checkpoint(save_once: SaveOnce, make: Make) -> None:
    """Not what the script was started with this time."""

    def optimizer(lr: float, **more: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(2))], **more}], lr=lr, momentum=lr)

    save_once({"optim": optimizer(0.25, note="saved")})
    target = optimizer(0.5, note="new")
    make().restore({"optim": target})
    [group] = target.param_groups
    assert (group["lr"], group["momentum"], group["note"]) == (0.25, 0.25, "saved")


def test_tensors_that_were_tied_and_still_are_need_no_warning(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    saved, target = torch.ones(3), torch.zeros(3)
    save_once({"a": saved, "b": saved})
    make().restore({"a": target, "b": target})
    assert target.tolist() == [1.0] * 3
    assert "share their memory" not in caplog.text
