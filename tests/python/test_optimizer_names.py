"""State of optimizers goes to the parameter of the same name, or nowhere."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from slackwater import _core
from slackwater.state import parameters
from support import same
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]
Moments = dict[str, torch.Tensor]


@pytest.fixture
def make(make: Make) -> Make:
    """Each new checkpointer closes the one before: only one may hold the directory."""
    made: list[sw.Checkpointer] = []

    def build(**options: Any) -> sw.Checkpointer:
        while made:
            made.pop().close()
        made.append(make(**options))
        return made[0]

    return build


class Net(nn.Module):
    """Layers by name, in any order."""

    def __init__(self, *layers: str, width: int = 2, **widths: int) -> None:
        super().__init__()
        for layer in layers:
            self.add_module(layer, nn.Linear(width, widths.get(layer, width), bias=False))


def step(optim: torch.optim.Optimizer) -> None:
    """With gradients of their own, so that no two moments are equal."""
    for group in optim.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    optim.step()


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **options)


def moments(model: nn.Module, optim: torch.optim.Optimizer) -> Moments:
    return {n: optim.state[p]["exp_avg"].clone() for n, p in model.named_parameters() if optim.state.get(p)}


def saved_net(save_once: SaveOnce, *layers: str, **widths: int) -> Moments:
    model = Net(*layers, **widths)
    optim = adam(model)
    step(optim)
    save_once({"model": model, "optim": optim})
    return moments(model, optim)


def tree_of(path: Path) -> Any:
    return json.loads(_core.Checkpoint.open(str(path)).contents().tree)["state"]


# The same parameters in another order


def test_parameters_in_another_order_keep_their_own_moments(save_once: SaveOnce, make: Make) -> None:
    saved = saved_net(save_once, "a", "b", "c")
    model = Net("c", "a", "b")
    optim = adam(model)
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), {name: saved[name] for name in ("c.weight", "a.weight", "b.weight")})
    step(optim)


def test_parameters_that_move_to_another_group_keep_their_own_moments(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b", "c")
    optim = torch.optim.AdamW([{"params": [model.a.weight]}, {"params": [model.b.weight, model.c.weight], "lr": 0.5}])
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model = Net("a", "b", "c")
    optim = torch.optim.AdamW([{"params": [model.c.weight, model.b.weight]}, {"params": [model.a.weight]}], lr=0.1)
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), saved)
    assert [group["lr"] for group in optim.param_groups] == [0.5, 1e-3], "hyperparameters follow their parameters"


def test_several_models_of_one_optimizer(save_once: SaveOnce, make: Make) -> None:
    a, b = Net("x"), Net("x")
    optim = torch.optim.AdamW([*a.parameters(), *b.parameters()])
    step(optim)
    kept = copy.deepcopy(optim.state_dict()["state"])
    save_once({"optim": optim, "models": [a, {"b": b}]})
    a, b = Net("x"), Net("x")
    optim = torch.optim.AdamW([*b.parameters(), *a.parameters()])
    make().restore({"optim": optim, "models": [a, {"b": b}]})
    assert same(optim.state[a.x.weight]["exp_avg"], kept[0]["exp_avg"])
    assert same(optim.state[b.x.weight]["exp_avg"], kept[1]["exp_avg"])


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_wrapped_models_have_the_names_of_bare_ones(wrapped_first: bool, save_once: SaveOnce, make: Make) -> None:
    def wrap(model: nn.Module, wrapped: bool) -> Any:
        return torch.compile(nn.DataParallel(model)) if wrapped else model

    model = Net("a", "b")
    optim = adam(model)
    step(optim)
    saved = moments(model, optim)
    save_once({"model": wrap(model, wrapped_first), "optim": optim})
    model = Net("b", "a")
    optim = adam(model)
    make().restore({"model": wrap(model, not wrapped_first), "optim": optim})
    assert same(moments(model, optim), {name: saved[name] for name in ("b.weight", "a.weight")})


def test_a_model_with_hooks_gives_names_too(save_once: SaveOnce, make: Make) -> None:
    def build(*layers: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Net(*layers)
        model.register_state_dict_post_hook(lambda *_: None)
        return model, adam(model)

    model, optim = build("a", "b")
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model, optim = build("b", "a")
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), {name: saved[name] for name in ("b.weight", "a.weight")})


def as_module(model: nn.Module) -> Any:
    return model


def as_state_dict(model: nn.Module) -> Any:
    return model.state_dict()


def as_tensors(model: nn.Module) -> Any:
    return dict(model.named_parameters())


FORMS = [as_module, as_state_dict, as_tensors]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, "own"])
@pytest.mark.parametrize("here", FORMS)
@pytest.mark.parametrize("saved", FORMS)
def test_tensors_of_the_state_give_names_like_the_module_they_belong_to(
    saved: Any, here: Any, kind: Any, save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    kind = Own if kind == "own" else kind
    model = Net("a", "b", "c")
    optim = kind(model.parameters())
    step(optim)
    save_once({"model": saved(model), "optim": optim})
    kept = moments(model, optim)
    model = Net("c", "a", "b")
    optim = kind(model.parameters())
    with caplog.at_level(logging.WARNING, "slackwater"):
        make().restore({"model": here(model), "optim": optim})
    assert same(moments(model, optim), {name: kept[name] for name in ("c.weight", "a.weight", "b.weight")})
    assert not caplog.records
    step(optim)


def test_tensors_by_themselves_give_names(save_once: SaveOnce, make: Make) -> None:
    def build(order: str) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
        own = {name: nn.Parameter(torch.randn(3)) for name in "abc"}
        return own, torch.optim.AdamW([own[name] for name in order])

    own, optim = build("abc")
    step(optim)
    kept = {name: optim.state[own[name]]["exp_avg"].clone() for name in "abc"}
    save_once({"w": {"a": own["a"], "b": own["b"].detach()}, "rest": [1, own["c"].data], "optim": optim})
    own, optim = build("cba")
    make().restore({"w": {"a": own["a"].data, "b": own["b"]}, "rest": [0, own["c"]], "optim": optim})
    assert same({name: optim.state[own[name]]["exp_avg"] for name in "abc"}, kept)


def test_names_by_memory_are_those_of_this_save(path: Path, make: Make) -> None:
    """They are kept from save to save: the same memory may belong to another tensor by then."""
    a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
    optim = torch.optim.AdamW([a, b])
    step(optim)
    ckpt = make()
    ckpt.save(1, {"w": {"a": a.detach(), "b": b.detach()}, "optim": optim})
    ckpt.save(2, {"w": {"a": b.detach(), "b": a.detach()}, "optim": optim})
    ckpt.wait()
    kept = {name: optim.state[p]["exp_avg"].clone() for name, p in (("a", b), ("b", a))}
    ckpt.close()
    a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
    optim = torch.optim.AdamW([a, b])
    make().restore({"w": {"a": a, "b": b}, "optim": optim})
    assert same({"a": optim.state[a]["exp_avg"], "b": optim.state[b]["exp_avg"]}, kept)


def test_a_view_of_a_parameter_does_not_name_it(save_once: SaveOnce) -> None:
    a, b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2, 2))
    other = nn.Parameter(torch.randn(2))
    optim = torch.optim.AdamW([a, b, other])
    views = {"row": a.detach()[:2], "turned": b.detach().t(), "bits": other.detach().view(torch.int32)}
    path = save_once({"views": views, "optim": optim})
    assert tree_of(path)["optim"]["parameters"]["names"] == [[None, None, None]]


def test_tensors_of_no_size_are_told_apart(save_once: SaveOnce, make: Make) -> None:
    def build(order: str) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
        own = {name: nn.Parameter(torch.zeros(0, size)) for name, size in (("a", 1), ("b", 1))}
        own["c"] = nn.Parameter(torch.randn(2))
        return own, torch.optim.AdamW([own[name] for name in order])

    own, optim = build("abc")
    step(optim)
    path = save_once({"w": {name: p.detach() for name, p in own.items()}, "optim": optim})
    assert tree_of(path)["optim"]["parameters"]["names"] == [["w.a", "w.b", "w.c"]]
    kept = optim.state[own["c"]]["exp_avg"].clone()
    own, optim = build("cba")
    make().restore({"w": own, "optim": optim})
    assert same(optim.state[own["c"]]["exp_avg"], kept)


@pytest.mark.parametrize("here", FORMS[:2])
@pytest.mark.parametrize("saved", FORMS[:2])
def test_tied_tensors_give_all_their_names(saved: Any, here: Any, save_once: SaveOnce, make: Make) -> None:
    def build(*layers: str, tied: bool) -> tuple[Net, torch.optim.Optimizer]:
        model = Net(*layers)
        if tied:
            model.a.weight = model.b.weight
        return model, torch.optim.AdamW(model.parameters())

    model, optim = build("a", "b", "c", tied=True)
    step(optim)
    kept = {name: optim.state[model.get_submodule(name).weight]["exp_avg"].clone() for name in "abc"}
    save_once({"model": saved(model), "optim": optim})
    model, optim = build("c", "b", "a", tied=True)
    make().restore({"model": here(model), "optim": optim})
    assert same({name: optim.state[model.get_submodule(name).weight]["exp_avg"] for name in "abc"}, kept)


def test_parameters_that_share_their_memory_are_matched_in_order(save_once: SaveOnce, make: Make) -> None:
    def build() -> tuple[torch.Tensor, torch.optim.Optimizer]:
        shared = torch.randn(3)
        return shared, torch.optim.AdamW([nn.Parameter(shared), nn.Parameter(shared)])

    shared, optim = build()
    step(optim)
    save_once({"w": {"a": shared}, "optim": optim})
    shared, other = build()
    make().restore({"w": {"a": shared}, "optim": other})
    assert same(other.state_dict(), optim.state_dict())


def test_names_that_an_older_release_did_not_store_are_no_new_parameters(
    save_once: SaveOnce, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named parameters of modules only."""

    def build() -> tuple[Net, nn.Parameter, torch.optim.Optimizer]:
        model, own = Net("a", "b"), nn.Parameter(torch.zeros(2, 2))
        return model, own, torch.optim.AdamW([own, *model.parameters()])

    model, own, optim = build()
    step(optim)
    with monkeypatch.context() as patch:
        patch.setattr(parameters, "names_by_memory", lambda *_: {})
        path = save_once({"model": model, "w": {"own": own}, "optim": optim})
    assert tree_of(path)["optim"]["parameters"]["names"][0][0] is None
    model, own, other = build()
    make().restore({"model": model, "w": {"own": own}, "optim": other})
    assert same(other.state_dict(), optim.state_dict())


