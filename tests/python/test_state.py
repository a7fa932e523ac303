"""What a state may hold, and the files it becomes: any stock safetensors reader opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import slackwater as sw
import torch
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.torch import load_file
from support import bits, data_file, same
from torch import nn

SaveOnce = Callable[..., Path]
Make = Callable[..., sw.Checkpointer]

KNOWN_TO_SAFETENSORS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.randint(0, 256 if dtype != torch.bool else 2, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", KNOWN_TO_SAFETENSORS, ids=str)
def test_stock_safetensors_reads_every_dtype(dtype: torch.dtype, save_once: SaveOnce) -> None:
    state = {
        "t": random_tensor(dtype, 3, 5),
        "scalar": random_tensor(dtype, 1).reshape(()),
        "empty": random_tensor(dtype, 0, 4),
    }
    loaded = load_file(data_file(save_once(state), 1))
    assert {name: (t.dtype, t.shape, bits(t)) for name, t in loaded.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in state.items()
    }


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32], ids=str)
def test_dtypes_safetensors_lacks_do_not_close_the_file_to_it(dtype: torch.dtype, save_once: SaveOnce) -> None:
    state = {"odd": random_tensor(dtype, 4), "plain": torch.arange(3.0)}
    path = save_once(state)
    assert bits(load_file(data_file(path, 1))["plain"]) == bits(state["plain"])
    assert same(sw.load(path), state)


def test_strided_tensors_are_packed(save_once: SaveOnce) -> None:
    base = torch.randn(6, 8)
    state = {
        "t": base.t(),
        "step": base[::2, 1::3],
        "expanded": base[:, :1].expand(6, 4),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    loaded = load_file(data_file(save_once(state), 1))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_tied_tensors_are_stored_once_under_the_first_name(save_once: SaveOnce) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    path = save_once({"m": model})
    assert list(load_file(data_file(path, 1))) == ["m.0.weight"]
    with sw.open(path) as reader:
        assert list(reader) == ["m.0.weight", "m.1.weight"]
        assert torch.equal(reader["m.1.weight"], model[0].weight)
        assert reader.info("m.1.weight").alias_of == "m.0.weight"


def test_state_larger_than_the_pool(save_once: SaveOnce) -> None:
    state = {"big": torch.randn(5_000_000), "more": [torch.randn(300_000) for _ in range(5)]}
    loaded = load_file(data_file(save_once(state, pool="2MiB"), 1))
    assert torch.equal(loaded["big"], state["big"])
    assert all(torch.equal(loaded[f"more.{i}"], tensor) for i, tensor in enumerate(state["more"]))


def test_file_says_it_holds_torch_tensors(save_once: SaveOnce) -> None:
    path = data_file(save_once({"t": torch.zeros(2)}), 1)
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_numpy_arrays_come_back_as_numpy_arrays(dtype: str, save_once: SaveOnce) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    loaded = sw.load(save_once({"a": array, "view": array[:, ::2], "back": array[::-1], "scalar": array[0, 0]}))
    for name, expected in {"a": array, "view": array[:, ::2], "back": array[::-1]}.items():
        assert type(loaded[name]) is np.ndarray
        assert loaded[name].dtype == expected.dtype
        assert np.array_equal(loaded[name], expected)
    assert type(loaded["scalar"]) is type(array[0, 0])


class DlPack:
    """Somebody else's array, known only by its protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_objects_on_the_host(save_once: SaveOnce) -> None:
    loaded = sw.load(save_once({"a": DlPack(np.arange(5.0)), "b": DlPack(torch.ones(3, dtype=torch.bfloat16))}))
    assert np.array_equal(loaded["a"], np.arange(5.0))
    assert torch.equal(loaded["b"], torch.ones(3, dtype=torch.bfloat16))


def test_dlpack_object_on_another_kind_of_device_is_refused(make: Make) -> None:
    class OnDevice(DlPack):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (8, 0)  # kDLMetal

    with pytest.raises(sw.UnsupportedError, match="'a' is an OnDevice on DLPack device 8"):
        make().save(1, {"a": OnDevice(np.zeros(1))})


