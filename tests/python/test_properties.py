"""Properties, by hypothesis: any state of supported values and tensors survives exactly, on every way out; and no bytes
in place of a tree make the decoder do anything but answer.

In CI the examples are the same each time; elsewhere each run tries others.
"""

from __future__ import annotations

import collections
import copy
import json
import math
import os
import random
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import slackwater as sw
import torch
from hypothesis import HealthCheck, given, settings
from slackwater.restore.restore_plan import RestorePlan
from slackwater.state import codec, decoder, names
from support import same

STEADY = settings(
    derandomize="CI" in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    """Random bits: NaNs with payloads, negative zeros and denormals included."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randint(0, 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        flat &= 1
    return flat.view(dtype).reshape(shape)


def laid_out(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The same kind of tensor, lying in memory in another way."""
    if how == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, -1)
    if how == "every second" and tensor.dim() >= 1:
        return tensor[::2]
    if how == "behind others" and tensor.dim() >= 1:
        return tensor[1:]
    if how == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if how == "parameter" and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        return torch.nn.Parameter(tensor)
    return tensor


tensors = st.builds(
    lambda dtype, shape, seed, how: laid_out(tensor_of(dtype, shape, seed), how),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 1 << 30),
    st.sampled_from(["packed", "transposed", "every second", "behind others", "expanded", "parameter"]),
)
arrays = st.builds(
    lambda dtype, shape, order: np.arange(math.prod(shape)).astype(dtype).reshape(shape, order=order),
    st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["C", "F"]),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([torch.float16, torch.Size([2, 3]), torch.device("cpu"), np.float32(1.5), Path("a/b")])
    | st.frozensets(st.integers(), max_size=3)
)
keys = st.text(max_size=4) | st.integers(-2, 2) | st.sampled_from(["a.b", "0", "$t", "__metadata__", "%2E", "module."])
trees = st.recursive(
    tensors | arrays | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=10,
)
states = st.dictionaries(st.text(max_size=4), trees, min_size=1, max_size=4)  # an empty one is refused


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of one element counts as contiguous with any strides, and yet cannot be viewed as bytes."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same(packed(a), packed(b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return same(a, b)