def test_parameters_that_nothing_names_are_warned_about(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    optim = alone((2, 3), (4,), (2, 3))
    save_once({"optim": optim})
    with caplog.at_level(logging.WARNING, "slackwater"):
        make().restore({"optim": alone((2, 3), (4,), (2, 3))})
    [record] = caplog.records
    assert record.getMessage() == (
        "'optim' holds 3 parameters that nothing in the state has, so they are matched by their order; "
        "put the model into the state"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "slackwater"):
        model = nn.ParameterList(alone((2, 3), (4,), (2, 3)).param_groups[0]["params"])
        make().restore({"model": model, "optim": torch.optim.AdamW(model.parameters())}, only="optim")
    [record] = caplog.records
    assert (
        "'optim' was saved without the names of 3 parameters, so they are matched by their order" in record.getMessage()
    )


def test_shapes_that_differ_are_enough_to_match_by(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"optim": alone((2, 3), (4,))})
    with caplog.at_level(logging.WARNING, "slackwater"):
        make().restore({"optim": alone((2, 3), (4,))})
    assert not caplog.records


def test_tied_parameters_are_found_by_either_name(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b", "c")
    model.c.weight = model.a.weight
    optim = adam(model)
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model = Net("c", "b", "a")  # its first name is another one now
    model.a.weight = model.c.weight
    optim = adam(model)
    make().restore({"model": model, "optim": optim})
    assert same(optim.state[model.a.weight]["exp_avg"], saved["a.weight"])
    assert same(optim.state[model.b.weight]["exp_avg"], saved["b.weight"])


def test_the_same_model_twice_in_a_state_is_found_by_either_key(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b")
    optim = adam(model)
    step(optim)
    saved = moments(model, optim)
    save_once({"whole": nn.Sequential(model), "model": model, "optim": optim})
    model = Net("b", "a")
    optim = adam(model)
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), {name: saved[name] for name in ("b.weight", "a.weight")})