def test_whole_training_state_as_one_tree(save_once: SaveOnce) -> None:
    model = nn.Linear(3, 2)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optim.step()
    state = {
        "model": model,
        "optim": optim,
        "sched": torch.optim.lr_scheduler.StepLR(optim, 3),
        "epoch": 3,
        "config": {"lr": 0.1, "sizes": (1, 2)},
    }
    loaded = sw.load(save_once(state))
    assert same(loaded["model"], dict(model.state_dict()))
    assert same(loaded["optim"], optim.state_dict())
    assert loaded["sched"] == state["sched"].state_dict()
    assert loaded["epoch"] == 3
    assert loaded["config"] == {"lr": 0.1, "sizes": (1, 2)}


def test_names_in_the_file_are_those_of_the_model(save_once: SaveOnce) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2)])})
    assert set(load_file(data_file(save_once({"model": model}), 1))) == {"model.layers.0.weight", "model.layers.0.bias"}


def test_non_persistent_buffers_are_left_out(save_once: SaveOnce) -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("dropped", torch.ones(1), persistent=False)
    assert list(sw.load(save_once({"m": module}))["m"]) == ["kept"]


class Hooked(nn.Linear):
    """A module whose state_dict() is more than its parameters."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.calls = 0
        self.note: Any = None
        self.register_buffer("seen", torch.zeros(2000))

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "history": torch.full((3,), float(self.calls))}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]
        self.note = state["history"]


def test_module_with_extra_state_goes_through_state_dict(save_once: SaveOnce) -> None:
    module = Hooked()
    module.calls = 5
    loaded = sw.load(save_once({"m": nn.Sequential(module)}))["m"]
    assert loaded["0._extra_state"]["calls"] == 5
    assert torch.equal(loaded["0.weight"], module.weight)


def test_wrapper_subclass_is_saved_by_its_parts(save_once: SaveOnce) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    loaded = sw.load(save_once({"two": TwoTensor(torch.ones(2), torch.zeros(2))}))
    assert {name: t.tolist() for name, t in loaded["two"].items()} == {"a": [1, 1], "b": [0, 0]}


def test_dtensor_of_one_rank_is_its_local_tensor(make: Make, path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        values = torch.randn(2000)
        with make() as ckpt:
            ckpt.save(1, {"d": distribute_tensor(values, mesh, [Replicate()])})
            target = distribute_tensor(torch.zeros(2000), mesh, [Replicate()])
            ckpt.restore({"d": target})
        assert torch.equal(target.to_local(), values)
        assert torch.equal(sw.load(path)["d"], values)
    finally:
        dist.destroy_process_group()


def test_sparse_tensor_is_refused(make: Make) -> None:
    with pytest.raises(sw.UnsupportedError, match=r"'m\.t' is a tensor of layout torch\.sparse_coo"):
        make().save(1, {"m": {"t": torch.eye(2).to_sparse()}})


def test_meta_tensor_is_refused(make: Make) -> None:
    with pytest.raises(sw.UnsupportedError, match="'t' is on the meta device"):
        make().save(1, {"t": torch.empty(2, device="meta")})


def test_unknown_dtype_is_refused(make: Make) -> None:
    ckpt = make()
    with pytest.raises(sw.UnsupportedError, match=r"'q' has dtype torch\.qint8"):
        ckpt.save(1, {"q": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)})
    with pytest.raises(sw.UnsupportedError, match=r"'a' has dtype <U1"):
        ckpt.save(1, {"a": np.array(["x"])})
    with pytest.raises(sw.UnsupportedError, match=r"'a' has the foreign byte order"):
        ckpt.save(1, {"a": np.zeros(2, ">f4")})
    ckpt.save(1, {"fine": torch.ones(1)})
    ckpt.wait()


def test_conjugate_and_negative_views_are_saved_by_value(save_once: SaveOnce) -> None:
    z = torch.randn(4, dtype=torch.complex64)
    state = {"conj": z.conj(), "neg": z.conj().imag}
    loaded = sw.load(save_once(state))
    assert torch.equal(loaded["conj"], z.conj().resolve_conj())
    assert torch.equal(loaded["neg"], -z.imag)


def test_state_that_is_no_dict_is_refused(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="the state is a list"):
        make().save(1, [torch.ones(1)])  # type: ignore[arg-type]


def test_state_without_tensors(save_once: SaveOnce) -> None:
    assert sw.load(save_once({"epoch": 1, "note": "x"})) == {"epoch": 1, "note": "x"}


def test_tree_of_many_megabytes(save_once: SaveOnce) -> None:
    state = {"log": [f"line {i}" for i in range(200_000)], "t": torch.ones(2)}
    path = save_once(state)
    assert sw.load(path)["log"] == state["log"]
    with sw.open(path) as reader:
        assert list(reader) == ["t"]


def test_metadata_is_kept(make: Make, path: Path) -> None:
    with make() as ckpt:
        ckpt.save(1, {"t": torch.ones(1)}, metadata={"loss": "1.5", "ü": "✓"})
    with sw.open(path) as reader:
        assert reader.metadata == {"loss": "1.5", "ü": "✓"}


def test_metadata_of_other_types_is_refused(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="metadata"):
        make().save(1, {}, metadata={"loss": [1.5]})  # type: ignore[dict-item]


leaves = (
    st.sampled_from(KNOWN_TO_SAFETENSORS).flatmap(
        lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: random_tensor(dtype, *shape))
    )
    | st.integers()
    | st.text()
    | st.none()
    | st.floats(allow_nan=False)
)
states = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text("a.0", max_size=2) | st.integers(0, 2), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states)
def test_any_state_survives(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("any") / "run"
    with sw.Checkpointer(path, pool="2MiB", slab="1MiB") as ckpt:
        ckpt.save(1, state)
    assert same(sw.load(path), state)


def test_state_dict_set_on_the_instance_is_called(save_once: SaveOnce, make: Make) -> None:
    module = nn.Linear(2, 2)
    original = module.state_dict
    more = torch.full((2,), 7.0)
    module.state_dict = lambda *a, **k: {**original(*a, **k), "more": more}  # type: ignore[method-assign]
    assert sw.load(save_once({"m": module}))["m"]["more"].tolist() == [7.0, 7.0]

    target, seen = nn.Linear(2, 2), []
    target.load_state_dict = lambda state, **k: seen.append(sorted(state))  # type: ignore[method-assign]
    make().restore({"m": target}, strict=False)
    assert seen == [["bias", "more", "weight"]]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_hooks_of_state_dict_run(kind: str, save_once: SaveOnce) -> None:
    """They bring up to date, or add, what is saved."""
    module = nn.BatchNorm1d(2)

    def hook(module: nn.BatchNorm1d, *_: Any) -> None:
        module.running_mean.fill_(7)

    if kind == "before":
        module.register_state_dict_pre_hook(hook)
    else:
        module.register_state_dict_post_hook(hook)
    assert sw.load(save_once({"m": nn.Sequential(module)}))["m"]["0.running_mean"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_hooks_of_an_optimizers_state_dict_run(kind: str, save_once: SaveOnce) -> None:
    optim = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    if kind == "pre":
        optim.register_state_dict_pre_hook(lambda optim: optim.param_groups[0].update(note=7))
    else:
        optim.register_state_dict_post_hook(lambda optim, state: {**state, "note": 7})
    saved = sw.load(save_once({"optim": optim}))["optim"]
    assert saved.get("note", saved["param_groups"][0].get("note")) == 7


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_parameters_are_numbered_as_torch_does_it() -> None:
    from slackwater.integrations.torch_state import optimizer_state

    a, b, c = (nn.Parameter(torch.full((2,), float(value))) for value in (1, 2, 3))
    for groups in ([{"params": [a, b]}, {"params": [c]}], [{"params": [a, b, a]}, {"params": [c]}]):
        optim = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        for parameter in (a, b, c):
            parameter.grad = torch.ones(2)
        optim.step()
        state, packed = optimizer_state(optim)
        expected = optim.state_dict()
        assert [group["params"] for group in packed] == [group["params"] for group in expected["param_groups"]]
        assert state.keys() == expected["state"].keys()
