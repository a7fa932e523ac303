"""A restore says what it did, and one that does nothing is an error."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater import _core
from support import bits, data_file
from test_restore import flip
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]


def trained(width: int = 3) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    optim = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optim.step()
    return {"model": model, "optim": optim, "rng": sw.Rng(), "epoch": 3}


def fresh_bits(model: nn.Module) -> list[bytes]:
    return [bits(parameter) for parameter in model.parameters()]


# Nothing restored


def test_a_model_under_another_key_is_an_error_that_suggests_the_name(save_once: SaveOnce, make: Make) -> None:
    save_once(trained())
    model = trained()["model"]
    before = fresh_bits(model)
    with pytest.raises(sw.MismatchError, match=r"nothing of 'net'.*'model'"):
        make().restore({"net": model}, strict=False)
    assert fresh_bits(model) == before


def test_a_model_under_another_key_is_an_error_even_if_other_things_fit(save_once: SaveOnce, make: Make) -> None:
    """Random states and plain values come back, the weights do not: training would go on from random ones."""
    save_once(trained())
    state = trained()
    state["net"] = state.pop("model")
    state["epoch"] = 0
    with pytest.raises(sw.MismatchError, match="nothing of 'net'"):
        make().restore(state, strict=False)
    assert state["epoch"] == 0, "nothing is changed"


def test_tensors_that_have_no_name_in_common_are_an_error(save_once: SaveOnce, make: Make) -> None:
    save_once({"weights": torch.ones(2), "epoch": 3})
    state = {"weight": torch.zeros(2), "epoch": 0}
    with pytest.raises(sw.MismatchError, match="'weights'"):
        make().restore(state, strict=False)
    assert state["epoch"] == 0


def test_a_new_part_beside_one_that_fits_is_no_error(save_once: SaveOnce, make: Make) -> None:
    save_once({"model": nn.Linear(2, 2)})
    assert make().restore({"model": nn.Linear(2, 2), "ema": nn.Linear(2, 2)}, strict=False) == 1


def test_a_checkpoint_without_models_may_be_restored_beside_one(save_once: SaveOnce, make: Make) -> None:
    """There is nothing that could have been meant for it."""
    save_once({"rng": sw.Rng(), "epoch": 3})
    state = {"model": nn.Linear(2, 2), "rng": sw.Rng(), "epoch": 0}
    make().restore(state, strict=False)
    assert state["epoch"] == 3


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("option", ["only", "exclude"])
@pytest.mark.parametrize("pattern", ["modle", "modle.*", ["model", "modle"], ["optm", "model"]])
def test_a_pattern_that_matches_nothing_is_an_error(
    pattern: Any, option: str, strict: bool, save_once: SaveOnce, make: Make
) -> None:
    save_once(trained())
    state = trained()
    before, state["epoch"] = fresh_bits(state["model"]), 0
    meant = "optim" if "optm" in pattern else "model"
    with pytest.raises(sw.UsageError, match=rf"{option}=.*matches nothing.*did you mean.*'{meant}"):
        make().restore(state, strict=strict, **{option: pattern})
    assert fresh_bits(state["model"]) == before
    assert state["epoch"] == 0


def test_a_pattern_that_the_state_has_nothing_for_is_an_error(save_once: SaveOnce, make: Make) -> None:
    save_once({"model": nn.Linear(2, 2), "ema": nn.Linear(2, 2)})
    with pytest.raises(sw.UsageError, match="'ema'"):
        make().restore({"model": nn.Linear(2, 2)}, strict=False, only=["model", "ema"])


def test_what_only_one_side_has_may_be_excluded(save_once: SaveOnce, make: Make) -> None:
    save_once({"model": nn.Linear(2, 2), "old": torch.ones(1), "note": "x"})
    state = {"model": nn.Linear(2, 2), "new": torch.ones(1)}
    assert make().restore(state, exclude=["old", "new", "note"]) == 1
    assert "note" not in state


def test_load_of_a_pattern_that_matches_nothing_is_an_error(save_once: SaveOnce) -> None:
    path = save_once(trained())
    with pytest.raises(sw.UsageError, match=r"only='modle' matches nothing.*did you mean.*'model'"):
        sw.load(path, only="modle")
    with pytest.raises(sw.UsageError, match=r"only='model\.0\.wieght'.*'model\.0\.weight'"):
        sw.load(path, only=["epoch", "model.0.wieght"])


# What was done


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "slackwater" and r.levelno == level]


def test_a_restore_says_what_it_did_in_one_line(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"model": nn.Linear(1000, 300), "n": 1}, step=40)
    ckpt = make()
    assert ckpt.restored is None
    with caplog.at_level(logging.INFO, logger="slackwater"):
        ckpt.restore({"model": nn.Linear(1000, 300), "n": 0})
    [line] = [line for line in lines(caplog, logging.INFO) if line.startswith("restored")]
    assert line.startswith("restored 2 of 2 tensors of step 40, 1.2 MB in ")
    assert not lines(caplog, logging.WARNING)
    report = ckpt.restored
    assert isinstance(report, sw.RestoreReport)
    assert (report.step, report.tensors, report.total, report.size_bytes) == (40, 2, 2, 1000 * 300 * 4 + 300 * 4)
    assert report.restored == ("model.weight", "model.bias", "n")
    assert report.seconds > 0
    assert not (report.left_alone or report.unused or report.not_selected or report.new_parameters or report.damaged)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.step = 1  # type: ignore[misc]


def test_what_was_left_alone_or_not_used_is_named_in_one_warning(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"m": {**{f"old{i}": torch.ones(1) for i in range(9)}, "both": torch.ones(1)}})
    state = {"m": {**{f"new{i}": torch.zeros(1) for i in range(8)}, "both": torch.zeros(1)}, "mine": 1}
    ckpt = make()
    ckpt.restore(state, strict=False)
    [warning] = lines(caplog, logging.WARNING)
    assert "left as they were: 'mine', 'm.new0', 'm.new1'" in warning and "and 4 more; " in warning
    assert "not used: 'm.old0', 'm.old1'" in warning and "and 4 more" in warning
    assert ckpt.restored is not None
    assert ckpt.restored.left_alone == ("mine", *(f"m.new{i}" for i in range(8)))
    assert ckpt.restored.unused == tuple(f"m.old{i}" for i in range(9))
    assert (ckpt.restored.tensors, ckpt.restored.total) == (1, 10)


def test_plain_values_under_another_key_are_named(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"epoch": 3, "best": 0.1, "m": {"w": torch.ones(1), "n": 4}})
    state = {"epochs": 0, "best_loss": 9, "m": {"w": torch.zeros(1), "count": 0}}
    ckpt = make()
    assert ckpt.restore(state) == 1
    assert state["epochs"] == 0 and state["epoch"] == 3
    report = ckpt.restored
    assert report is not None
    assert report.left_alone == ("epochs", "best_loss", "m.count")
    assert report.added == ("m.n", "epoch", "best")
    assert report.unused == ()
    [warning] = lines(caplog, logging.WARNING)
    assert "not in the checkpoint, and left as they were: 'epochs', 'best_loss', 'm.count'" in warning
    assert "the checkpoint has others, which are new keys of the state now: 'm.n', 'epoch', 'best'" in warning


def test_values_that_come_as_new_keys_are_no_reason_to_warn(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"w": torch.ones(1), "epoch": 3})
    ckpt = make()
    ckpt.restore({"w": torch.zeros(1)})
    assert ckpt.restored is not None
    assert ckpt.restored.added == ("epoch",)
    assert not lines(caplog, logging.WARNING)


def test_plain_values_that_are_not_selected_are_no_reason_to_warn(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"w": torch.ones(1), "epoch": 3})
    ckpt = make()
    ckpt.restore({"w": torch.zeros(1), "epochs": 0}, only="w")
    ckpt.restore({"w": torch.zeros(1), "epochs": 0}, exclude="epoch*")
    assert ckpt.restored is not None
    assert not ckpt.restored.left_alone and not ckpt.restored.added
    assert not lines(caplog, logging.WARNING)


def test_what_was_not_asked_for_is_no_reason_to_warn(
    save_once: SaveOnce, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    save_once({"model": nn.Linear(2, 2), "big": torch.ones(2), "n": 1})
    ckpt = make()
    ckpt.restore({"model": nn.Linear(2, 2), "new": torch.ones(2)}, only="model")
    assert not lines(caplog, logging.WARNING)
    assert ckpt.restored is not None
    assert ckpt.restored.not_selected == ("big",)
    assert (ckpt.restored.tensors, ckpt.restored.total, ckpt.restored.unused) == (2, 3, ())


def test_steps_that_are_passed_over_are_in_the_report(path: Path, make: Make) -> None:
    with make(keep=0) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"t": torch.full((5000,), float(step))})
            ckpt.wait()
    flip(data_file(path, 2))
    ckpt = make()
    assert ckpt.restore({"t": torch.zeros(5000)}) == 1
    assert ckpt.restored is not None
    [damage] = ckpt.restored.damaged
    assert damage.startswith("step 2: ")


def test_damage_found_while_casting_is_in_the_report(path: Path, make: Make) -> None:
    with make(keep=0) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"t": torch.full((5000,), float(step))})
            ckpt.wait()
    flip(data_file(path, 2))
    ckpt = make()
    assert ckpt.restore({"t": torch.zeros(5000, dtype=torch.float64)}, cast=True) == 1
    assert ckpt.restored is not None
    assert [damage[:7] for damage in ckpt.restored.damaged] == ["step 2:"]
    assert ckpt.restored.size_bytes == 5000 * 4


def test_no_checkpoint_gives_no_report(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = make()
    with caplog.at_level(logging.INFO, logger="slackwater"):
        assert ckpt.restore({"model": nn.Linear(2, 2)}, only="model") is None
    assert ckpt.restored is None
    assert "restored" not in caplog.text


def test_the_report_is_that_of_the_last_restore(save_once: SaveOnce, make: Make) -> None:
    save_once({"a": torch.ones(2), "b": torch.ones(2)})
    ckpt = make()
    ckpt.restore({"a": torch.zeros(2)}, only="a")
    with pytest.raises(sw.UsageError):
        ckpt.restore({"a": torch.zeros(2)}, only="c")
    assert ckpt.restored is None, "the last one failed"


def test_load_says_what_it_did(save_once: SaveOnce, caplog: pytest.LogCaptureFixture) -> None:
    path = save_once({"model": nn.Linear(1000, 300), "n": 1}, step=40)
    with caplog.at_level(logging.INFO, logger="slackwater"):
        sw.load(path, only="model.weight")
    [line] = lines(caplog, logging.INFO)
    assert line.startswith("loaded 1 of 2 tensors of step 40, 1.2 MB in ")


def test_tensors_read_through_objects_are_counted(save_once: SaveOnce, make: Make) -> None:
    state = trained()
    save_once(state)
    ckpt = make()
    ckpt.restore(trained())
    with sw.open(ckpt.path) as reader:
        assert ckpt.restored is not None
        assert ckpt.restored.tensors == ckpt.restored.total == len(reader)
    assert _core.list_versions(ckpt.path)[0].step == ckpt.restored.step