def test_names_follow_a_model_that_changes_between_saves(path: Path, make: Make) -> None:
    """What is kept from save to save is compared, never trusted."""
    model = Net("a", "b")
    optim = adam(model)
    step(optim)
    with make(keep=0) as ckpt:
        ckpt.save(1, {"model": model, "optim": optim})
        ckpt.fence()
        model.a.weight, model.b.weight = model.b.weight, model.a.weight
        ckpt.save(2, {"model": model, "optim": optim})
    saved = moments(model, optim)
    model = Net("a", "b")
    optim = adam(model)
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), saved)


def test_shapes_follow_a_parameter_that_grows_between_saves(path: Path, make: Make) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optim = torch.optim.AdamW([parameter])
    with make(keep=0) as ckpt:
        ckpt.save(1, {"optim": optim})
        ckpt.fence()
        parameter.data = torch.zeros(3)
        ckpt.save(2, {"optim": optim})
    make().restore({"optim": torch.optim.AdamW([nn.Parameter(torch.zeros(3))])})


# Parameters that come and go


def test_an_added_layer_is_an_error_that_names_it_unless_strict_is_off(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    saved = saved_net(save_once, "a", "b")
    model = Net("new", "a", "b")
    optim = adam(model)
    with pytest.raises(sw.MismatchError, match=r"'optim'.*'model\.new\.weight'"):
        make().restore({"model": model, "optim": optim})
    assert not optim.state
    ckpt = make()
    ckpt.restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), saved)
    assert ckpt.restored is not None
    assert ckpt.restored.new_parameters == ("optim: model.new.weight",)
    assert "model.new.weight" in caplog.text
    step(optim)


def test_a_layer_that_is_gone_takes_its_moments_along(save_once: SaveOnce, make: Make) -> None:
    saved = saved_net(save_once, "a", "b", "c")
    model = Net("a", "c")
    optim = adam(model)
    with pytest.raises(sw.MismatchError, match=r"model\.b\.weight"):
        make().restore({"model": model, "optim": optim})
    ckpt = make()
    ckpt.restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), {name: saved[name] for name in ("a.weight", "c.weight")})
    assert ckpt.restored is not None
    assert {"model.b.weight", "optim.state.1.exp_avg"} <= set(ckpt.restored.unused)
    step(optim)


