"""Names of tensors: readable, and never the same for two tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import slackwater as sw
import torch
from hypothesis import given
from slackwater.state import names
from slackwater.state.tree import Flattener

T = np.zeros(1)


def names_of(state: dict[Any, Any]) -> list[str]:
    flat = Flattener()
    flat.flatten(state)
    return flat.torch_names + flat.array_names


def test_names_are_paths() -> None:
    assert names_of({"model": {"layers": [{"weight": T}]}, "extra": (T,)}) == ["model.layers.0.weight", "extra.0"]


def test_flat_state_dict_keeps_its_dotted_keys() -> None:
    assert names_of({"model": {"layers.0.weight": T, "layers.0.bias": T, "0": T}}) == [
        "model.layers.0.weight",
        "model.layers.0.bias",
        "model.0",
    ]


def test_dotted_key_beside_a_nested_one_is_escaped() -> None:
    assert names_of({"s": {"a.b": T, "a": {"b": T}}}) == ["s.a%2Eb", "s.a.b"]


def test_number_and_text_keys_differ() -> None:
    assert names_of({"s": {0: T, "0": T, -1: T, "-1": T}}) == ["s.0", "s.%30", "s.-1", "s.%2D1"]


def test_odd_keys_are_named_exactly() -> None:
    found = names_of({"s": {(1, 2): T, None: T, 1.5: T, "": T, "%": T, b"x": T, "\ud800": T}})
    assert len(set(found)) == 7
    assert found[4] == "s.%25"


def test_reserved_names_are_escaped() -> None:
    assert names_of({"__metadata__": T, "__slackwater_tree__": T}) == ["%5F_metadata__", "%5F_slackwater_tree__"]


keys = (
    st.text("ab.%0", max_size=3)
    | st.integers(-1, 1)
    | st.none()
    | st.tuples(st.integers(0, 1))
    | st.just("__metadata__")
    | st.text(max_size=2)
)
trees = st.recursive(
    st.just(T),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@given(st.dictionaries(keys, trees, max_size=4))
def test_two_tensors_never_get_one_name(state: dict[Any, Any]) -> None:
    found = names_of(state)
    assert len(set(found)) == len(found)
    assert all(found)
    assert not any(name.startswith(("__metadata__", "__slackwater")) for name in found)
    for name in found:
        name.encode()


class Wrapper(torch.nn.Module):
    def __init__(self, key: str, inner: torch.nn.Module) -> None:
        super().__init__()
        self.add_module(key, inner)


@pytest.mark.parametrize("key", ["_orig_mod", "module", "_checkpoint_wrapped_module"])
def test_wrappers_leave_no_trace_in_names(key: str) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert names_of({"m": Wrapper(key, plain)}) == names_of({"m": plain}) == ["m.0.weight", "m.0.bias"]
    assert names_of({"m": Wrapper(key, plain).state_dict()}) == ["m.0.weight", "m.0.bias"]


def test_a_layer_that_is_called_module_keeps_its_name() -> None:
    model = Wrapper("module", torch.nn.Linear(2, 2))
    model.head = torch.nn.Linear(2, 2)
    assert "m.module.weight" in names_of({"m": model})


@pytest.mark.parametrize("quiet", [torch.nn.ReLU(), None], ids=["beside a layer without tensors", "alone"])
@pytest.mark.parametrize("depth", [0, 1])
def test_module_is_named_as_its_state_dict(depth: int, quiet: torch.nn.Module | None) -> None:
    model = Wrapper("module", torch.nn.Linear(2, 2))
    model.add_module("quiet", quiet)
    outer: torch.nn.Module = Wrapper("block", model) if depth else model
    found = names_of({"m": outer})
    assert found == names_of({"m": dict(outer.state_dict())})
    assert found[0] == ("m.block.module.weight" if depth else "m.weight")


def test_wrappers_are_kept_where_names_would_collide() -> None:
    assert list(names.strip_wrappers(["a._orig_mod.b", "a.b"])) == ["a._orig_mod.b", "a.b"]


@pytest.mark.parametrize(
    ("only", "exclude", "chosen"),
    [
        ("model", None, ["model.a", "model.b.c"]),
        ("model.*", None, ["model.a", "model.b.c"]),
        (["*.c", "optim"], None, ["model.b.c", "optim.x"]),
        (None, "model", ["optim.x"]),
        ("model", ["*.a"], ["model.b.c"]),
        ([], None, []),
    ],
)
def test_patterns(only: Any, exclude: Any, chosen: list[str]) -> None:
    assert list(filter(names.Pattern(only, exclude), ["model.a", "model.b.c", "optim.x"])) == chosen


def test_pattern_of_another_type_is_refused() -> None:
    with pytest.raises(sw.UsageError, match="pattern"):
        names.Pattern(only=[1])  # type: ignore[list-item]


KEYS = st.one_of(st.text(max_size=6), st.integers(), st.sampled_from(["a.b", "_orig_mod", "module", "w"]))


@given(st.dictionaries(KEYS, st.none(), max_size=5))
def test_keys_that_stand_for_themselves_are_named_so_by_the_namer(mapping: dict[Any, None]) -> None:
    name_of = names.namer(mapping, "p", lambda value: False)
    for key in mapping:
        if names.stands_for_itself(key):
            assert name_of(key) == f"p.{key}"


def test_every_wrapper_in_front_is_stripped() -> None:
    """A model below two wrappers fits the checkpoint of the bare one."""
    assert names.strip_wrappers(["module.module.a", "module.module.b.module"]) == ["a", "b.module"]
    assert names.strip_wrappers(["module._orig_mod.module.a"]) == ["a"]
    assert names.strip_wrappers(["module.a", "b"]) == ["module.a", "b"], "only where all have it"
    assert names.strip_wrappers(["a._orig_mod.b", "a.b"]) == ["a._orig_mod.b", "a.b"], "two would be the same"
    assert names.strip_wrappers(["module", "module.a"]) == ["module", "module.a"]


PATTERNS = [
    "model", "model.*", "model*", "*", "*.weight", "m?del", "m??del", "model.[0-3]", "model.[!0-3]", "model.[]a]*",
    "[[]x]", "[x", "[^x]*", "[b-a]*", "[!b-a]*", "*[a-]", "[[:alpha:]]*", "\\*", "*o*e*", "?", "[*]", "model.[27].*",
]  # fmt: skip


def test_the_command_reads_patterns_as_python_does(tmp_path: Path) -> None:
    keys = ["model", "m\u00f6del", "[x]", "[x", "^x", "a-", "*", "b", "model2"]
    state = {key: np.zeros(1) for key in keys[1:]}
    state["model"] = {"weight": np.zeros(1), "2": {"weight": np.zeros(1)}, "7": np.zeros(1), "]": np.zeros(1)}
    with sw.Checkpointer(tmp_path / "run", pool="4MiB", slab="1MiB") as ckpt:
        ckpt.save(1, state)
    command = Path(sys.executable).with_name("slackwater")

    def shown(pattern: str) -> list[str]:
        words = [command, "show", "--json", tmp_path / "run", pattern]
        document = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return sorted(tensor["name"] for tensor in json.loads(document)["tensors"])

    everything = shown("*")
    assert len(everything) == len(names_of(state))
    for pattern in PATTERNS:
        wanted = names.Globs("only", pattern)
        assert shown(pattern) == sorted(name for name in everything if wanted(name)), pattern
