"""Who calls the fence: the table of docs/python.md, one test a row."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater.in_flight import InFlight
from slackwater.session import Session
from support import unsettled
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

Make = Callable[..., sw.Checkpointer]


@pytest.fixture
def fences(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """One entry for each fence that came by itself: whether the compiler was tracing it."""
    calls: list[bool] = []
    original = Session.fence_quietly

    def count(self: Session) -> None:
        calls.append(torch.compiler.is_compiling())
        original(self)

    monkeypatch.setattr(Session, "fence_quietly", count)
    yield calls


def train_once(model: nn.Module) -> None:
    model(torch.ones(4, 8)).square().sum().backward()


def check_step(ckpt: sw.Checkpointer, model: nn.Module, update: Callable[[], Any], path: Path, **more: Any) -> None:
    """Save, update at once, and see that the checkpoint has what was there before the update."""
    train_once(model)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    snapshot = ckpt.save(1, {"m": model, **more})
    assert snapshot is not None
    update()
    assert any(not torch.equal(t, before[name]) for name, t in model.state_dict().items())
    snapshot.wait(timeout=60)
    loaded = sw.load(path)["m"]
    assert all(torch.equal(loaded[name], t) for name, t in before.items())


@pytest.mark.parametrize(
    "options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["for-loop", "foreach", "fused"]
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_of_torch_fence_by_themselves(
    kind: Any, options: dict[str, bool], make: Make, path: Path, fences: list[bool]
) -> None:
    model = nn.Linear(8, 8)
    optim = kind(model.parameters(), lr=0.1, **options)
    check_step(make(), model, optim.step, path)
    assert fences == [False]


def test_compiled_step_fences_outside_the_graph(make: Make, path: Path, fences: list[bool]) -> None:
    model = nn.Linear(8, 8)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    ckpt = make()
    train_once(model)
    ckpt.save(0, {"m": model})
    step = torch.compile(optim.step, backend="eager")
    step()
    fences.clear()
    check_step(ckpt, model, step, path)
    assert fences == [False]


def test_optimizer_in_backward_fences(make: Make, path: Path, fences: list[bool]) -> None:
    model = nn.Linear(8, 8)
    optims = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optims[p].step())
    ckpt = make()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    snapshot = ckpt.save(1, {"m": model})
    train_once(model)
    assert len(fences) == 2
    assert snapshot is not None
    snapshot.wait(timeout=60)
    assert all(torch.equal(t, before[name]) for name, t in sw.load(path)["m"].items())


def test_wrapper_that_skips_the_constructor_fences_by_its_inner_optimizer(
    make: Make, path: Path, fences: list[bool]
) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        def step(self) -> None:  # type: ignore[override]
            self.inner.step()

    model = nn.Linear(8, 8)
    check_step(make(), model, Wrapper(torch.optim.SGD(model.parameters(), lr=0.1)).step, path)
    assert fences


class OwnUpdate:
    """Updates parameters without any torch optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.sub_(0.1 * parameter.grad)


def test_own_update_needs_fence_on(make: Make, path: Path, fences: list[bool]) -> None:
    model = nn.Linear(8, 8)
    own = OwnUpdate(model)
    ckpt = make()
    ckpt.fence_on(own, "step")
    check_step(ckpt, model, lambda: own.step(), path)
    assert fences == [False]


def test_own_update_with_an_explicit_fence(make: Make, path: Path) -> None:
    model = nn.Linear(8, 8)
    ckpt = make()

    def update() -> None:
        ckpt.fence()
        OwnUpdate(model).step()

    check_step(ckpt, model, update, path)


def test_first_step_of_sam_needs_fence_on(make: Make, path: Path, fences: list[bool]) -> None:
    class Sam(torch.optim.SGD):
        @torch.no_grad()
        def first_step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=0.05)

    model = nn.Linear(8, 8)
    sam = Sam(model.parameters(), lr=0.1)
    ckpt = make()
    ckpt.fence_on(sam, "first_step")
    check_step(ckpt, model, lambda: sam.first_step(), path)
    assert fences == [False]


