"""Lazy capture is right only if nobody writes before the fence: what is captured at once, and what notices a writer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from slackwater.state.capture import Capturer
from slackwater.state.tree import Flattener
from support import Line, same, unsettled, wait_until
from torch import nn

Make = Callable[..., sw.Checkpointer]
MIB = 1 << 20


def at_once_names(ckpt: sw.Checkpointer, step: int, state: dict[str, Any]) -> set[str]:
    """Of the tensors that the engine copies inside save()."""
    capture = Capturer(False).capture(state)
    flat = Flattener()
    flat.flatten(state)
    assert len(capture.structure) == len(capture.addresses)
    snapshot = ckpt.save(step, state)
    assert snapshot is not None
    names = flat.torch_names + flat.array_names
    return {names[index] for index in snapshot._core.at_once_tensors()}


def test_what_is_captured_at_once(make: Make) -> None:
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
    assert at_once_names(make(), 1, state) == {
        "m.1.running_mean",
        "m.1.running_var",
        "m.1.num_batches_tracked",
        "o.param_groups.0.lr",
        "small",
        "a",
    }


def test_buffers_of_hooked_modules_are_known_too(make: Make) -> None:
    model = nn.BatchNorm1d(2000)
    model.register_state_dict_post_hook(lambda *_: None)
    assert at_once_names(make(), 1, {"m": model}) == {"m.running_mean", "m.running_var", "m.num_batches_tracked"}


def test_parameter_that_became_a_buffer_is_captured_at_once(make: Make) -> None:
    module = nn.Module()
    module.x = nn.Parameter(torch.zeros(5000))
    ckpt = make()
    assert at_once_names(ckpt, 1, {"m": module}) == set()
    del module.x
    module.register_buffer("x", torch.zeros(5000))
    assert at_once_names(ckpt, 2, {"m": module}) == {"m.x"}


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
    assert snapshot.error.tensor == "w"
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
    wait_until(lambda: "captured inside save() from now on" in caplog.text, "the line of the log")


def test_large_buffer_changed_before_the_fence_is_torn_once_and_then_saved_right(make: Make, path: Path) -> None:
    module = nn.Module()
    module.register_buffer("large", torch.zeros(20 * MIB))  # more than the room for early copies
    module.register_buffer("count", torch.zeros(1))
    ckpt = make(pool="2MiB")
    with unsettled():
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


def test_volatile_tensors_beyond_the_room_for_early_copies_have_their_versions_compared(make: Make) -> None:
    module = nn.Module()
    for index in range(4):
        module.register_buffer(f"b{index}", torch.zeros(6 * MIB))
    module.register_buffer("small", torch.empty(1))
    ckpt = make(pool="4MiB", keep=0)

    def compared_at(step: int, change: Callable[[], Any] = lambda: None) -> tuple[list[str], sw.Snapshot]:
        with unsettled():
            snapshot = ckpt.save(step, {"m": module})
            assert snapshot is not None and snapshot._capture is not None
            names = [snapshot._capture.names[index] for index in snapshot._late(snapshot._capture)]
            change()
        return names, snapshot

    names, snapshot = compared_at(1)
    assert names == ["m.b2", "m.b3"]
    snapshot.wait(timeout=60)
    module.weight = nn.Parameter(torch.zeros(6 * MIB))
    names, snapshot = compared_at(2, lambda: module.b3.add_(1))
    assert names == ["m.weight", "m.b2", "m.b3"]
    with pytest.raises(sw.TornError, match=r"'m\.b3'"):
        snapshot.wait(timeout=60)
    assert compared_at(3)[0] == ["m.weight"], "all buffers, and no parameter"


def test_what_the_engine_found_torn_is_known_to_the_next_capture(make: Make) -> None:
    ckpt = make(pool="2MiB")
    tear(ckpt, lambda t: t.data.fill_(1))
    assert at_once_names(ckpt, 1000, {"w": torch.zeros(5000), "x": torch.zeros(5000)}) == {"w"}


class Average:
    """Its tensors are updated one by one, as averages of weights are."""

    def __init__(self, count: int) -> None:
        self.shadow = {f"layer.{index}": torch.zeros(300_000) for index in range(count)}
        self.updates = 0

    def update(self) -> None:
        self.updates += 1
        for tensor in self.shadow.values():
            tensor.fill_(self.updates)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "updates": self.updates}


@pytest.mark.parametrize("as_object", [True, False], ids=["object", "plain dict"])
def test_one_torn_snapshot_teaches_the_whole_object(as_object: bool, make: Make, path: Path) -> None:
    """120 tensors that change right after save(): one step is lost, not one for each tensor."""
    average = Average(120)
    model = nn.Linear(1000, 1000)
    ckpt = make(pool="4MiB", keep=0)
    lost = []
    for step in range(1, 9):
        state = {"model": model, "ema": average if as_object else average.shadow, "step": step}
        before = average.updates
        with unsettled():
            snapshot = ckpt.save(step, state)
            average.update()
        assert snapshot is not None
        try:
            snapshot.wait(timeout=60)
        except sw.TornError:
            lost.append(step)
            continue
        loaded = sw.load(path, step)["ema"]
        shadow = loaded["shadow"] if as_object else loaded
        assert all((tensor == before).all() for tensor in shadow.values()), "the bytes of the moment of save()"
    assert lost == [1]
    with unsettled():
        last = ckpt.save(9, {"model": model, "ema": average if as_object else average.shadow})
        assert last is not None and last._capture is not None
        late = [last._capture.names[index] for index in last._late(last._capture)]
    assert late == ["model.weight", "model.bias"], "what was never torn is still captured later"


def test_one_torn_tensor_teaches_its_whole_object(make: Make) -> None:
    """The next step is not lost because another tensor of the same object changes."""
    average = Average(4)
    ckpt = make(pool="4MiB", keep=0)
    first, second = list(average.shadow.values())[:2]
    with unsettled():
        torn = ckpt.save(1, {"ema": average, "step": 1})
        first.fill_(1)
    assert torn is not None
    with pytest.raises(sw.TornError):
        torn.wait(timeout=60)
    with unsettled():
        snapshot = ckpt.save(2, {"ema": average, "step": 2})
        second.fill_(2)
    assert snapshot is not None
    snapshot.wait(timeout=60)


def test_error_of_a_torn_snapshot_counts_the_tensors(make: Make) -> None:
    tensors = {f"t{index}": torch.zeros(300_000) for index in range(20)}
    ckpt = make(pool="2MiB")
    with unsettled():
        snapshot = ckpt.save(1, {"all": tensors})
        for tensor in tensors.values():
            tensor.add_(1)
    assert snapshot is not None
    with pytest.raises(sw.TornError, match=r"'all\.t\d+' and \d+ more were written to between save\(\) and the fence"):
        snapshot.wait(timeout=60)


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
    # Any call picks up what the engine has let go of.
    wait_until(lambda: ckpt.steps() and reference() is None, "the array is let go of")


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


def saved_in_turn(ckpt: sw.Checkpointer, *values: Any) -> None:
    """One after the other under the same name: what is kept from save to save must not stand for the next."""
    for step, value in enumerate(values, 1):
        ckpt.save(step, {"x": value, "other": torch.zeros(7)})
        ckpt.fence()
    ckpt.close()


LAYOUTS: dict[str, list[Any]] = {
    "shape": [torch.arange(6000), torch.arange(3000)],
    "shape-of-equal-size": [torch.arange(6000).reshape(60, 100), torch.arange(6000).reshape(100, 60)],
    "dtype": [torch.arange(6000, dtype=torch.int32), torch.arange(6000, dtype=torch.int32).view(torch.float32)],
    "strides": [torch.arange(3600).reshape(60, 60), torch.arange(3600).reshape(60, 60).t()],
    "strides-of-an-array": [np.arange(3600).reshape(60, 60), np.arange(3600).reshape(60, 60).T],
    "dtype-of-an-array": [np.arange(6000, dtype="int32"), np.arange(6000, dtype="uint32")],
    "tensor-or-array": [torch.arange(6000), np.arange(6000), torch.arange(6000)],
}


@pytest.mark.parametrize("values", LAYOUTS.values(), ids=LAYOUTS)
def test_tensor_of_another_layout_under_the_same_name(values: list[Any], make: Make, path: Path) -> None:
    saved_in_turn(make(keep=0), *values)
    for step, value in enumerate(values, 1):
        found = sw.load(path, step)["x"]
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert np.array_equal(np.asarray(found), np.asarray(value), equal_nan=found.dtype == torch.float32)


KEYS: dict[str, list[dict[Any, Any]]] = {
    "1-and-True": [{1: 0, 2: 0}, {True: 0, 2: 0}, {1: 0, 2: 0}],
    "True-and-1": [{True: 0}, {1: 0}, {True: 0}],
    "0-and-False": [{0: 0}, {False: 0}, {0: 0}],
    "1-and-1.0": [{1: 0}, {1.0: 0}, {1: 0}],
    "1-and-text": [{1: 0}, {"1": 0}, {1: 0}],
    "order": [{"a": 0, "b": 1}, {"b": 1, "a": 0}],
    "renamed": [{"a": 0, "b": 1}, {"a": 0, "c": 1}],
    "inner-1-and-True": [{"p": {1: 0}}, {"p": {True: 0}}, {"p": {1: 0}}],
    "inner-renamed": [{"p": {"a": 0}, "q": {"b": 1}}, {"p": {"b": 0}, "q": {"a": 1}}],
    "inner-moved": [{"p": {"a": 0, "b": 1}, "q": {}}, {"p": {"a": 0}, "q": {"b": 1}}],
}


@pytest.mark.parametrize("shapes", KEYS.values(), ids=KEYS)
def test_keys_of_another_type_or_order_under_the_same_name(shapes: list[Any], make: Make, path: Path) -> None:
    """A dict of tensors is encoded once and then recognised by its keys. Equal keys need not be identical."""

    def filled(shape: Any, step: int) -> Any:
        if isinstance(shape, dict):
            return {key: filled(value, step) for key, value in shape.items()}
        return torch.full((5,), 10.0 * step + shape)

    values = [filled(shape, step) for step, shape in enumerate(shapes)]
    saved_in_turn(make(keep=0), *values)
    for step, value in enumerate(values, 1):
        assert same(sw.load(path, step)["x"], value)
        assert repr(list(sw.load(path, step)["x"])) == repr(list(value))


def test_field_of_a_structured_array(make: Make, path: Path) -> None:
    """Its strides are no whole numbers of elements: it cannot be read where it lies."""
    table = np.zeros(5000, dtype=[("flag", "u1"), ("value", "<f4"), ("wide", "<f8"), ("pair", "<i4", (2,))])
    table["value"], table["wide"] = np.arange(5000), -np.arange(5000)
    table["pair"] = np.arange(10_000).reshape(5000, 2)
    fields = {name: table[name] for name in ("value", "wide", "pair")}
    with make() as ckpt:
        ckpt.save(1, {**fields, "aligned": table["value"][::4]})
    loaded = sw.load(path)
    for name, field in fields.items():
        assert np.array_equal(loaded[name], field), name
    assert np.array_equal(loaded["aligned"], table["value"][::4])
    target = np.zeros_like(table)
    make().restore({**{name: target[name] for name in fields}, "aligned": np.zeros(1250, "float32")})
    for name, field in fields.items():
        assert np.array_equal(target[name], field), name
    assert not target["flag"].any()


@pytest.mark.parametrize(
    "array", [np.ma.masked_array(np.arange(3.0), [0, 1, 0]), np.arange(3.0).view(np.recarray)], ids=["masked", "record"]
)
def test_subclass_of_an_array_is_refused(array: Any, make: Make) -> None:
    """What it is beyond its bytes, such as a mask, would be lost."""
    with pytest.raises(sw.UnsupportedError, match="'x' is a numpy"):
        make().save(1, {"x": array})


def test_copy_of_an_array_is_held_until_it_is_read(make: Make, path: Path) -> None:
    """Reversed arrays are copied, and nobody else holds the copy while a large snapshot is in front of it."""
    ckpt = make(pool="2MiB", keep=0)
    blocker = np.zeros(24 << 20, dtype=np.uint8)
    source = np.arange(400_000.0)
    ckpt.save(1, {"b": blocker})
    ckpt.save(2, {"x": source[::-1]})
    gc.collect()
    disturbing = [np.full(400_000, 7.0) for _ in range(8)]  # lands in whatever was let go of
    ckpt.close()
    assert np.array_equal(sw.load(path, 2)["x"], source[::-1])
    assert len(disturbing) == 8


def test_what_stands_behind_an_optimizer_is_volatile_as_before(make: Make) -> None:
    model = nn.Linear(4, 4)
    optim = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    model(torch.ones(1, 4)).sum().backward()
    optim.step()
    optim.param_groups[0]["schedule"] = torch.zeros(5000)
    state = {"a": torch.zeros(3), "optim": optim, "z": torch.zeros(3), "d": {"x": torch.zeros(3)}}
    assert at_once_names(make(), 1, state) == {
        "a",
        "z",
        "d.x",
        # A scheduler changes these with no optimizer step in between, however large they are.
        "optim.param_groups.0.lr",
        "optim.param_groups.0.schedule",
    }


def test_torn_array_is_captured_at_once_from_then_on(make: Make, path: Path) -> None:
    line = Line(make(pool="2MiB", keep=0))
    array = np.zeros(500_000)

    def change() -> None:
        array[:] += 1  # no fence

    assert "'x'" in str(line.torn({"x": array}, change))
    before = array.copy()
    at_once = line.save_and_change({"x": array}, change)
    at_once.wait()
    assert (sw.load(path, at_once.step)["x"] == before).all()
    assert (array == before + 1).all()


def test_torn_tensor_is_named_and_no_other(make: Make) -> None:
    """It alone is captured at once from then on: another name would leave it torn at every save."""
    ckpt = make(pool="2MiB", keep=0)
    tensors = {name: torch.zeros(500_000) for name in ("first", "second", "third")}
    with unsettled():
        torn = ckpt.save(2, dict(tensors))
        tensors["second"][12_345] = 1  # no fence; a place that the engine hardly looks at, but its version tells
    assert torn is not None
    with pytest.raises(sw.TornError, match="'second'"):
        torn.wait()
