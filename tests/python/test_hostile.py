"""A checkpoint directory that somebody else wrote, from Python: no code runs, nothing outside is touched, one error.

Digests are no secret: whoever can write the directory can make them fit. So these trees are saved by Slackwater itself.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater.state import codec, decoder
from support import python, step_directory

Make = Callable[..., sw.Checkpointer]


@pytest.fixture
def forge(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """A committed checkpoint with one tensor 'w' and this tree: a node, or the bytes of the whole text."""

    def save(tree: Any) -> Path:
        data = tree if isinstance(tree, bytes) else json.dumps({"slackwater_tree": 1, "state": tree}).encode()
        with monkeypatch.context() as patch:
            patch.setattr(codec, "dump_tree", lambda node: data)
            with sw.Checkpointer(path, pool="4MiB", slab="1MiB") as ckpt:
                ckpt.save(1, {"w": torch.ones(3)})
        return path

    return save


Forge = Callable[[Any], Path]


def refuse_everywhere(path: Path, make: Make, match: str = "") -> None:
    """load() and restore() answer with an error of ours; tensors alone can still be read."""
    with pytest.raises(sw.Error, match=match) as loading:
        sw.load(path)
    with pytest.raises(sw.Error, match=match) as restoring:
        make().restore({"w": torch.zeros(3), "x": 0}, strict=False)
    for caught in (loading, restoring):
        assert len(str(caught.value)) < 1000
    with sw.open(path) as reader:
        assert torch.equal(reader["w"], torch.ones(3))


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.marker),))


def test_pickle_is_refused_unless_asked_for(forge: Forge, make: Make, tmp_path: Path) -> None:
    marker = tmp_path / "code-ran"
    data = base64.b64encode(pickle.dumps(Evil(marker))).decode()
    forge({"w": {"$t": "w"}, "x": {"$": "pickle", "class": "innocent", "v": data}})
    refuse_everywhere(tmp_path / "run", make, "allow_pickle=True")
    assert not marker.exists()
    sw.load(tmp_path / "run", allow_pickle=True)
    assert marker.exists(), "the test would not notice code that runs"


def test_pickle_as_a_key_or_deep_inside_is_refused_too(forge: Forge, make: Make, tmp_path: Path) -> None:
    marker = tmp_path / "code-ran"
    node = {"$": "pickle", "class": "innocent", "v": base64.b64encode(pickle.dumps(Evil(marker))).decode()}
    forge({"w": {"$t": "w"}, "x": {"$": "dict", "v": [[{"$": "tuple", "v": [[node]]}, 1]]}})
    refuse_everywhere(tmp_path / "run", make, "allow_pickle=True")
    assert not marker.exists()


MODULE = """
import os
os.mkdir({marker!r})
class Colour: pass
"""


@pytest.mark.parametrize(
    "node",
    [
        {"$": "enum", "class": "trap:Colour", "name": "RED"},
        {"$": "namedtuple", "class": "trap:Colour", "fields": ["a"], "v": [1]},
        {"$": "enum", "class": "lazy:trap", "name": "RED"},
    ],
    ids=["enum", "namedtuple", "lazy attribute"],
)
def test_classes_are_looked_up_and_never_imported(
    node: Any, forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "code-ran"
    (tmp_path / "trap.py").write_text(MODULE.format(marker=str(marker)))
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    import trap\n    return trap.Colour\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("lazy")
    monkeypatch.setitem(sys.modules, "lazy", sys.modules["lazy"])
    forge({"w": {"$t": "w"}, "x": node})
    try:
        loaded = sw.load(tmp_path / "run")
        assert type(loaded["x"]).__module__ != "trap"
    except sw.UnsupportedError:
        pass
    assert not marker.exists()
    assert "trap" not in sys.modules


def test_names_of_torch_are_looked_up_and_never_imported() -> None:
    lazily = "onnx"  # torch imports it when somebody asks for the attribute
    code = f"""
    import sys, torch
    from slackwater.state import decoder
    assert "torch.{lazily}" not in sys.modules
    try:
        decoder.decode({{"$": "torch", "v": "{lazily}"}}, None)
    except decoder.UnsupportedError:
        print("torch.{lazily}" in sys.modules)
    """
    assert python(code).stdout == "False\n"


MALFORMED = {
    "no pairs": {"$": "dict"},
    "pairs of three": {"$": "dict", "v": [[1, 2, 3]]},
    "key that is a list": {"$": "dict", "v": [[[1], 2]]},
    "tuple of nothing": {"$": "tuple", "v": 7},
    "object without state": {"$": "object", "of": "module", "class": "x"},
    "object without class": {"$": "object", "v": {}},
    "subclass of a list": {"$": "subclass", "class": "x", "v": []},
    "tensor without name": {"$t": 5},
    "tensor of a list": {"$a": ["w"]},
    "tensor that no file holds": {"$t": "absent"},
    "unknown kind": {"$": "quantum"},
    "dtype of nonsense": {"$": "np.dtype", "v": "(1,"},
    "dtype of objects": {"$": "np.dtype", "v": "O"},
    "scalar of another size": {"$": "np", "dtype": "<f8", "v": "AA=="},
    "device of nonsense": {"$": "torch.device", "v": "nonsense:99"},
    "size of texts": {"$": "torch.Size", "v": ["a"]},
    "time of nonsense": {"$": "datetime", "v": "yesterday", "fold": 0},
    "factory of nonsense": {"$": "defaultdict", "factory": "os.system", "v": []},
    "namespace of a list": {"$": "Namespace", "v": [1]},
    "float of nonsense": {"$": "float", "v": "nan:zz"},
    "range of nothing": {"$": "range", "v": [1, 2, 0]},
}


@pytest.mark.parametrize("node", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_value_is_an_error_of_ours(node: Any, forge: Forge, make: Make, path: Path) -> None:
    forge({"w": {"$t": "w"}, "x": node})
    with pytest.raises(sw.Error):
        sw.load(path)
    for target in (0, {}, [], (), torch.zeros(3), torch.nn.Linear(1, 1)):
        ckpt = make()
        try:
            ckpt.restore({"w": torch.zeros(3), "x": target}, strict=False)
        except sw.Error as error:
            assert len(str(error)) < 1000
        ckpt.close()


@pytest.mark.parametrize(
    "groups",
    [5, [{"params": 5}], [{"params": [[0]]}], [{"params": ["0"]}], [5]],
    ids=["number", "params is a number", "params of lists", "params of texts", "group is a number"],
)
def test_malformed_optimizer_is_an_error_of_ours(groups: Any, forge: Forge, make: Make, path: Path) -> None:
    forge({"w": {"$t": "w"}, "o": {"state": {"$": "dict", "v": [[0, {"step": {"$t": "w"}}]]}, "param_groups": groups}})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(sw.Error):
        make().restore({"w": torch.zeros(3), "o": optimizer})


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"$":"tuple","v":['], ids=["list", "dict", "tuple"])
@pytest.mark.parametrize("levels", [200, 900, 100_000])
def test_tree_of_many_levels_never_crashes(opening: str, levels: int, forge: Forge, make: Make, path: Path) -> None:
    closing = {"[": "]", '{"a":': "}", '{"$":"tuple","v":[': "]}"}[opening]
    text = '{"slackwater_tree":1,"state":{"w":{"$t":"w"},"x":' + opening * levels + "1" + closing * levels + "}}"
    if opening == "[" and levels == 200:
        forge(text.encode())
        assert torch.equal(sw.load(path)["w"], torch.ones(3))
        return
    forge(text.encode())
    for look in (lambda: sw.load(path), lambda: make().restore({"w": torch.zeros(3), "x": 0})):
        try:
            look()
        except sw.Error as error:
            assert "tree" in str(error)
    with sw.open(path) as reader:
        assert torch.equal(reader["w"], torch.ones(3))


@pytest.mark.parametrize(
    "tree",
    [
        b"\xff\xfe" * (1 << 20),
        b"[" * (2 << 20),
        b"null",
        b"[]",
        b'{"slackwater_tree":1}',
        b'{"slackwater_tree":99,"state":{}}',
    ],
    ids=["no text", "brackets", "null", "list", "no state", "newer"],
)
def test_tree_of_nonsense_is_an_error_of_ours(tree: bytes, forge: Forge, make: Make, path: Path) -> None:
    forge(tree)
    refuse_everywhere(path, make, "tree")


def test_names_in_the_directory_that_are_no_text_are_logged_and_left(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt = make()
    ckpt.save(1, {"w": torch.ones(3)})
    ckpt.close()
    strange = os.fsencode(path) + b"/step-\xff\xfe\x1b[2J"
    os.mkdir(strange)
    again = make()
    assert again.restore({"w": torch.zeros(3)}) == 1
    again.save(2, {"w": torch.ones(3)})
    again.wait()
    assert os.path.isdir(strange)
    assert sw.open(path).step == 2


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.record", "rank-00000.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_special_file_in_place_of_a_file(name: str, kind: str, make: Make, path: Path, tmp_path: Path) -> None:
    ckpt = make(keep=0)
    for step in (1, 2):
        ckpt.save(step, {"w": torch.full((3,), float(step))})
        ckpt.fence()
    ckpt.close()
    file = step_directory(path, 2) / name
    file.rename(tmp_path / "aside")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(tmp_path / "aside")
    else:
        file.mkdir()
    with pytest.raises(sw.Error, match=name):
        sw.load(path, 2)
    state = {"w": torch.zeros(3)}
    assert make().restore(state) == 1
    assert state["w"].tolist() == [1, 1, 1]


def test_tensor_that_claims_more_than_the_file_is_refused_before_memory_is_taken(make: Make, path: Path) -> None:
    """The engine's refusal, seen as memory: 2^40 bytes are asked for nowhere."""
    ckpt = make()
    ckpt.save(1, {"w": torch.ones(1000)})
    ckpt.close()
    file = step_directory(path, 1) / "rank-00000.safetensors"
    os.truncate(file, 1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(sw.DamagedError, match="its record says"):
        sw.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_decoder_refuses_what_it_does_not_know_by_name() -> None:
    with pytest.raises(sw.UnsupportedError, match="quantum"):
        decoder.decode({"$": "quantum"}, lambda name, is_array: None)