def test_eval_of_schedule_free_fences_by_itself(make: Make, path: Path, fences: list[bool]) -> None:
    class ScheduleFree(torch.optim.SGD):
        @torch.no_grad()
        def eval(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.lerp_(torch.zeros_like(parameter), 0.5)

    model = nn.Linear(8, 8)
    optim = ScheduleFree(model.parameters(), lr=0.1)
    ckpt = make()
    check_step(ckpt, model, lambda: optim.eval(), path, optim=optim)
    assert fences == [False]
    ckpt.close()
    assert "eval" not in vars(optim)


def test_swap_of_averaged_weights_needs_fence_on(make: Make, path: Path, fences: list[bool]) -> None:
    class Ema:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.shadow = model, [torch.zeros_like(p) for p in model.parameters()]

        @torch.no_grad()
        def swap(self) -> None:
            for parameter, shadow in zip(self.model.parameters(), self.shadow, strict=True):
                parameter.data, shadow.data = shadow.data, parameter.data.clone()

    model = nn.Linear(8, 8)
    ema = Ema(model)
    ckpt = make()
    ckpt.fence_on(ema, "swap")
    check_step(ckpt, model, lambda: ema.swap(), path)
    assert fences == [False]


def test_fence_on_keeps_arguments_results_and_is_undone_by_close(make: Make) -> None:
    class Thing:
        def method(self, a: int, *, b: int = 0) -> int:
            """Adds."""
            return a + b

    thing = Thing()
    ckpt = make()
    ckpt.fence_on(thing, "method")
    ckpt.fence_on(thing, "method")
    assert thing.method(1, b=2) == 3
    assert thing.method.__doc__ == "Adds."
    ckpt.close()
    assert "method" not in vars(thing)


def test_fence_on_of_an_absent_method_is_refused(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="no method 'jump'"):
        make().fence_on(object(), "jump")


def test_fence_on_of_what_cannot_be_wrapped_is_refused(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="cannot be replaced; call fence"):
        make().fence_on([], "append")


def test_hook_is_removed_by_close(make: Make) -> None:
    before = len(_global_optimizer_pre_hooks)
    ckpt = make()
    assert len(_global_optimizer_pre_hooks) == before + 1
    ckpt.save(1, {"m": nn.Linear(2, 2)})
    assert len(_global_optimizer_pre_hooks) == before + 1
    ckpt.close()
    assert len(_global_optimizer_pre_hooks) == before


def test_dropped_checkpointer_commits_and_goes_away(path: Path) -> None:
    ckpt = sw.Checkpointer(path, pool="4MiB", slab="1MiB")
    session = weakref.ref(ckpt._session)
    ckpt.save(1, {"m": nn.Linear(2, 2)})
    del ckpt
    gc.collect()
    assert session() is None
    assert sw.open(path).step == 1
    with sw.Checkpointer(path, pool="4MiB", slab="1MiB") as again:  # its lock is free
        assert again.latest_step() == 1


def test_hook_never_raises(make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(8, 8)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    ckpt = make()
    train_once(model)
    ckpt.save(1, {"m": model})
    ckpt._session._in_flight._unsettled[object()] = None  # type: ignore[index]
    with monkeypatch.context() as patch:
        patch.setattr(InFlight, "settle_all", lambda self: None)
        optim.step()
    ckpt._session._in_flight._unsettled.clear()
    assert "the fence failed" in caplog.text


def test_many_threads_may_fence(make: Make) -> None:
    ckpt = make()
    tensor = torch.randn(1_000_000)
    for step in range(1, 6):
        snapshot = ckpt.save(step, {"t": tensor})
        threads = [threading.Thread(target=ckpt.fence) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tensor.add_(1)
        assert snapshot is not None
        snapshot.wait(timeout=60)


def test_stall_is_measured(make: Make) -> None:
    ckpt = make(pool="2MiB")
    with unsettled():  # nobody else comes before this fence
        snapshot = ckpt.save(1, {"t": torch.randn(4_000_000)})
        assert snapshot is not None
        began = time.perf_counter()
        snapshot.fence()
        took = time.perf_counter() - began
    assert 0 < snapshot.stats.fence_seconds <= took


def test_every_row_of_the_table_in_the_guide_has_its_test() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    named = set(re.findall(r"`(test_\w+)` \|$", guide, re.MULTILINE))
    assert len(named) >= 9
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert named <= set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))


class Counted:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def method(self) -> None:
        self.calls.append("original")

    def second(self) -> None:
        self.calls.append("second")


def test_close_leaves_a_wrapper_that_came_after_fence_on(make: Make) -> None:
    thing = Counted()
    ckpt = make()
    ckpt.fence_on(thing, "method")
    fenced = thing.method

    def mine() -> None:
        thing.calls.append("mine")
        fenced()

    thing.method = mine  # type: ignore[method-assign]
    ckpt.close()
    thing.method()
    assert thing.calls == ["mine", "original"]


def test_close_gives_an_object_its_own_method_back(make: Make) -> None:
    thing = Counted()

    def own() -> None:
        thing.calls.append("own")

    thing.method = own  # type: ignore[method-assign]
    ckpt = make()
    ckpt.fence_on(thing, "method")
    assert thing.method is not own
    ckpt.close()
    assert thing.method is own
    thing.method()
    assert thing.calls == ["own"]


def test_fence_on_several_methods_of_one_object_and_of_equal_objects(make: Make, fences: list[bool]) -> None:
    first, other = Counted(), Counted()
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})
    for thing, method in ((first, "method"), (first, "second"), (other, "method")):
        ckpt.fence_on(thing, method)
    first.method()
    first.second()
    other.method()
    assert len(fences) == 3
    ckpt.close()
    assert not {"method", "second"} & (vars(first).keys() | vars(other).keys())