def test_a_frozen_layer_leaves_the_others_their_moments(save_once: SaveOnce, make: Make) -> None:
    saved = saved_net(save_once, "a", "b", "c")
    model = Net("a", "b", "c")
    optim = torch.optim.AdamW([model.b.weight, model.c.weight])
    with pytest.raises(sw.MismatchError, match=r"'optim' .*'model\.a\.weight'.*strict=False"):
        make().restore({"model": model, "optim": optim})
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), {name: saved[name] for name in ("b.weight", "c.weight")})


def test_a_layer_that_thaws_starts_without_moments(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b")
    optim = torch.optim.AdamW([model.b.weight])
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model = Net("a", "b")
    optim = adam(model)
    with pytest.raises(sw.MismatchError, match=r"'model\.a\.weight'"):
        make().restore({"model": model, "optim": optim})
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), saved)


def test_a_group_that_is_new_keeps_its_hyperparameters(save_once: SaveOnce, make: Make) -> None:
    saved_net(save_once, "a")
    model = Net("new", "a")
    optim = torch.optim.AdamW([{"params": [model.new.weight], "lr": 0.7}, {"params": [model.a.weight], "lr": 0.8}])
    ckpt = make()
    ckpt.restore({"model": model, "optim": optim}, strict=False)
    assert [group["lr"] for group in optim.param_groups] == [0.7, 1e-3]
    assert list(optim.state) == [model.a.weight]


