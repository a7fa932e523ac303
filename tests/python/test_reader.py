"""Reading without a model."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import slackwater as sw
import torch
from support import data_file, python
from torch import nn

Make = Callable[..., sw.Checkpointer]
SaveOnce = Callable[..., Path]


class Handmade:
    """No plain value: it is pickled, or refused."""


@pytest.fixture
def saved(save_once: SaveOnce) -> Path:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(2, 3))
    return save_once({"m": model, "list": [torch.ones(2), 5], "a": np.arange(3), "n": {"epoch": 4}})


def test_mapping_of_names_to_tensors(saved: Path) -> None:
    with sw.open(saved) as reader:
        assert reader.step == 1
        assert sorted(reader) == ["a", "list.0", "m.bias", "m.weight"]
        assert len(reader) == 4
        assert "m.weight" in reader
        assert reader["m.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert reader.info("m.weight") == ("float32", (2, 3), 24, "")
        assert dict(reader.items()).keys() == set(reader)
        assert "step=1" in repr(reader)
        with pytest.raises(KeyError, match="no tensor 'absent'"):
            reader["absent"]
        assert reader.get("absent") is None
    with pytest.raises(sw.ClosedError):
        reader["m.weight"]


def test_tree_is_the_whole_state(saved: Path) -> None:
    tree = sw.open(saved).tree()
    assert list(tree) == ["m", "list", "a", "n"]
    assert tree["list"][1] == 5
    assert tree["n"] == {"epoch": 4}
    assert type(tree["a"]) is np.ndarray


def test_load_of_a_part_gives_that_and_nothing_else(saved: Path) -> None:
    loaded = sw.load(saved, only=["m.weight", "a"])
    assert list(loaded) == ["m", "a"]
    assert list(loaded["m"]) == ["weight"]
    assert loaded["a"].tolist() == [0, 1, 2]
    assert sw.load(saved, only="n") == {"n": {"epoch": 4}} == sw.load(saved, only="n.e*")
    assert sw.load(saved, only="list.1") == {"list": [None, 5]}
    assert [*map(type, sw.load(saved, only="list.0")["list"])] == [torch.Tensor, type(None)]


def test_parts_of_all_kinds_of_containers(save_once: SaveOnce) -> None:
    Pair = collections.namedtuple("Pair", "left right")
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    state = {
        "o": optim,
        "ordered": collections.OrderedDict(a=1, b=2),
        "numbers": {1: torch.ones(1), "1": torch.zeros(1)},
        "pair": Pair(1, (2, 3)),
        "space": types.SimpleNamespace(x=1, y=2),
        "empty": {},
        "gone": Handmade(),
    }
    saved = save_once(state, allow_pickle=True)
    only = ["o.param_groups.0.lr", "ordered.b", "numbers.1", "pair.1.1", "space.x", "empty"]
    loaded = sw.load(saved, only=only)  # what is pickled is not asked for, and not unpickled
    assert loaded["o"] == {"param_groups": [{"lr": 0.5}]}
    assert loaded["ordered"] == collections.OrderedDict(b=2) and type(loaded["ordered"]) is collections.OrderedDict
    assert list(loaded["numbers"]) == [1]
    assert tuple(loaded["pair"]) == (None, (None, 3)) and loaded["pair"]._fields == ("left", "right")
    assert loaded["space"] == types.SimpleNamespace(x=1)
    assert loaded["empty"] == {} and "gone" not in loaded


def test_load_of_a_step(make: Make, path: Path) -> None:
    with make(keep=0) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"t": torch.tensor([float(step)])})
            ckpt.fence()
    assert sw.load(path)["t"].item() == 3
    assert sw.load(path, 2)["t"].item() == 2
    with pytest.raises(sw.NotFoundError):
        sw.load(path, 9)


def test_reading_needs_no_lock(make: Make, path: Path) -> None:
    ckpt = make()
    ckpt.save(1, {"t": torch.ones(3)})
    ckpt.wait()
    assert sw.load(path)["t"].tolist() == [1, 1, 1]


def test_damage_is_found_on_access(save_once: SaveOnce) -> None:
    saved = save_once({"first": torch.ones(400_000), "last": torch.ones(400_000)})
    file = data_file(saved, 1)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with sw.open(saved) as reader:
        assert reader["first"].sum() == 400_000
        with pytest.raises(sw.DamagedError, match=r"tensor last.*rank-00000\.safetensors"):
            reader["last"]


def test_missing_directory_and_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(sw.NotFoundError, match="absent"):
        sw.open(tmp_path / "absent")
    with pytest.raises(sw.NotFoundError):
        sw.load(tmp_path)


def test_without_torch_tensors_come_as_numpy_arrays(saved: Path) -> None:
    result = python(
        """
        import sys
        import slackwater as sw
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        state = sw.load(sys.argv[1])
        assert "torch" not in sys.modules
        print(type(state["m"]["weight"]).__name__, state["m"]["weight"].tolist())
        """,
        saved,
    )
    assert result.stdout == "ndarray [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]\n"


def test_bfloat16_without_torch_says_what_to_do(save_once: SaveOnce) -> None:
    path = save_once({"b": torch.ones(2, dtype=torch.bfloat16), "f": torch.ones(2)})
    result = python(
        """
        import sys
        sys.modules["ml_dtypes"] = None
        import slackwater as sw
        reader = sw.open(sys.argv[1])
        print(reader["f"])
        try: reader["b"]
        except sw.UnsupportedError as error: print(error)
        """,
        path,
    )
    assert "'b' has dtype bfloat16, which NumPy lacks; import torch" in result.stdout


def test_numpy_program_saves_and_restores_without_torch(path: Path) -> None:
    python(
        """
        import sys
        import numpy as np, slackwater as sw
        state = {"w": np.arange(1000.0), "rng": sw.Rng(), "step": 1}
        with sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB") as ckpt:
            assert ckpt.restore(state) is None
            ckpt.save(1, state)
            ckpt.fence()
            state["w"] += 1
            after = np.random.rand()
            ckpt.save(2, {**state, "step": 2})
            ckpt.wait()
            assert ckpt.restore(state, step=1) == 1
            assert state["w"][5] == 5 and np.random.rand() == after
        assert "torch" not in sys.modules
        """,
        path,
    )


def test_program_without_numpy_and_torch(path: Path) -> None:
    python(
        """
        import sys
        sys.modules["numpy"] = sys.modules["torch"] = None
        import slackwater as sw
        with sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB") as ckpt:
            ckpt.save(1, {"epoch": 3, "rng": sw.Rng()})
        assert sw.load(sys.argv[1])["epoch"] == 3
        """,
        path,
    )
