"""Parameters that a framework fills during the next forward pass: said once, with what to do about it.

The classes here stand for those of Megatron-LM and Apex, with the attributes that these publish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater.integrations import param_gathers
from slackwater.integrations.param_gathers import pending_gather

Make = Callable[..., sw.Checkpointer]


class MegatronConfig:
    def __init__(self, **options: bool) -> None:
        self.use_distributed_optimizer = True
        self.overlap_param_gather = True
        self.__dict__.update(options)


class MegatronDdp(torch.nn.Module):
    """Its forward hooks are on every module that it wraps."""

    def __init__(self, config: MegatronConfig) -> None:
        super().__init__()
        self.module = torch.nn.Linear(3, 3)
        self.ddp_config = config
        self.remove_forward_pre_hook_handles: dict[Any, Any] = {}
        self.enable_forward_pre_hook()

    def enable_forward_pre_hook(self) -> None:
        def hook(module: Any, *unused: Any) -> None: ...

        hook.__module__ = "megatron.core.distributed.distributed_data_parallel"
        for module in self.module.modules():
            self.remove_forward_pre_hook_handles[module] = module.register_forward_pre_hook(hook)

    def disable_forward_pre_hook(self) -> None:
        for handle in self.remove_forward_pre_hook_handles.values():
            handle.remove()
        self.remove_forward_pre_hook_handles.clear()


class MegatronOptimizer:
    """Not one of torch: it has one."""

    def __init__(self, *chunks: MegatronDdp) -> None:
        self.model_chunks = list(chunks)
        self.ddp_config = chunks[0].ddp_config

    def state_dict(self) -> dict[str, Any]:
        return {"step": 1}


class Chained:
    def __init__(self, *optimizers: MegatronOptimizer) -> None:
        self.chained_optimizers = list(optimizers)


class ApexAdam(torch.optim.Adam):
    def __init__(self, params: Any, overlap_param_sync: bool = True) -> None:
        super().__init__(params)
        self.overlap_param_sync = overlap_param_sync
        self._params_buckets: dict[int, Any] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self._params_buckets[0] = object()

    def param_sync(self) -> None:
        self._params_buckets.clear()


def test_megatron_is_known_by_its_model_its_optimizer_and_what_its_model_wraps() -> None:
    model = MegatronDdp(MegatronConfig())
    optimizer = MegatronOptimizer(model)
    everything = (model, model.module, optimizer, Chained(optimizer))
    assert [pending_gather(value) for value in everything] == [param_gathers._MEGATRON] * 4
    model.disable_forward_pre_hook()  # which also completes the parameters
    assert [pending_gather(value) for value in everything] == [None] * 4
    model.enable_forward_pre_hook()
    assert pending_gather(optimizer) is not None


@pytest.mark.parametrize(
    "options", [{"overlap_param_gather": False}, {"use_distributed_optimizer": False}, {"use_megatron_fsdp": True}]
)
def test_megatron_without_an_overlap_is_left_alone(options: dict[str, bool]) -> None:
    model = MegatronDdp(MegatronConfig(**options))
    model.disable_forward_pre_hook()
    model.remove_forward_pre_hook_handles[model] = None
    assert pending_gather(model) is None


def test_apex_is_known_while_parameters_are_missing() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = ApexAdam([parameter])
    assert pending_gather(optimizer) is None
    optimizer.step()
    assert pending_gather(optimizer) == param_gathers._APEX
    optimizer.param_sync()
    assert pending_gather(optimizer) is None
    without = ApexAdam([parameter], overlap_param_sync=False)
    without.step()
    assert pending_gather(without) is None


class AnswersEverything:
    def __getattr__(self, name: str) -> Any:
        return AnswersEverything()


class Refuses:
    @property
    def ddp_config(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize("value", [1, "x", None, torch.ones(2), AnswersEverything(), Refuses(), torch.nn.Linear(2, 2)])
def test_other_objects_are_left_alone(value: Any) -> None:
    assert pending_gather(value) is None


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "during the next forward pass" in record.getMessage()]


@pytest.mark.parametrize("inside", ["bare", "list", "dict", "replicated"])
def test_save_says_once_what_to_do(make: Make, caplog: pytest.LogCaptureFixture, inside: str) -> None:
    model = MegatronDdp(MegatronConfig())
    entry: Any = {"list": [model], "dict": {"a": model}, "replicated": sw.Replicated(model)}.get(inside, model)
    ckpt = make()
    for step in (1, 2, 3):
        ckpt.save(step, {"model": entry, "iteration": step})
    ckpt.wait()
    (warning,) = warnings_of(caplog)
    assert "'model' gathers its parameters" in warning
    assert "call disable_forward_pre_hook() of each model chunk before save()" in warning


def test_save_says_nothing_where_the_remedy_is_followed(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    model = MegatronDdp(MegatronConfig())
    optimizer = ApexAdam(model.parameters())
    ckpt = make()
    for step in (1, 2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        model.disable_forward_pre_hook()
        optimizer.param_sync()
        ckpt.save(step, {"model": model, "optim": optimizer})
        model.enable_forward_pre_hook()
    ckpt.wait()
    assert warnings_of(caplog) == []


def test_optimizer_of_apex_is_found_inside_the_state(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = ApexAdam([parameter])
    optimizer.step()
    ckpt = make()
    ckpt.save(1, {"training": {"deep": {"optim": optimizer}}, "p": parameter})
    ckpt.wait()
    (warning,) = warnings_of(caplog)
    assert "'optimizer' gathers its parameters" in warning
    assert "call its param_sync() before save()" in warning


class ApexOfAClass:
    overlap_param_sync = True

    def param_sync(self) -> None: ...


class Delegating:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("value", [ApexOfAClass(), Delegating(ApexOfAClass())], ids=["class", "__getattr__"])
def test_attributes_outside_the_object_itself_count(value: Any) -> None:
    assert pending_gather(value) == param_gathers._APEX
