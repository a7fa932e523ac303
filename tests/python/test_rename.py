"""restore(rename=...): what the checkpoint calls one way and the state another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater.restore.rename import Renaming
from support import same
from test_optimizer_names import Net, adam, make, moments, step  # noqa: F401
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]


@pytest.mark.parametrize(
    ("rules", "name", "renamed"),
    [
        ({"a": "b"}, "a", "b"),
        ({"a": "b"}, "a.x", "b.x"),
        ({"a": "b"}, "ab", "ab"),
        ({"a.*": "b.*"}, "a", "b"),
        ({"a.*": "b.*"}, "a.x.y", "b.x.y"),
        ({"a.*": "b.*"}, "c.a.x", "c.a.x"),
        ({"*.attn.*": "*.attention.*"}, "m.0.attn.w", "m.0.attention.w"),
        ({"m.*.q": "m.*.query"}, "m.0.q", "m.0.query"),
        ({"m.*.q": "m.*.query"}, "m.0.q.w", "m.0.query.w"),
        ({"*_old": "*_new"}, "w_old", "w_new"),
        ({"m.head": "h", "m": "n"}, "m.head.w", "h.w"),
        ({"m.head": "h", "m": "n"}, "m.body.w", "n.body.w"),
        ({"a": "b", "b": "a"}, "b.x", "a.x"),
        ({"a.(x)": "b.\\1"}, "a.(x)", "b.\\1"),
    ],
)
def test_rules(rules: dict[str, str], name: str, renamed: str) -> None:
    assert Renaming(rules)(name) == renamed


@pytest.mark.parametrize("rules", [{"a.*": "b"}, {"a": "*"}, {1: "a"}, {"a": None}, {"": "a"}, ["a"], "a"])
def test_rules_that_make_no_sense_are_refused(rules: Any, make: Make) -> None:  # noqa: F811
    with pytest.raises(sw.UsageError, match="rename"):
        make().restore({"a": 1}, rename=rules)


def saved_model(save_once: SaveOnce, *layers: str, **more: Any) -> dict[str, torch.Tensor]:
    model = Net(*layers)
    optim = adam(model, lr=0.5)
    step(optim)
    save_once({"model": model, "optim": optim, "epoch": 3, "config": {"lr": 1, "seed": 2}, **more})
    return {**{name: p.detach().clone() for name, p in model.named_parameters()}, "moments": moments(model, optim)}


@pytest.mark.parametrize("rule", [{"model": "net"}, {"model.*": "net.*"}])
def test_a_model_under_another_key_brings_its_moments(
    rule: dict[str, str],
    save_once: SaveOnce,
    make: Make,  # noqa: F811
) -> None:
    saved = saved_model(save_once, "a", "b")
    net = Net("b", "a")
    optim = adam(net)
    ckpt = make()
    state = {"net": net, "optim": optim, "epoch": 0, "config": {"lr": 0, "seed": 0}}
    assert ckpt.restore(state, rename=rule) == 1
    assert same(net.a.weight.detach(), saved["a.weight"])
    assert same(moments(net, optim), {name: saved["moments"][name] for name in ("b.weight", "a.weight")})
    assert ckpt.restored is not None
    assert ("model.a.weight", "net.a.weight") in ckpt.restored.renamed
    assert "net.a.weight" in ckpt.restored.restored
    assert state["epoch"] == 3 and "model" not in state


def test_a_layer_under_another_name_brings_its_moments(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    saved = saved_model(save_once, "a", "b")
    model = Net("first", "b")
    optim = adam(model)
    make().restore({"model": model, "optim": optim, "config": {}}, rename={"model.a.*": "model.first.*"})
    assert same(model.first.weight.detach(), saved["a.weight"])
    assert same(optim.state[model.first.weight]["exp_avg"], saved["moments"]["a.weight"])


def test_two_layers_may_change_places(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    saved = saved_model(save_once, "a", "b")
    model = Net("a", "b")
    optim = adam(model)
    rules = {"model.a": "model.b", "model.b": "model.a"}
    make().restore({"model": model, "optim": optim, "config": {}}, rename=rules)
    assert same(model.a.weight.detach(), saved["b.weight"])
    assert same(
        moments(model, optim), {"a.weight": saved["moments"]["b.weight"], "b.weight": saved["moments"]["a.weight"]}
    )


def test_a_part_of_a_model_becomes_a_model_of_its_own(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    model = nn.ModuleDict({"encoder": Net("a"), "decoder": Net("b")})
    save_once({"model": model})
    encoder, decoder = Net("a"), Net("b")
    state = {"parts": {"encoder": encoder}, "decoder": decoder}
    make().restore(state, rename={"model.encoder.*": "parts.encoder.*", "model.decoder.*": "decoder.*"})
    assert same(encoder.a.weight.detach(), model["encoder"].a.weight.detach())
    assert same(decoder.b.weight.detach(), model["decoder"].b.weight.detach())


def test_models_become_parts_of_one(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    encoder, decoder = Net("a"), Net("b")
    save_once({"encoder": encoder, "decoder": decoder})
    model = nn.ModuleDict({"enc": Net("a"), "dec": Net("b")})
    make().restore({"model": model}, rename={"encoder.*": "model.enc.*", "decoder.*": "model.dec.*"})
    assert same(model["enc"].a.weight.detach(), encoder.a.weight.detach())
    assert same(model["dec"].b.weight.detach(), decoder.b.weight.detach())


def test_tensors_and_values_in_dicts_and_lists(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    save_once(
        {
            "old": {"t": torch.ones(2), "n": 1},
            "list": [{"x": torch.ones(1), "k": 5}],
            "steps": 7,
            "flat": {"a.b": torch.ones(3)},
        }
    )
    state: dict[str, Any] = {
        "new": {"deep": {"tensor": torch.zeros(2)}},
        "list": [{"y": torch.zeros(1), "k": 0}],
        "count": 0,
        "flat": {"c.d": torch.zeros(3)},
    }
    rules = {
        "old.t": "new.deep.tensor",
        "old.n": "new.number",
        "list.0.x": "list.0.y",
        "steps": "count",
        "flat.a.b": "flat.c.d",
    }
    make().restore(state, rename=rules)
    assert state["new"]["deep"]["tensor"].tolist() == [1, 1]
    assert state["new"]["number"] == 1
    assert state["list"][0]["y"].item() == 1 and state["list"][0]["k"] == 5
    assert state["count"] == 7 and "steps" not in state
    assert state["flat"]["c.d"].tolist() == [1, 1, 1]


def test_objects_and_optimizers_are_renamed_whole(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    model = Net("a")
    optim = adam(model, lr=0.5)
    step(optim)
    save_once({"model": model, "optim": optim, "sched": torch.optim.lr_scheduler.StepLR(optim, 7), "rng": sw.Rng()})
    torch.manual_seed(99)
    other, sched = adam(model), torch.optim.lr_scheduler.StepLR(adam(model), 3)
    state = {"model": model, "adam": other, "schedule": sched, "random": sw.Rng()}
    make().restore(state, rename={"optim": "adam", "sched": "schedule", "rng": "random"})
    assert same(other.state_dict(), optim.state_dict())
    assert sched.step_size == 7


def test_only_and_exclude_mean_the_names_of_the_state(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    saved = saved_model(save_once, "a", "b")
    net = Net("a", "b")
    before = net.b.weight.detach().clone()
    state = {"net": net, "epoch": 0}
    make().restore(state, rename={"model.*": "net.*"}, only=["net"], exclude="net.b.*")
    assert same(net.a.weight.detach(), saved["a.weight"])
    assert same(net.b.weight.detach(), before)
    assert state["epoch"] == 0
    with pytest.raises(sw.UsageError, match="only='model'"):
        make().restore(state, rename={"model.*": "net.*"}, only="model")


def test_a_rule_that_matches_nothing_is_an_error(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    saved_model(save_once, "a")
    model = Net("a")
    before = model.a.weight.detach().clone()
    for rules in ({"modle.*": "net.*"}, {"model.*": "net.*", "modle": "x"}):
        with pytest.raises(sw.UsageError, match=r"rename=.*'modle.*matches nothing.*'model'"):
            make().restore({"model": model}, rename=rules, strict=False)
    with pytest.raises(sw.UsageError, match="another rule before it"):
        make().restore({"model": model}, rename={"model": "net", "model.a": "x"}, strict=False)
    with pytest.raises(sw.UsageError, match="restores nothing"):
        make().restore({"model": model}, rename={"optim": "nowhere"}, strict=False)
    assert same(model.a.weight.detach(), before)


def test_two_names_for_one_are_an_error(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    save_once({"a": torch.ones(2), "b": torch.ones(2)})
    for rules in ({"a": "c", "b": "c"}, {"a": "b"}):
        with pytest.raises(sw.UsageError, match="'a' and 'b' of the checkpoint the same name"):
            make().restore({"c": torch.zeros(2)}, rename=rules, strict=False)


def test_a_checkpoint_that_is_tried_after_a_damaged_one_is_renamed_too(path: Path, make: Make) -> None:  # noqa: F811
    from support import data_file
    from test_restore import flip

    with make(keep=0) as ckpt:
        for number in (1, 2):
            ckpt.save(number, {"old": torch.full((5000,), float(number))})
            ckpt.wait()
    flip(data_file(path, 2))
    state = {"new": torch.zeros(5000)}
    assert make().restore(state, rename={"old": "new"}, only=iter(["new"])) == 1
    assert state["new"][0].item() == 1
