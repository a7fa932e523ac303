"""Lazy capture is right only if nobody writes before the fence: what is captured at once, and what notices a writer."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from slackwater.tree import Capturer
from torch import nn

Make = Callable[..., sw.Checkpointer]
MIB = 1 << 20


def volatile_names(state: dict[str, Any]) -> set[str]:
    capture = Capturer(False).capture(state)
    from slackwater.tree import Flattener

    flat = Flattener()
    flat.flatten(state)
    assert len(capture.structure) == len(capture.addresses)
    return {
        name
        for name, flag in zip(
            flat.torch_names + flat.array_names, flat.torch_volatile + flat.array_volatile, strict=True
        )
        if flag
    }


def test_what_is_captured_at_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(2000))
    optim = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optim.step()
    state = {
        "m": model,
        "o": optim,
        "small": torch.ones(1024),
        "large": torch.ones(1025),
        "a": np.ones(512),
        "b": np.ones(513),
    }
    assert volatile_names(state) == {
        "m.1.running_mean",
        "m.1.running_var",
        "m.1.num_batches_tracked",
        "o.param_groups.0.lr",
        "small",
        "a",
    }


def test_buffers_of_hooked_modules_are_known_too() -> None:
    model = nn.BatchNorm1d(2000)
    model.register_state_dict_post_hook(lambda *_: None)
    assert volatile_names({"m": model}) == {"m.running_mean", "m.running_var", "m.num_batches_tracked"}


def test_buffers_may_change_before_the_fence(make: Make, path: Path) -> None:
    model = nn.BatchNorm1d(100_000)
    ckpt = make()
    snapshot = ckpt.save(1, {"m": model})
    model(torch.randn(4, 100_000))
    assert snapshot is not None
    snapshot.wait(timeout=60)
    assert sw.load(path)["m"]["running_mean"].abs().sum() == 0
    assert snapshot.stats.at_once_bytes >= 800_000


def tear(ckpt: sw.Checkpointer, change: Callable[[torch.Tensor], Any]) -> sw.Snapshot:
    """Change a large tensor right after save(), before any fence; often enough that one copy is caught."""
    for step in range(1, 200):
        tensor = torch.zeros(8 * MIB)
        snapshot = ckpt.save(step, {"w": tensor})
        change(tensor)
        assert snapshot is not None
        try:
            snapshot.wait(timeout=60)
        except sw.TornError:
            return snapshot
    raise AssertionError("no change was noticed")


def test_change_before_the_fence_is_noticed_by_version(make: Make, path: Path) -> None:
    ckpt = make(pool="2MiB")
    snapshot = tear(ckpt, lambda t: t[:10].add_(1))
    assert isinstance(snapshot.error, sw.TornError)
    assert "'w'" in str(snapshot.error)
    assert "fence" in str(snapshot.error)
    assert snapshot.step not in ckpt.steps()


def test_change_behind_the_back_of_autograd_is_noticed_by_samples(make: Make) -> None:
    snapshot = tear(make(pool="2MiB"), lambda t: t.data.fill_(1))
    assert "'w'" in str(snapshot.error)


def test_torn_tensor_is_captured_at_once_from_then_on(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = make(pool="2MiB")
    tensor = torch.zeros(4 * MIB)
    torn = False
    for step in range(1, 100):
        snapshot = ckpt.save(step, {"w": tensor})
        tensor.add_(1)
        assert snapshot is not None
        try:
            snapshot.wait(timeout=60)
        except sw.TornError:
            assert not torn, "torn a second time"
            torn = True
            assert ckpt.save(step + 100, {"w": tensor}).stats.at_once_bytes == 16 * MIB
            tensor.add_(1)
            break
    assert torn
    with pytest.raises(sw.TornError):
        ckpt.wait()  # the error is reported once...
    ckpt.wait()  # ...and the snapshot after it was committed
    assert ckpt.latest_step() == step + 100
    assert "captured inside save() from now on" in caplog.text


def test_large_buffer_changed_before_the_fence_is_torn_once_and_then_saved_right(make: Make, path: Path) -> None:
    module = nn.Module()
    module.register_buffer("large", torch.zeros(20 * MIB))  # more than the room for early copies
    module.register_buffer("count", torch.zeros(1))
    ckpt = make(pool="2MiB")
    snapshot = ckpt.save(1, {"m": module})
    assert snapshot is not None
    assert snapshot.stats.at_once_bytes == 4
    module.large[12_345] += 1
    module.count += 1
    with pytest.raises(sw.TornError, match=r"'m\.large'"):
        snapshot.wait(timeout=60)
    again = ckpt.save(2, {"m": module})
    assert again is not None
    module.large[12_345] += 1
    again.wait(timeout=60)
    assert sw.load(path, 2)["m"]["large"][12_345] == 1


def test_volatile_tensors_beyond_the_room_for_early_copies_have_their_versions_compared() -> None:
    module = nn.Module()
    for index in range(4):
        module.register_buffer(f"b{index}", torch.empty(6 * MIB))
    module.register_buffer("small", torch.empty(1))
    capturer = Capturer(False)
    assert capturer.capture({"m": module}).names == ["m.b2", "m.b3"]
    capturer.torn_names.add("m.b3")
    assert capturer.capture({"m": module}).names == ["m.b1", "m.b2"]


def test_what_the_engine_found_torn_is_known_to_the_next_capture(make: Make) -> None:
    ckpt = make(pool="2MiB")
    tear(ckpt, lambda t: t.data.fill_(1))
    ckpt.save(1000, {"w": torch.zeros(1)})
    assert ckpt._session._capturer.torn_names == {"w"}


def test_parameter_given_other_memory_after_save_keeps_the_old_bytes(make: Make, path: Path) -> None:
    parameter = nn.Parameter(torch.ones(1000, 1000))
    ckpt = make(pool="2MiB")
    snapshot = ckpt.save(1, {"p": parameter})
    parameter.data = torch.zeros(1000, 1000)
    gc.collect()
    assert snapshot is not None
    snapshot.wait(timeout=60)
    assert torch.equal(sw.load(path)["p"], torch.ones(1000, 1000))


def test_tensors_dropped_after_save_live_until_they_are_copied(make: Make, path: Path) -> None:
    ckpt = make(pool="2MiB")
    snapshot = ckpt.save(1, {"t": torch.full((3 * MIB,), 3.0), "a": np.full(1000, 4.0)})
    gc.collect()
    torch.full((3 * MIB,), 9.0)
    assert snapshot is not None
    snapshot.wait(timeout=60)
    loaded = sw.load(path)
    assert torch.equal(loaded["t"], torch.full((3 * MIB,), 3.0))
    assert (loaded["a"] == 4).all()


def test_sources_are_let_go_of_once_copied(make: Make) -> None:
    ckpt = make()
    array = np.zeros(100_000)
    reference = weakref.ref(array)
    ckpt.save(1, {"a": array})
    del array
    ckpt.wait()
    deadline = time.monotonic() + 60
    while reference() is not None and time.monotonic() < deadline:
        ckpt.steps()  # any call picks up what the engine has let go of
    assert reference() is None


def test_update_right_after_the_fence_is_no_disturbance(make: Make) -> None:
    ckpt = make()
    tensor = torch.zeros(2 * MIB)
    for step in range(1, 20):
        ckpt.save(step, {"w": tensor})
        ckpt.fence()
        tensor.add_(1)
    ckpt.wait()
    assert ckpt.latest_step() == 19


def test_inference_tensors_have_no_version(make: Make, path: Path) -> None:
    with torch.inference_mode():
        tensor = torch.ones(5000)
    with make() as ckpt:
        ckpt.save(1, {"t": tensor})
    assert torch.equal(sw.load(path)["t"], torch.ones(5000))


def test_structure_is_not_trusted_but_compared(make: Make, path: Path) -> None:
    ckpt = make(keep=0)
    state: dict[str, Any] = {"p": nn.Parameter(torch.ones(3, 4)), "n": 1}
    ckpt.save(1, state)
    ckpt.fence()
    state["p"].data = torch.zeros(5, dtype=torch.float64)  # same object, another shape and dtype
    ckpt.save(2, state)
    ckpt.fence()
    state["more"] = np.ones(2)
    ckpt.save(3, state)
    ckpt.close()
    assert sw.load(path, 1)["p"].shape == (3, 4)
    assert sw.load(path, 2)["p"].dtype is torch.float64
    assert list(sw.load(path, 3)) == ["p", "n", "more"]


def test_paranoid_mode_saves_the_same(make: Make, path: Path) -> None:
    tensor = torch.randn(500_000)
    with make(paranoid=True) as ckpt:
        ckpt.save(1, {"t": tensor})
    assert torch.equal(sw.load(path)["t"], tensor)
