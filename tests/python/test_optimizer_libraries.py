"""Names of parameters with the libraries that people train with (requirements-libraries.txt)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from support import library, same
from test_optimizer_names import make, moments, step  # noqa: F401
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.value = nn.Linear(8, 8)
        self.out = nn.Linear(8, 4)


def test_lora_on_more_layers_keeps_the_moments_of_those_it_had(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    peft: Any = library("peft")

    def build(*targets: str) -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = peft.get_peft_model(Block(), peft.LoraConfig(r=2, target_modules=list(targets)))
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.5)

    model, optim = build("value")
    step(optim)
    saved = moments(model, optim)
    save_once({"model": model, "optim": optim})
    model, optim = build("query", "value")  # "query" comes first: every number has changed
    with pytest.raises(sw.MismatchError, match=r"query\.lora_A"):
        make().restore({"model": model, "optim": optim})
    assert not optim.state
    ckpt = make()
    rename = {
        "model.*.query.weight": "model.*.query.base_layer.weight",
        "model.*.query.bias": "model.*.query.base_layer.bias",
    }
    ckpt.restore({"model": model, "optim": optim}, strict=False, rename=rename)
    assert same(moments(model, optim), saved)
    assert ckpt.restored is not None
    assert len(ckpt.restored.new_parameters) == 2
    assert all("query.lora_" in name for name in (*ckpt.restored.new_parameters, *ckpt.restored.left_alone))
    step(optim)


def test_a_lora_of_another_rank_is_refused(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    peft: Any = library("peft")

    def build(rank: int) -> tuple[Any, torch.optim.Optimizer]:
        model = peft.get_peft_model(Block(), peft.LoraConfig(r=rank, target_modules=["query"]))
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    model, optim = build(2)
    step(optim)
    save_once({"model": model, "optim": optim})
    model, optim = build(4)
    with pytest.raises(sw.MismatchError, match=r"'optim' holds .*lora_A.*\(4, 8\) here and \(2, 8\)"):
        make().restore({"model": model, "optim": optim}, only="optim", strict=False)
    assert not optim.state


@pytest.mark.parametrize("kind", ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"])
def test_schedule_free_state_follows_its_parameter(kind: str, save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    schedulefree: Any = library("schedulefree")

    def build(*layers: str) -> tuple[nn.Module, Any]:
        model = nn.ModuleDict({layer: nn.Linear(3, 3) for layer in layers})
        optim = getattr(schedulefree, kind)(model.parameters(), lr=0.1)
        optim.train()
        return model, optim

    model, optim = build("a", "b")
    step(optim)
    step(optim)
    save_once({"model": model, "optim": optim})
    other, fresh = build("b", "a")
    make().restore({"model": other, "optim": fresh})
    for name, parameter in model.named_parameters():
        assert same(dict(fresh.state[other.get_parameter(name)]), dict(optim.state[parameter]))
    assert fresh.param_groups[0]["k"] == 2
    grads = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for net, opt in ((model, optim), (other, fresh)):
        for name, parameter in net.named_parameters():
            parameter.grad = grads[name].clone()
        opt.step()
    assert all(same(p.detach(), other.get_parameter(name).detach()) for name, p in model.named_parameters())


def test_a_wrapped_schedule_free_optimizer_is_checked(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    schedulefree: Any = library("schedulefree")

    def build(width: int) -> tuple[nn.Module, Any]:
        model = nn.Linear(3, width, bias=False)
        optim = schedulefree.ScheduleFreeWrapper(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), momentum=0.9
        )
        optim.train()
        return model, optim

    model, optim = build(2)
    step(optim)
    save_once({"model": model, "optim": optim})
    other, fresh = build(2)
    make().restore({"model": other, "optim": fresh})
    assert same(fresh.state_dict(), optim.state_dict())
    model, optim = build(4)
    with pytest.raises(sw.MismatchError, match=r"\(4, 3\) here and \(2, 3\)"):
        make().restore({"model": model, "optim": optim}, only="optim", strict=False)


def test_a_transformer_with_groups_by_decay(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    transformers: Any = library("transformers")

    def build(decay_first: bool) -> tuple[Any, torch.optim.Optimizer]:
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=17, n_positions=8)
        model = transformers.GPT2LMHeadModel(config)
        decay = [p for p in model.parameters() if p.dim() > 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]
        return model, torch.optim.AdamW(groups if decay_first else groups[::-1], weight_decay=0.0)

    def train(model: Any, optim: torch.optim.Optimizer) -> None:
        ids = torch.arange(8)[None]
        model.eval()(input_ids=ids, labels=ids).loss.backward()
        optim.step()
        optim.zero_grad()

    model, optim = build(True)
    train(model, optim)
    save_once({"model": model, "optim": optim})
    other, fresh = build(False)  # embeddings are tied to the head
    ckpt = make()
    ckpt.restore({"model": other, "optim": fresh})
    assert ckpt.restored is not None
    assert ckpt.restored.tensors == ckpt.restored.total
    assert same(moments(other, fresh), moments(model, optim))
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.0, 0.1]
    train(model, optim)
    train(other, fresh)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
