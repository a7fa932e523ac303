"""What is kept from save to save: a capture that uses it equals one that knows nothing, whatever has changed between.

The engine's Structure hides what it is made of, so the lists it is made from are compared.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import slackwater as sw
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from slackwater import _core
from slackwater.integrations import torch_reading, torch_state
from slackwater.state.capture import Capture, Capturer
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

State = dict[str, Any]
Change = Callable[[State], object]


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def plain_state() -> State:
    model = small_model()
    return {
        "model": model,
        "optim": stepped(model),
        "table": {"a": torch.ones(3), "b": torch.ones(2, 3)},
        "rows": {0: {"a": torch.ones(3)}, 1: {"a": torch.ones(4)}},
        "step": 1,
    }


def dtensor_state(mesh: DeviceMesh) -> State:
    model = nn.Linear(4, 4)
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
    table = {name: distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]) for name in "ab"}
    plain = {"plain": torch.ones(2), "scalar": torch.tensor(1.0)}
    return {"model": model, "optim": stepped(model), "table": {**table, **plain}, "step": 1}


class Given(list[Any]):
    """The arguments that the last Structure of a capturer was made from."""


def watch(capturer: Capturer, monkeypatch: pytest.MonkeyPatch) -> Given:
    made = Given()
    build = capturer._build

    def note(*arguments: Any) -> _core.Structure:
        flat, *lists = arguments
        shards = {**flat.torch_shards}
        made[:] = copy.copy([flat.torch_names, flat.torch_updates, flat.objects, *lists, flat.array_names, shards])
        return build(*arguments)

    monkeypatch.setattr(capturer, "_build", note, raising=True)
    return made


def is_negated(model: nn.Module) -> bool:
    return any(not isinstance(p, DTensor) and p.is_neg() for p in model.parameters())


def parts(capture: Capture) -> tuple[Any, ...]:
    return (
        [t.tolist() for t in capture.watched],
        capture.tree,
        capture.values,
        capture.replicated,
        capture.names,
        capture.watched_facts()[1],
        capture.devices,
        [(t.shape, t.stride(), t.dtype) for t in capture.watched],
        len(capture.held),
    )


def all_addresses(capture: Capture) -> list[int]:
    read = [] if capture.reading is None else capture.reading.addresses
    return [*read, *capture.addresses]


def check(capturer: Capturer, known: Given, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Capturer(False)
    expected = watch(fresh, monkeypatch)
    try:
        other = fresh.capture(state)
    except (sw.UsageError, sw.UnsupportedError, TypeError, KeyError) as error:
        with pytest.raises(type(error)) as raised:
            capturer.capture(state)
        assert str(raised.value) == str(error)
        return
    one = capturer.capture(state)
    assert parts(one) == parts(other)
    if not is_negated(state["model"]):  # such a view is worked out elsewhere
        assert all_addresses(one) == all_addresses(other)
    assert known == expected


def set_parameter_data(state: State, value: torch.Tensor) -> None:
    state["model"][0].weight.data = value


def turn_volatile(state: State) -> None:
    """A parameter becomes a buffer under the same name."""
    layer = state["model"][0]
    bias = layer.bias
    del layer.bias
    layer.register_buffer("bias", bias.detach())


def numbered(state: State) -> dict[Any, Any]:
    found: dict[Any, Any] = state["optim"].state
    return found


def reorder_optimizer_state(state: State) -> None:
    entries = numbered(state)
    first = next(iter(entries))
    entries[first] = entries.pop(first)


def replace_in_optimizer(state: State) -> None:
    """A parameter that no module has, of the same shape, with the state of the one before it."""
    parameters = state["optim"].param_groups[0]["params"]
    old, parameters[0] = parameters[0], nn.Parameter(torch.full_like(parameters[0], 3.0))
    state["optim"].state = collections.defaultdict(
        dict, {(parameters[0] if key is old else key): value for key, value in numbered(state).items()}
    )


def drop_bias(module: nn.Module, entries: dict[str, Any], prefix: str, _: Any) -> None:
    entries.pop(f"{prefix}bias", None)


def exchange_layers(state: State) -> None:
    layers = state["model"]._modules
    layers["0"], layers["2"] = layers["2"], layers["0"]


def replace_parameters(state: State) -> None:
    """Others of the same shapes under the same names."""
    for layer in state["model"]:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(torch.full_like(parameter, 9.0)))


class Counting(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


PLAIN: dict[str, Change] = {
    "nothing": lambda s: None,
    "plain value": lambda s: s.update(step=s["step"] + 1),
    "plain value becomes a tensor": lambda s: s.update(step=torch.tensor(5)),
    "learning rate": lambda s: s["optim"].param_groups[0].update(lr=0.25),
    "learning rate becomes a tensor": lambda s: s["optim"].param_groups[0].update(lr=torch.tensor(0.5)),
    "write in place": lambda s: s["table"]["a"].add_(1),
    "shape": lambda s: s["table"].update(a=torch.ones(5)),
    "dtype": lambda s: s["table"].update(a=torch.ones(3, dtype=torch.float64)),
    "strides": lambda s: s["table"].update(b=torch.ones(3, 2).T),
    "other tensor object": lambda s: s["table"].update(a=torch.zeros(3)),
    "new key": lambda s: s["table"].update(c=torch.zeros(3)),
    "removed key": lambda s: s["table"].pop("a"),
    "order of keys": lambda s: s["table"].update(a=s["table"].pop("a")),
    "tensor becomes plain": lambda s: s["table"].update(a=3),
    "key of another type": lambda s: s["rows"].update({True: s["rows"].pop(1)}) if 1 in s["rows"] else None,
    "key in a row": lambda s: s["rows"][0].update(z=torch.ones(1)),
    "row becomes a tensor": lambda s: s["rows"].update({0: torch.ones(2)}),
    "other storage": lambda s: set_parameter_data(s, torch.full((4, 3), 2.0)),
    "other storage and strides": lambda s: set_parameter_data(s, torch.ones(3, 4).T),
    "other storage and dtype": lambda s: set_parameter_data(s, torch.ones(4, 3, dtype=torch.bfloat16)),
    "negated view": lambda s: set_parameter_data(s, torch._neg_view(torch.ones(4, 3))),
    "aliasing begins": lambda s: s["table"].update(a=s["rows"][1]["a"][:3]),
    "aliasing ends": lambda s: s["table"].update(a=s["table"]["a"].clone()),
    "parameter becomes a buffer": turn_volatile,
    "parameter frozen": lambda s: s["model"][0].bias.requires_grad_(False),
    "buffer not persistent": lambda s: s["model"][1]._non_persistent_buffers_set.add("running_var"),
    "new layer": lambda s: s["model"].append(nn.Linear(2, 2)),
    "hook": lambda s: s["model"].register_state_dict_pre_hook(lambda *a: None),
    "hook of a layer": lambda s: s["model"][2].register_state_dict_pre_hook(lambda m, *a: m.weight.data.fill_(5)),
    "later hook of a layer": lambda s: s["model"][2].register_state_dict_post_hook(drop_bias),
    "load hook": lambda s: s["model"][2].register_load_state_dict_post_hook(lambda *a: None),
    "state_dict of a layer": lambda s: setattr(s["model"][0], "state_dict", lambda *a, **k: k["destination"]),
    "layer of another class": lambda s: setattr(s["model"][2], "__class__", Counting),
    "layers in each other's place": exchange_layers,
    "layer twice": lambda s: s["model"]._modules.update({"2": s["model"][0]}),
    "no layer": lambda s: s["model"]._modules.update({"2": None}),
    "order of layers": lambda s: s["model"]._modules.update({"0": s["model"]._modules.pop("0")}),
    "no parameter": lambda s: setattr(s["model"][2], "bias", None),
    "new buffer": lambda s: s["model"][1].register_buffer("more", torch.ones(2)),
    "no buffer": lambda s: setattr(s["model"][1], "running_mean", None),
    "other parameters": replace_parameters,
    "parameters of the optimizer in another order": lambda s: s["optim"].param_groups[0]["params"].reverse(),
    "parameters of the optimizer no list": lambda s: s["optim"].param_groups[0].update(
        params=tuple(s["optim"].param_groups[0]["params"])
    ),
    "parameter of the optimizer twice": lambda s: s["optim"].param_groups[0]["params"].append(
        s["optim"].param_groups[0]["params"][0]
    ),
    "another parameter in the optimizer": replace_in_optimizer,
    "new parameter group": lambda s: s["optim"].add_param_group({"params": [nn.Parameter(torch.ones(2))]}),
    "new value of a group": lambda s: s["optim"].param_groups[0].update({"a.b": 1}),
    "order of the optimizer's state": reorder_optimizer_state,
    "class of the optimizer's state": lambda s: setattr(
        s["optim"], "state", collections.OrderedDict(reversed(numbered(s).items()))
    ),
    "row of the optimizer's state": lambda s: next(iter(numbered(s).values())).pop("exp_avg"),
    "moment of another shape": lambda s: next(iter(numbered(s).values())).update(exp_avg=torch.ones(7)),
    "plain value in the optimizer's state": lambda s: next(iter(numbered(s).values())).update(step=3),
    "text as a key of the optimizer's state": lambda s: numbered(s).update(note={"a": torch.ones(2)}),
    "hook of the optimizer": lambda s: s["optim"].register_state_dict_post_hook(lambda o, d: {**d, "more": 1}),
    "optimizer state": lambda s: s["optim"].state.clear(),
    "new entry": lambda s: s.update(more=torch.ones(2)),
    "replicated": lambda s: s.update(table=sw.Replicated(s["table"])),
}  # fmt: skip


@pytest.mark.parametrize("change", PLAIN.values(), ids=PLAIN.keys())
def test_change_between_saves_is_noticed(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    capturer, state = Capturer(False), plain_state()
    known = watch(capturer, monkeypatch)
    for _ in range(2):
        check(capturer, known, state, monkeypatch)
    change(state)
    for _ in range(2):
        check(capturer, known, state, monkeypatch)


@given(st.lists(st.sampled_from(sorted(PLAIN)), min_size=2, max_size=6))
def test_changes_in_any_order_are_noticed(changes: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        capturer, state = Capturer(False), plain_state()
        known = watch(capturer, monkeypatch)
        check(capturer, known, state, monkeypatch)
        for change in changes:
            try:
                PLAIN[change](state)
            except (AttributeError, KeyError, TypeError, RuntimeError, StopIteration, ValueError):
                continue  # an earlier change left nothing to change
            check(capturer, known, state, monkeypatch)


def replace(key: str, make: Callable[[DTensor], Any]) -> Change:
    def change(state: State) -> None:
        state["table"][key] = make(state["table"][key])

    return change


def put_first(state: State, tensor: torch.Tensor) -> None:
    entries = dict(state)
    state.clear()
    state.update({"first": tensor, **entries})


def mutate_placements(state: State) -> None:
    state["table"]["a"]._spec.placements = (Replicate(),)


def replicated(tensor: DTensor) -> DTensor:
    return tensor.redistribute(placements=[Replicate()])


def larger(tensor: DTensor) -> DTensor:
    return distribute_tensor(torch.ones(6, 2), tensor.device_mesh, [Shard(0)])


DTENSORS: dict[str, Change] = {
    "nothing": lambda s: None,
    "other object": replace("a", lambda t: t.clone()),
    "placements": replace("a", lambda t: t.redistribute(placements=[Replicate()])),
    "placements of the other dimension": replace("a", lambda t: t.redistribute(placements=[Shard(1)])),
    "placements of the same object": mutate_placements,
    "shape": replace("a", lambda t: distribute_tensor(torch.ones(6, 2), t.device_mesh, [Shard(0)])),
    "dtype": replace("a", lambda t: t.double()),
    "strides": replace("a", lambda t: distribute_tensor(torch.ones(2, 4).T, t.device_mesh, [Shard(0)])),
    "another mesh": replace(
        "a", lambda t: distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1, 1)), [Shard(0), Replicate()])
    ),
    "becomes plain": replace("a", lambda t: t.to_local()),
    "plain becomes one": lambda s: s["table"].update(plain=s["table"]["a"].clone()),
    "local part in other storage": lambda s: setattr(s["table"]["a"]._local_tensor, "data", torch.zeros(4, 2)),
    "new key": lambda s: s["table"].update(c=s["table"]["a"].clone()),
    "removed key": lambda s: s["table"].pop("a"),
    "replicated": lambda s: s.update(table=sw.Replicated(s["table"])),
    "optimizer state": lambda s: s["optim"].state.clear(),
    "parameter of the model": lambda s: setattr(s["model"], "bias", nn.Parameter(s["model"].bias.full_tensor())),
    "aliasing begins": lambda s: s["table"].update(b=s["table"]["a"]),
    "tensor before them": lambda s: put_first(s, torch.ones(3)),
    "spec of another object": lambda s: setattr(s["table"]["a"], "_spec", replicated(s["table"]["a"])._spec),
    "global shape": lambda s: setattr(s["table"]["a"]._spec, "tensor_meta", larger(s["table"]["a"])._spec.tensor_meta),
    "local part of another object": lambda s: setattr(s["table"]["a"], "_local_tensor", torch.full((4, 2), 3.0)),
    "local part of another shape": lambda s: setattr(s["table"]["a"], "_local_tensor", torch.ones(3, 2)),
    "local part of a class of its own": lambda s: setattr(
        s["table"]["a"], "_local_tensor", torch.ones(4, 2).as_subclass(type("Sub", (torch.Tensor,), {}))
    ),
    "step counter with a dimension": lambda s: next(iter(numbered(s).values())).update(step=torch.ones(1)),
    "step counter is plain": lambda s: next(iter(numbered(s).values())).update(step=3),
    "moment is plain": lambda s: next(iter(numbered(s).values())).update(exp_avg=torch.ones(4, 4)),
    "parameters of the optimizer in another order": lambda s: s["optim"].param_groups[0]["params"].reverse(),
    "step counter elsewhere": lambda s: s.update(counter=next(iter(numbered(s).values()))["step"]),
    "step counter in another's place": lambda s: s["table"].update(scalar=next(iter(numbered(s).values()))["step"]),
}


@pytest.mark.parametrize("saves", [1, 2])  # the second finds the step counters again
@pytest.mark.parametrize("change", DTENSORS.values(), ids=DTENSORS.keys())
def test_change_of_dtensors_between_saves_is_noticed(
    change: Change, saves: int, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturer, state = Capturer(False), dtensor_state(mesh)
    known = watch(capturer, monkeypatch)
    for _ in range(saves):
        check(capturer, known, state, monkeypatch)
    change(state)
    for _ in range(2):
        check(capturer, known, state, monkeypatch)


def test_tensor_that_is_no_longer_replicated_is_noticed(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(2)
    capturer, state = Capturer(False), {**dtensor_state(mesh), "loose": sw.Replicated(tensor)}
    known = watch(capturer, monkeypatch)
    for _ in range(2):
        check(capturer, known, state, monkeypatch)
    state["loose"] = tensor
    check(capturer, known, state, monkeypatch)


def test_step_counters_are_searched_once(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    search = torch_state.replicated_state
    monkeypatch.setattr(torch_state, "replicated_state", lambda *a: found.append(a) or search(*a))
    capturer, state = Capturer(False), dtensor_state(mesh)
    for _ in range(4):
        capturer.capture(state)
    assert len(found) == 2  # the third save is the first that knows what one of unchanged structure has found


# The quick way: what the extension reads of plain tensors


def read(tensors: list[Any], names: list[str] | None = None) -> tuple[_core.Structure, Any]:
    """The structure of these tensors, and what is read of them with it."""
    names = names or [str(index) for index in range(len(tensors))]
    _, dtypes, shapes, strides, devices, _ = torch_state.capture(tensors, names)
    dtype_names = [torch_state.dtype_name(dtype, "") for dtype in dtypes]
    unknown = [_core.Updates.UNKNOWN] * len(tensors)
    structure = _core.Structure(names, dtype_names, shapes, strides, unknown, devices, len(tensors), [])
    return structure, torch_state.read_again(structure, tensors)


@pytest.mark.parametrize("layers", [1, 2])
def test_optimizer_with_one_tensor_per_parameter_is_saved_again_and_again(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        optimizer.state[parameter] = torch.zeros_like(parameter)
    capturer, state = Capturer(False), {"model": model, "optim": optimizer}
    known = watch(capturer, monkeypatch)
    for _ in range(3):
        check(capturer, known, state, monkeypatch)


@pytest.mark.parametrize("dtype", torch_state._NAMES, ids=torch_state._NAMES.values())
def test_tensors_of_every_dtype_are_read_as_they_are(dtype: torch.dtype) -> None:
    tensors = [
        torch.empty(3, 4, dtype=dtype),
        torch.empty((), dtype=dtype),
        torch.empty(0, 2, dtype=dtype),
        torch.empty(4, 6, dtype=dtype).t()[1:, ::2],
        torch.empty(1, 2, 1, 2, 1, 2, 1, dtype=dtype),
    ]
    _, reading = read(tensors)
    assert reading is not None
    assert reading.addresses == [t.data_ptr() for t in tensors]
    assert reading.versions == [t._version for t in tensors]
    assert [s.data_ptr() for s in reading.storages] == [t.untyped_storage().data_ptr() for t in tensors]


@pytest.mark.parametrize("dimensions", range(8))
def test_objects_behind_tensors_are_told_apart(dimensions: int) -> None:
    """Up to five dimensions by where the shape lies that is lent, beyond by asking torch."""
    tensors = [torch.ones((1,) * dimensions), nn.Parameter(torch.ones((1,) * dimensions))]
    _, reading = read(tensors)
    assert reading is not None
    assert reading.identities == torch_state.identities(tensors)
    assert torch_state.reads_the_same(tensors, reading)
    tensors[0].data = torch.ones((1,) * dimensions)
    assert not torch_state.reads_the_same(tensors, reading), "other bytes"
    _, reading = read(tensors)
    assert reading is not None and reading.identities == torch_state.identities(tensors)
    memory = tensors[0].data
    torch.utils.swap_tensors(tensors[0], memory)
    assert tensors[0].data_ptr() == reading.addresses[0] and tensors[0]._version == reading.versions[0]
    assert not torch_state.reads_the_same(tensors, reading), "the same bytes, behind another object"


LOOKALIKES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: torch.ones(2, 8),
    "dimensions": lambda t: torch.ones(16),
    "strides": lambda t: torch.ones(4, 4).t(),
    "dtype of the same size": lambda t: torch.ones(4, 4, dtype=torch.int32),
    "negated": lambda t: torch._neg_view(torch.ones(4, 4)),
    "meta device": lambda t: torch.ones(4, 4, device="meta"),
    "sparse": lambda t: torch.ones(4, 4).to_sparse(),
    "subclass": lambda t: torch.ones(4, 4).as_subclass(type("Sub", (torch.Tensor,), {})),
    "fake": lambda t: FakeTensorMode().from_tensor(t),
    "no tensor": lambda t: t.numpy(),
    "none": lambda t: None,
}


@pytest.mark.parametrize("make", LOOKALIKES.values(), ids=LOOKALIKES.keys())
def test_only_plain_tensors_as_the_structure_has_them_are_read(make: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.ones(4, 4)
    structure, reading = read([tensor, torch.ones(2)])
    assert reading is not None
    assert torch_state.read_again(structure, [make(tensor), torch.ones(2)]) is None
    assert torch_state.read_again(structure, [tensor, torch.ones(2)]) is not None
    assert torch_state.read_again(structure, [tensor]) is None


def test_negated_view_at_the_same_address_is_noticed() -> None:
    """Nothing but the view itself shows it."""
    pair = torch.ones(3, dtype=torch.complex64)
    tensor = pair.imag
    state, capturer = {"t": tensor}, Capturer(False)
    for _ in range(2):
        capturer.capture(state)
    address, version = tensor.data_ptr(), tensor._version
    tensor.data = pair.conj().imag
    assert (tensor.data_ptr(), tensor._version, tensor.is_neg()) == (address, version, True)
    again = capturer.capture(state)
    assert again.reading is None
    assert again.held[0].tolist() == tensor.tolist()


def test_step_counters_are_found_the_general_way_too(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    state = dtensor_state(mesh)
    quick = torch_state.replicated_state(state["optim"], set(), 1)
    assert len(quick) == 2
    monkeypatch.setattr(torch_reading, "_READER", None)
    general = torch_state.replicated_state(state["optim"], set(), 1)
    assert [*map(id, quick)] == [*map(id, general)]
    assert torch_state.replicated_state(state["optim"], set(), 2) == []


def test_conjugated_view_is_not_read_as_its_bytes() -> None:
    tensor = torch.ones(3, dtype=torch.complex64)
    structure, _ = read([tensor])
    assert torch_state.read_again(structure, [tensor.conj()]) is None


def test_dtensor_is_not_read_as_a_tensor(mesh: DeviceMesh) -> None:
    structure, _ = read([torch.ones(4, 2)])
    assert torch_state.read_again(structure, [distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])]) is None


def test_scattered_tensors_on_a_device_are_never_read_the_quick_way() -> None:
    class OnDevice:
        is_cuda = True

        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tensor, name)

    assert torch_state.may_read_again([torch.ones(64, 64).t(), OnDevice(torch.ones(64, 64))])  # type: ignore[list-item]
    assert not torch_state.may_read_again([OnDevice(torch.ones(64, 64).t())])  # type: ignore[list-item]


def test_torch_without_the_table_of_functions_is_read_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, general, state = Capturer(False), Capturer(False), plain_state()
    for capturer in (quick, general):
        capturer.capture(state)
    one = quick.capture(state)
    monkeypatch.setattr(torch_reading, "_READER", None)
    other = general.capture(state)
    assert type(one.held[0]) is torch.UntypedStorage
    assert type(other.held[0]) is torch.Tensor
    assert parts(one) == parts(other)
    assert all_addresses(one) == all_addresses(other)
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert torch_reading._make_reader() is None