def blank(value: Any) -> Any:
    """What a restarted program has: the same structure and tensors, other contents."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=torch.uint8).to(torch.float32).to(value.dtype)
    if isinstance(value, np.ndarray):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, dict):
        return type(value)((key, blank(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map(blank, value))
    return None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sw.Checkpointer, Path]]:
    """One checkpointer for all examples: what an example leaves behind must not reach the next."""
    path = tmp_path_factory.mktemp("properties") / "run"
    with sw.Checkpointer(path, pool="2MiB", slab="1MiB", keep=2) as ckpt:
        yield ckpt, path


def save(ckpt: sw.Checkpointer, state: dict[str, Any]) -> int:
    step = (ckpt.latest_step() or 0) + 1
    ckpt.save(step, state)
    ckpt.wait()
    return step


@settings(STEADY, max_examples=60)
@given(state=states)
def test_any_state_comes_back_exactly_by_load_open_and_restore(
    run: tuple[sw.Checkpointer, Path], state: dict[str, Any]
) -> None:
    ckpt, path = run
    step = save(ckpt, state)
    assert equal(sw.load(path, step), state)
    with sw.open(path, step) as reader:
        assert equal(reader.tree(), state)
        for name in reader:
            assert equal(reader[name], reader[reader.info(name).alias_of or name])
    target = blank(state)
    assert ckpt.restore(target, step=step) == step
    assert equal(target, state)


@settings(STEADY, max_examples=25)
@given(tensor=tensors, count=st.integers(2, 4))
def test_tied_tensors_are_stored_once_and_come_back_under_every_name(
    run: tuple[sw.Checkpointer, Path], tensor: torch.Tensor, count: int
) -> None:
    ckpt, path = run
    state = {str(index): tensor for index in range(count)}
    step = save(ckpt, state)
    assert equal(sw.load(path, step), state)
    with sw.open(path, step) as reader:
        tied = [name for name in reader if reader.info(name).alias_of]
    assert len(tied) == (count - 1 if tensor.numel() else 0)


# The decoder, fed with what nobody vouches for

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "$t", "$a", "v", "class", "fields", "dtype", "x"]), inner, max_size=4)
        | st.builds(lambda tag, value: {"$": tag, "v": value}, st.sampled_from(sorted(decoder._DECODERS)), inner)
    ),
    max_leaves=15,
)


def decode_or_refuse(text: str | bytes) -> None:
    """A value or an error of ours, by load and by restore; nothing else."""

    def tensor(name: str, is_array: bool) -> Any:
        if name != "w":
            raise sw.DamagedError(f"no tensor '{name}'")
        return torch.zeros(2)

    try:
        decoder.decode(decoder.load_tree(text), tensor)
    except sw.Error as error:
        assert len(str(error)) < 5000
    contents: Any = types.SimpleNamespace(
        tree=text, version=types.SimpleNamespace(step=1, world=1),
        tensors=[
            types.SimpleNamespace(name="w", shape=(2,), dtype="float32", size_bytes=8, alias_of="", is_global=False),
        ],
    )  # fmt: skip
    model = torch.nn.Linear(1, 1, bias=False)
    target = {"x": 0, "v": [torch.zeros(2)], "m": model, "o": torch.optim.SGD(model.parameters(), lr=0.1)}
    try:
        RestorePlan(target, contents, strict=False, cast=False, selected=names.Pattern(None), allow_pickle=False)
    except sw.Error as error:
        assert len(str(error)) < 5000


@settings(STEADY, max_examples=150)
@given(node=json_values)
def test_any_json_in_place_of_a_tree_is_decoded_or_refused(node: Any) -> None:
    decode_or_refuse(json.dumps({"slackwater_tree": 1, "state": node}))


@settings(STEADY, max_examples=100)
@given(data=st.binary(max_size=64))
def test_any_bytes_in_place_of_a_tree_are_refused(data: bytes) -> None:
    decode_or_refuse(data)
    decode_or_refuse(b'{"slackwater_tree":1,"state":' + data + b"}")


def mutate(node: Any, source: random.Random, other: Any) -> Any:
    """One place of a valid tree changed: a node replaced, a key dropped or renamed, a text cut."""
    node = copy.deepcopy(node)
    holder, key = [node], 0
    while True:
        here = holder[key]
        inner = list(here) if isinstance(here, dict) else list(range(len(here))) if isinstance(here, list) else []
        if not inner or source.random() < 0.3:
            break
        holder, key = here, source.choice(inner)
    choice = source.randrange(4)
    if choice == 0 and isinstance(holder, dict):
        del holder[key]
    elif choice == 1 and isinstance(holder, dict):
        holder[source.choice(["$", "$t", "v", "class", "name"])] = holder.pop(key)
    elif choice == 2 and isinstance(holder[key], str):
        holder[key] = holder[key][: len(holder[key]) // 2]
    else:
        holder[key] = other
    return node


OPTIMIZER = {
    "state": {"$": "dict", "v": [[0, {"buf": {"$t": "w"}}]]},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}
VALUES = {
    "x": (1, 2.5, b"b", {1: None}),
    "d": collections.deque([1], 3),
    "s": {1, 2},
    "r": range(3),
    "c": 1j,
    "big": 1 << 70,
    "n": np.float32(1),
    "t": torch.bfloat16,
    "o": collections.OrderedDict(a=1),
    "nan": math.nan,
}
SEEDS = [
    {"$": "object", "of": "optimizer", "class": "SGD", "v": OPTIMIZER},
    {
        "$": "object",
        "of": "optimizer",
        "class": "SGD",
        "parameters": {"names": [["m.weight"]], "shapes": [[[1, 1]]]},
        "v": OPTIMIZER,
    },
    codec.Encoder().encode(VALUES, "v"),
    {
        "m": {"$": "object", "of": "module", "class": "Linear", "v": {"weight": {"$t": "w"}}},
        "v": [{"$t": "w"}],
        "x": {"$a": "w"},
    },
]


@settings(STEADY, max_examples=250)
@given(seed=st.sampled_from(SEEDS), other=json_values, source=st.randoms(use_true_random=False))
def test_valid_tree_with_one_place_changed_is_decoded_or_refused(seed: Any, other: Any, source: random.Random) -> None:
    root = {"o": seed, "m": seed, "v": seed, "x": seed} if "$" in seed else seed
    decode_or_refuse(json.dumps({"slackwater_tree": 1, "state": mutate(root, source, other)}))