def test_a_group_that_is_split_keeps_its_hyperparameters_if_strict_is_off(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever splits a group wants two values: those of the one saved group would undo it."""
    saved = saved_net(save_once, "a", "b")
    model = Net("a", "b")
    optim = torch.optim.AdamW([{"params": [model.a.weight], "lr": 0.7}, {"params": [model.b.weight], "lr": 0.8}])
    with pytest.raises(sw.MismatchError, match=r"group.*keep_hyperparameters"):
        make().restore({"model": model, "optim": optim})
    assert not optim.state
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), saved)
    assert [group["lr"] for group in optim.param_groups] == [0.7, 0.8]
    assert "keep" in caplog.text
    optim = torch.optim.AdamW([{"params": [model.a.weight], "lr": 0.7}, {"params": [model.b.weight], "lr": 0.8}])
    make().restore({"model": model, "optim": optim}, keep_hyperparameters=True)
    assert same(moments(model, optim), saved)


def test_groups_that_are_merged_are_an_error_unless_they_were_alike(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b")
    optim = torch.optim.AdamW([{"params": [model.a.weight], "lr": 0.7}, {"params": [model.b.weight], "lr": 0.8}])
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    optim = adam(model, lr=0.5)
    with pytest.raises(sw.MismatchError, match="group"):
        make().restore({"model": model, "optim": optim})
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim), saved)
    assert optim.param_groups[0]["lr"] == 0.5


def test_state_that_a_new_parameter_has_already_stays(save_once: SaveOnce, make: Make) -> None:
    saved_net(save_once, "a")
    model = Net("a", "new")
    optim = adam(model)
    step(optim)
    kept = moments(model, optim)["new.weight"]
    make().restore({"model": model, "optim": optim}, strict=False)
    assert same(moments(model, optim)["new.weight"], kept)


# Shapes


@pytest.mark.parametrize("strict", [True, False])
def test_moments_never_land_on_a_parameter_of_another_shape(strict: bool, save_once: SaveOnce, make: Make) -> None:
    saved_net(save_once, "a", "b")
    model = Net("a", "b", b=5)
    optim = adam(model)
    step(optim)
    before = copy.deepcopy(optim.state_dict())
    with pytest.raises(sw.MismatchError, match=r"'model\.b\.weight'.*\(5, 2\) here and \(2, 2\) in the checkpoint"):
        make().restore({"model": model, "optim": optim}, strict=strict)
    with pytest.raises(sw.MismatchError, match=r"'optim'.*'model\.b\.weight'.*\(5, 2\) here and \(2, 2\)"):
        make().restore({"model": model, "optim": optim}, strict=strict, only="optim")
    assert same(optim.state_dict(), before)


def test_a_parameter_of_another_shape_that_is_excluded_starts_anew(save_once: SaveOnce, make: Make) -> None:
    """A larger vocabulary: its weights are made by hand, everything else goes on."""
    saved = saved_net(save_once, "a", "b")
    model = Net("a", "b", b=5)
    optim = adam(model)
    ckpt = make()
    ckpt.restore({"model": model, "optim": optim}, exclude="model.b.*")
    assert same(moments(model, optim), {"a.weight": saved["a.weight"]})
    assert ckpt.restored is not None
    assert ckpt.restored.new_parameters == ("optim: model.b.weight",)
    step(optim)


def alone(*shapes: tuple[int, ...]) -> torch.optim.Optimizer:
    optim = torch.optim.AdamW([nn.Parameter(torch.zeros(shape)) for shape in shapes])
    step(optim)
    return optim


@pytest.mark.parametrize("strict", [True, False])
def test_an_optimizer_without_its_model_must_have_the_shapes_in_order(
    strict: bool, save_once: SaveOnce, make: Make
) -> None:
    optim = alone((2, 3), (4,), (3, 2))
    save_once({"optim": optim})
    same_shapes = alone((2, 3), (4,), (3, 2))
    make().restore({"optim": same_shapes}, strict=strict)
    assert same(same_shapes.state_dict(), optim.state_dict())
    other = alone((2, 3), (3, 2), (4,))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(sw.MismatchError, match=r"parameter 1 of group 0 of 'optim' .*\(3, 2\) here and \(4,\)"):
        make().restore({"optim": other}, strict=strict)
    with pytest.raises(sw.MismatchError, match="2 parameters here and 3"):
        make().restore({"optim": alone((2, 3), (4,))}, strict=strict)
    assert same(other.state_dict(), before)


def test_an_optimizer_saved_without_its_model_fits_one_beside_it(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b", b=3)
    optim = adam(model)
    step(optim)
    save_once({"optim": optim})
    model = Net("a", "b", b=3)
    other = adam(model)
    make().restore({"model": model, "optim": other}, strict=False)
    assert same(other.state_dict(), optim.state_dict())
    model = Net("b", "a", b=3)
    with pytest.raises(sw.MismatchError, match=r"parameter 0 of group 0 of 'optim' \('model\.b\.weight'\)"):
        make().restore({"model": model, "optim": adam(model)}, strict=False)


def test_an_optimizer_saved_with_its_model_fits_one_without(save_once: SaveOnce, make: Make) -> None:
    saved = saved_net(save_once, "a", "b")
    model = Net("a", "b")
    optim = adam(model)
    make().restore({"optim": optim}, strict=False)
    assert same(moments(model, optim), saved)
    with pytest.raises(sw.MismatchError, match=r"\('model\.b\.weight'\)"):
        make().restore({"optim": adam(Net("a", "b", b=4))}, strict=False)


def test_parameters_of_no_module_are_matched_in_order(save_once: SaveOnce, make: Make) -> None:
    def build(*layers: str, extra: int = 3) -> tuple[Net, list[nn.Parameter], torch.optim.Optimizer]:
        model, own = Net(*layers), [nn.Parameter(torch.zeros(extra)), nn.Parameter(torch.zeros(1))]
        return model, own, torch.optim.AdamW([own[0], *model.parameters(), own[1]])

    model, own, optim = build("a", "b")
    step(optim)
    kept, saved = copy.deepcopy(optim.state_dict()["state"]), moments(model, optim)
    save_once({"model": model, "optim": optim})
    model, own, optim = build("b", "a")
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), {name: saved[name] for name in ("b.weight", "a.weight")})
    assert same([optim.state[p]["exp_avg"] for p in own], [kept[0]["exp_avg"], kept[3]["exp_avg"]])
    model, own, optim = build("a", "b", extra=4)
    with pytest.raises(sw.MismatchError, match=r"parameter 0 of group 0 of 'optim' .*\(4,\) here and \(3,\)"):
        make().restore({"model": model, "optim": optim}, strict=False)


def without_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint as an older release has saved it."""
    from slackwater.state import decoder

    real = decoder.load_tree

    def old(text: Any) -> Any:
        node = real(text)
        node["optim"].pop("parameters")
        return node

    monkeypatch.setattr(decoder, "load_tree", old)


def test_a_checkpoint_of_an_older_release_is_restored_in_order(
    path: Path, save_once: SaveOnce, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_net(save_once, "a", "b", b=3)
    without_names(path, monkeypatch)
    model = Net("a", "b", b=3)
    optim = adam(model)
    make().restore({"model": model, "optim": optim})
    assert same(moments(model, optim), saved)
    model = Net("b", "a", b=3)
    optim = adam(model)
    with pytest.raises(sw.MismatchError, match=r"parameter 0 of group 0 of 'optim' \('model\.b\.weight'\)"):
        make().restore({"model": model, "optim": optim})
    assert not optim.state


def test_names_and_shapes_are_in_the_tree(save_once: SaveOnce) -> None:
    model = Net("a", "b", b=3)
    optim = torch.optim.SGD([model.b.weight, nn.Parameter(torch.zeros(7)), model.a.weight], lr=0.1)
    node = tree_of(save_once({"optim": optim, "deep": [{"model": model}]}))["optim"]
    assert node["parameters"] == {
        "names": [["deep.0.model.b.weight", None, "deep.0.model.a.weight"]],
        "shapes": [[None, [7], None]],
    }


@pytest.mark.parametrize(
    "parameters",
    [
        "x",
        {"names": [["a"]], "shapes": 3},
        {"names": [[1, 2]], "shapes": [[[2, 2], [2, 2]]]},
        {"names": [["model.a.weight"]], "shapes": [[[2, 2]]]},
        {"names": [["model.a.weight", "model.b.weight"]], "shapes": [[[2, "x"], [2, 2]]]},
    ],
)
def test_malformed_names_are_damage(
    parameters: Any, path: Path, save_once: SaveOnce, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slackwater.state import decoder

    saved_net(save_once, "a", "b")
    real = decoder.load_tree

    def bent(text: Any) -> Any:
        node = real(text)
        node["optim"]["parameters"] = parameters
        return node

    monkeypatch.setattr(decoder, "load_tree", bent)
    model = Net("a", "b")
    with pytest.raises(sw.DamagedError, match="malformed"):
        make(on_damage="raise").restore({"model": model, "optim": adam(model)})


# Optimizers whose state is not shaped as the parameters are


class Factored(torch.optim.Optimizer):
    """Row and column means, a list, and a state of its own that belongs to no parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["all"]["codebook"] = torch.randn(16)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["row"], state["column"] = parameter.grad.mean(0), parameter.grad.mean(1)
                state["packed"] = torch.randint(0, 255, (3,), dtype=torch.uint8)
                state["history"] = [parameter.grad.clone()]


@pytest.mark.parametrize("kind", [Factored, torch.optim.Adafactor, torch.optim.Muon, torch.optim.LBFGS])
def test_state_of_any_shape_follows_its_parameter(kind: Any, save_once: SaveOnce, make: Make) -> None:
    def build(*layers: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Net(*layers, a=3, b=4)
        return model, kind(model.parameters())

    def train(model: nn.Module, optim: Any) -> None:
        def closure() -> torch.Tensor:
            optim.zero_grad()
            loss = sum((p**2).sum() for p in model.parameters())
            loss.backward()
            return loss

        closure()
        optim.step(closure)

    model, optim = build("a", "b")
    train(model, optim)
    save_once({"model": model, "optim": optim})
    order = ("a", "b") if kind is torch.optim.LBFGS else ("b", "a")
    other, fresh = build(*order)
    make().restore({"model": other, "optim": fresh})
    for layer in ("a", "b"):
        here, there = other.get_submodule(layer).weight, model.get_submodule(layer).weight
        assert same(fresh.state.get(here), optim.state.get(there))
    assert same(fresh.state.get("all"), optim.state.get("all"))


@pytest.mark.parametrize("change", ["order", "added"])
def test_state_that_belongs_to_all_parameters_needs_all_of_them_in_order(
    change: str, save_once: SaveOnce, make: Make
) -> None:
    """LBFGS keeps flat vectors over all parameters: they mean nothing for others, or in another order."""
    model = Net("a", "b")
    optim = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optim.zero_grad()
        loss = sum((p**2).sum() for p in model.parameters())
        loss.backward()
        return loss

    optim.step(closure)
    save_once({"model": model, "optim": optim})
    model = Net("b", "a") if change == "order" else Net("a", "b", "c")
    with pytest.raises(sw.MismatchError, match="LBFGS"):
        make().restore({"model": model, "optim": torch.optim.LBFGS(model.parameters())}, strict=False)


class Own(torch.optim.AdamW):
    """With a load_state_dict() of its own: goes through it."""

    def load_state_dict(self, state_dict: Any) -> None:
        self.loaded = True
        super().load_state_dict(state_dict)


def test_optimizers_that_load_themselves_are_matched_by_name_too(save_once: SaveOnce, make: Make) -> None:
    model = Net("a", "b", "c", b=3)
    optim = Own(model.parameters(), lr=0.5)
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model = Net("b", "c", "new", b=3)
    other = Own(model.parameters(), lr=0.1)
    with pytest.raises(sw.MismatchError, match=r"model\.new\.weight"):
        make().restore({"model": model, "optim": other})
    make().restore({"model": model, "optim": other}, strict=False)
    assert other.loaded
    assert same(moments(model, other), {name: saved[name] for name in ("b.weight", "c.weight")})
    assert other.param_groups[0]["lr"] == 0.5
    step(other)
    model = Net("a", "b", "c", b=4)
    with pytest.raises(sw.MismatchError, match=r"\(4, 2\) here and \(3, 2\)"):
        make().restore({"model": model, "optim": Own(model.parameters())}, only="optim")
    model = Net("b", "a", "c", b=3)
    other = Own(model.parameters(), lr=0.1)
    make().restore({"model": model, "optim": other}, keep_hyperparameters="lr")
    assert other.param_groups[0]["lr"] == 0.1
    assert same(moments(model, other), {name: saved[name] for name in ("b.weight", "a.weight", "c.weight")})


class Wrapper:
    """Around an optimizer, and with nothing of its own in the state, as Accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)


@pytest.mark.parametrize("wrapped", [(True, True), (True, False), (False, True)])
def test_a_wrapper_is_of_the_class_that_it_wraps(wrapped: tuple[bool, bool], save_once: SaveOnce, make: Make) -> None:
    def build(wrap: bool) -> tuple[dict[str, Any], torch.optim.Optimizer]:
        model = Net("a", "b")
        optim = Own(model.parameters())
        return {"model": model, "optim": Wrapper(optim) if wrap else optim}, optim

    state, optim = build(wrapped[0])
    step(optim)
    save_once(state)
    state, other = build(wrapped[1])
    make().restore(state)
    assert same(other.state_dict(), optim.state_dict())


# Another class, and hyperparameters


@pytest.mark.parametrize("other", [torch.optim.Adam, torch.optim.SGD])
def test_another_class_of_optimizer_is_an_error_under_strict(other: Any, save_once: SaveOnce, make: Make) -> None:
    saved_net(save_once, "a")
    model = Net("a")
    before = copy.deepcopy(model.state_dict())
    optim = other(model.parameters(), lr=0.5)
    text = rf"saved from .*AdamW.*\.{other.__name__}; exclude='optim' starts it anew"
    with pytest.raises(sw.MismatchError, match=text) as caught:
        make().restore({"model": model, "optim": optim})
    assert ("strict=False" in str(caught.value)) == (other is torch.optim.Adam), "a hint must help"
    assert same(model.state_dict(), before)
    assert optim.param_groups[0]["lr"] == 0.5 and not optim.state


def saved_by(kind: Any, save_once: SaveOnce, **options: Any) -> torch.optim.Optimizer:
    model = Net("a", "b")
    optim = kind(model.parameters(), lr=0.1, **options)
    step(optim)
    save_once({"model": model, "optim": optim})
    return optim


class OwnSgd(torch.optim.SGD):
    load_state_dict = Own.load_state_dict


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (torch.optim.AdamW, torch.optim.SGD),
        (torch.optim.SGD, torch.optim.AdamW),
        (torch.optim.AdamW, OwnSgd),
        (torch.optim.AdamW, torch.optim.RAdam),
    ],
)
def test_an_optimizer_of_another_class_is_left_alone_if_strict_is_off(
    saved: Any, here: Any, save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    saved_by(saved, save_once)
    model = Net("b", "a")
    optim = here(model.parameters(), lr=0.5, weight_decay=0.25)
    before = copy.deepcopy(optim.state_dict())
    ckpt = make()
    with caplog.at_level(logging.WARNING, "slackwater"):
        ckpt.restore({"model": model, "optim": optim}, strict=False)
    assert same(optim.state_dict(), before)
    assert ckpt.restored is not None
    assert ckpt.restored.left_alone == ("optim",)
    assert not any(name.startswith("optim") for name in ckpt.restored.restored)
    assert all(name.startswith("optim") for name in ckpt.restored.unused) and ckpt.restored.unused
    [warning] = [record.getMessage() for record in caplog.records]
    assert "'optim' was saved from torch.optim." in warning and "is left as it was" in warning
    step(optim)


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("kinds", [(torch.optim.Adam, torch.optim.AdamW), (torch.optim.AdamW, torch.optim.Adam)])
def test_classes_with_the_same_state_take_it_over_if_strict_is_off(
    kinds: Any, stepped: bool, save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    optim = saved_by(kinds[0], save_once)
    model = Net("a", "b")
    other = kinds[1](model.parameters(), lr=0.5)
    if stepped:
        step(other)
    ckpt = make()
    with caplog.at_level(logging.WARNING, "slackwater"):
        ckpt.restore({"model": model, "optim": other}, strict=False)
    assert same(other.state_dict()["state"], optim.state_dict()["state"])
    assert ckpt.restored is not None and not ckpt.restored.left_alone
    assert "was saved from torch.optim.adam" in caplog.text
    step(other)


class Signs(torch.optim.Optimizer):
    """With the hyperparameters of SGD, and other state."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, torch.optim.SGD([torch.zeros(1)], **options).defaults)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("sign", parameter.grad.sign())


def test_a_class_with_the_same_hyperparameters_is_not_alike_for_that(save_once: SaveOnce, make: Make) -> None:
    saved_by(Signs, save_once)
    model = Net("a", "b")
    optim = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    make().restore({"model": model, "optim": optim}, strict=False)
    assert optim.param_groups[0]["lr"] == 0.5 and not optim.state


def test_an_optimizer_of_another_class_alone_restores_nothing(save_once: SaveOnce, make: Make) -> None:
    saved_by(torch.optim.AdamW, save_once)
    with pytest.raises(sw.MismatchError, match=r"nothing .*'optim' was saved from .*AdamW and is restored into .*SGD"):
        make().restore({"optim": torch.optim.SGD(Net("a", "b").parameters(), lr=0.1)}, strict=False)


def test_a_class_that_lives_in_another_module_now_is_the_same(save_once: SaveOnce, make: Make) -> None:
    """A script that was __main__, and is imported by another one today."""

    def build(module: str) -> dict[str, Any]:
        kind = type("Mine", (torch.optim.SGD,), {"__module__": module, "__qualname__": "Mine"})
        return {"optim": kind([nn.Parameter(torch.zeros(2))], lr=0.1)}

    save_once(build("__main__"))
    assert make().restore(build("train")) == 1


def groups_of(optim: torch.optim.Optimizer, *keys: str) -> list[Any]:
    return [group[key] for group in optim.param_groups for key in keys]


@pytest.mark.parametrize(
    ("keep", "lr", "decay"),
    [
        (False, 1e-3, 0.5),
        (True, 9.0, 0.0),
        ("lr", 9.0, 0.5),
        (["lr", "weight_*"], 9.0, 0.0),
        ("optim", 9.0, 0.0),
        ("optim.lr", 9.0, 0.5),
        ("other.lr", 1e-3, 0.5),
        ([], 1e-3, 0.5),
    ],
)
def test_hyperparameters_may_be_kept(keep: Any, lr: float, decay: float, save_once: SaveOnce, make: Make) -> None:
    model = Net("a")
    optim, other = adam(model, weight_decay=0.5), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim, "other": other})
    optim = adam(model, weight_decay=0.0, lr=9.0)
    make().restore({"model": model, "optim": optim, "other": other}, keep_hyperparameters=keep)
    assert groups_of(optim, "lr", "weight_decay") == [lr, decay]
    assert same(moments(model, optim), saved)


def test_a_learning_rate_in_a_tensor_may_be_kept(save_once: SaveOnce, make: Make) -> None:
    model = Net("a")
    save_once({"model": model, "optim": adam(model, lr=torch.tensor(0.5))})
    mine = torch.tensor(0.25)
    optim = adam(model, lr=mine)
    make().restore({"model": model, "optim": optim}, keep_hyperparameters="lr")
    assert optim.param_groups[0]["lr"] is mine and mine.item() == 0.25


def test_the_initial_learning_rate_is_kept_with_the_learning_rate(save_once: SaveOnce, make: Make) -> None:
    model = Net("a")
    optim = adam(model, lr=0.5)
    torch.optim.lr_scheduler.StepLR(optim, 1)
    save_once({"model": model, "optim": optim})
    optim = adam(model, lr=0.25)
    sched = torch.optim.lr_scheduler.StepLR(optim, 1)
    make().restore({"model": model, "optim": optim}, keep_hyperparameters="lr")
    assert groups_of(optim, "lr", "initial_lr") == [0.25, 0.25] == [0.25, *sched.base_lrs]


@pytest.mark.parametrize("keep", ["lrr", "optm.lr", ["lr", "weigth_decay"], 3, [3]])
def test_hyperparameters_that_there_are_not_are_an_error(keep: Any, save_once: SaveOnce, make: Make) -> None:
    model = Net("a")
    save_once({"model": model, "optim": adam(model, lr=0.5)})
    optim = adam(model, lr=0.25)
    with pytest.raises(sw.UsageError, match="keep_hyperparameters"):
        make().restore({"model": model, "optim": optim}, keep_hyperparameters=keep)
    assert optim.param_groups[0]["lr"] == 0.25


# Several ranks


@pytest.mark.parametrize("form", ["module", "state_dict"])
def test_sharded_moments_follow_their_names_on_another_number_of_ranks(form: str, tmp_path: Path) -> None:
    """Some ranks hold nothing of the layers "b" and "d", which have one row."""
    program = """
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def main(rank):
        join(rank)
        order = ["a", "b", "c", "d"] if world == 2 else ["d", "c", "a", "b"]
        torch.manual_seed(0)
        model = nn.Module()
        for name in order:
            model.add_module(name, nn.Linear(4, 1 if name in "bd" else 5, bias=False))
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        optim = torch.optim.AdamW(model.parameters(), lr=0.1)
        with sw.Checkpointer(path, **SMALL) as ckpt:
            if world == 2:
                for name, layer in model.named_children():
                    layer.weight.grad = torch.full_like(layer.weight, float(ord(name)))
                optim.step()
                for step in (1, 2):
                    ckpt.save(step, {"model": FORM, "optim": optim})
            else:
                assert ckpt.restore({"model": FORM, "optim": optim}) == 2
                for name, layer in model.named_children():
                    moment = optim.state[layer.weight]["exp_avg"]
                    assert moment.shape == layer.weight.shape
                    assert torch.allclose(moment.full_tensor(), torch.full(moment.shape, 0.1 * ord(name))), name
                print(f"{rank}: {ckpt.restored.tensors} of {ckpt.restored.total}")
    """
    for world in (2, 3):
        given = "model" if form == "module" else "model.state_dict()"
        answer = run_ranks(program.replace("FORM", given), world, tmp_path / "run")
        assert answer["codes"] == [0] * world, answer
