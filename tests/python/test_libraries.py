"""Models, optimizers and averages of the libraries that people train with (requirements-libraries.txt)."""

from __future__ import annotations

import contextlib
import copy
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


def gpt2(seed: int) -> Any:
    """With dropout, and with embeddings that are tied to the head."""
    transformers: Any = library("transformers")
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=17, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def train_gpt2(model: Any, optim: torch.optim.Optimizer) -> float:
    ids = torch.randint(17, (2, 8))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optim.step()
    optim.zero_grad()
    return loss.item()


# Transformers


def test_gpt2_goes_on_with_the_same_losses(make: Make) -> None:  # noqa: F811
    model = gpt2(1)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with make() as ckpt:
        for step_ in range(1, 4):
            train_gpt2(model, optim)
            ckpt.save(step_, {"model": model, "optim": optim, "rng": sw.Rng()})
        expected = [train_gpt2(model, optim) for _ in range(3)]
    again = gpt2(2)
    fresh = torch.optim.AdamW(again.parameters(), lr=1e-2)
    ckpt = make()
    assert ckpt.restore({"model": again, "optim": fresh, "rng": sw.Rng()}) == 3
    assert [train_gpt2(again, fresh) for _ in range(3)] == expected
    assert same(dict(again.state_dict()), dict(model.state_dict()))


def test_gpt2_under_another_key_is_an_error_that_suggests_names(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    save_once({"model": gpt2(1)})
    model = gpt2(2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(sw.MismatchError, match="'model"):
        make().restore({"net": model}, strict=False)
    with pytest.raises(sw.UsageError, match="'model'"):
        make().restore({"model": model}, only="modle")
    assert same(dict(model.state_dict()), dict(before))


# PEFT


def lora(model: Any) -> Any:
    peft: Any = library("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


ADDED_LORA = {
    "model.*.c_attn.*": "model.base_model.model.*.c_attn.base_layer.*",
    "model.*": "model.base_model.model.*",
}


@pytest.mark.parametrize("trains", ["adapters", "everything"])
def test_lora_that_is_added_later_restores_what_exists_and_reports_what_is_new(
    trains: str,
    save_once: SaveOnce,
    make: Make,  # noqa: F811
) -> None:
    model = gpt2(1)
    optim = torch.optim.AdamW(model.parameters())
    train_gpt2(model, optim)
    save_once({"model": model, "optim": optim})
    saved = moments(model, optim)

    adapted = lora(gpt2(2))
    adapters = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len(adapters) == 4
    if trains == "everything":
        adapted.requires_grad_(True)
    fresh = torch.optim.AdamW([parameter for parameter in adapted.parameters() if parameter.requires_grad])
    state = {"model": adapted, "optim": fresh}
    with pytest.raises(sw.MismatchError, match=r"lora_A"):
        make().restore(state, rename=ADDED_LORA)
    assert not fresh.state
    ckpt = make()
    assert ckpt.restore(state, rename=ADDED_LORA, strict=False) == 1
    assert ckpt.restored is not None
    assert set(ckpt.restored.new_parameters) == {f"optim: model.{name}" for name in adapters}
    assert adapters <= {name.removeprefix("model.") for name in ckpt.restored.left_alone}
    base = adapted.get_base_model().state_dict()
    for name, tensor in model.state_dict().items():
        assert same(tensor, base[name.replace("c_attn.", "c_attn.base_layer.")])
    found = moments(adapted, fresh)
    for name, tensor in saved.items() if trains == "everything" else ():
        assert same(tensor, found["base_model.model." + name.replace("c_attn.", "c_attn.base_layer.")]), name
    assert len(found) == (len(saved) if trains == "everything" else 0)
    train_gpt2(adapted, fresh)


# ema-pytorch


def test_average_updated_right_after_save_costs_one_snapshot_at_most(make: Make, path: Path) -> None:  # noqa: F811
    ema_pytorch: Any = library("ema_pytorch")
    model = nn.Sequential(*[nn.Linear(160, 160, bias=False) for _ in range(120)])  # none of them volatile
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = ema_pytorch.EMA(model, beta=0.9, update_after_step=0, update_every=1, include_online_model=False)
    averages = {}
    with make(pool="64MiB", keep=0) as ckpt:
        for step_ in range(1, 13):
            step(optim)
            averages[step_] = copy.deepcopy(ema.ema_model.state_dict())
            ckpt.save(step_, {"model": model, "ema": ema, "step": step_})
            ema.update()
        with contextlib.suppress(sw.TornError):
            ckpt.wait()
        committed = ckpt.steps()
    assert len(ckpt.failures) <= 1
    assert len(committed) == 12 - len(ckpt.failures)
    for step_ in committed:
        saved = sw.load(path, step_, only="ema")["ema"]
        assert all(same(saved[f"ema_model.{name}"], tensor) for name, tensor in averages[step_].items()), step_


def test_average_of_ema_pytorch_goes_on_with_the_same_bits(make: Make) -> None:  # noqa: F811
    ema_pytorch: Any = library("ema_pytorch")

    def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Linear(8, 8)
        optim = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, optim, ema_pytorch.EMA(model, beta=0.9, update_after_step=1, update_every=2)

    def train(optim: torch.optim.Optimizer, ema: Any) -> None:
        step(optim)
        ema.update()

    model, optim, ema = build()
    with make() as ckpt:
        for step_ in range(1, 6):
            train(optim, ema)
            ckpt.save(step_, {"model": model, "optim": optim, "ema": ema, "rng": sw.Rng()})
        for _ in range(4):
            train(optim, ema)
    other, fresh, again = build()
    assert make().restore({"model": other, "optim": fresh, "ema": again, "rng": sw.Rng()}) == 5
    for _ in range(4):
        train(fresh, again)
    assert same(dict(again.state_dict()), dict(ema.state_dict()))
    assert again.step == 9


# schedulefree


def test_eval_of_schedule_free_is_fenced_by_fence_on(make: Make, path: Path) -> None:  # noqa: F811
    schedulefree: Any = library("schedulefree")
    model = nn.Linear(1024, 1024)
    optim = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)
    optim.train()
    step(optim)  # after the first one, the weights of eval() are still those of training
    with make(pool="2MiB") as ckpt:
        ckpt.fence_on(optim, "eval")
        for step_ in range(1, 4):
            step(optim)
            weights = model.weight.detach().clone()
            snapshot = ckpt.save(step_, {"model": model, "optim": optim})
            assert snapshot is not None
            optim.eval()
            assert not torch.equal(model.weight, weights)
            optim.train()
            snapshot.wait(timeout=60)
            assert same(sw.load(path, step_)["model"]["weight"], weights), "those of training, not those of eval()"
    assert not ckpt.failures


# Accelerate


def test_optimizer_of_accelerate_is_matched_by_name(save_once: SaveOnce, make: Make) -> None:  # noqa: F811
    accelerate: Any = library("accelerate")

    def build(*layers: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.ModuleDict({layer: nn.Linear(3, 3) for layer in layers})
        return model, torch.optim.AdamW(model.parameters())

    model, optim = accelerate.Accelerator(cpu=True).prepare(*build("a", "b"))
    assert type(optim).__name__ == "AcceleratedOptimizer"
    step(optim)
    save_once({"model": model, "optim": optim})
    saved = moments(model, optim.optimizer)
    for wrapped in (False, True):
        other, fresh = build("b", "a")
        if wrapped:
            other, fresh = accelerate.Accelerator(cpu=True).prepare(other, fresh)
        assert make().restore({"model": other, "optim": fresh}) == 1
        found = moments(other, fresh.optimizer if wrapped else fresh)
        assert found.keys() == saved.keys() and all(same(found[name], saved[name]) for name in saved)
