"""`slackwater import` and `slackwater export`: bit-exact both ways, with the stock libraries on the other side."""

from __future__ import annotations

import argparse
import collections
import datetime
import fractions
import io
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from support import data_file, library, same
from test_libraries import gpt2
from torch.distributed import checkpoint as dcp

BINARY = Path(sys.executable).with_name("slackwater")
SaveOnce = Callable[..., Path]

# Every dtype that the engine and torch both have.
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
NOT_IN_SAFETENSORS = {torch.complex32, torch.complex128}


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def refused(*words: object, code: int = 2) -> str:
    result = run(*words, code=code)
    assert result.stdout == "", "messages go to stderr"
    assert result.stderr.startswith("error: "), result.stderr
    return result.stderr


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    raw = torch.randint(2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def all_dtypes() -> dict[str, torch.Tensor]:
    found = {str(dtype).removeprefix("torch."): tensor_of(dtype, 3, 5) for dtype in DTYPES}
    return found | {"scalar": torch.tensor(7.5), "empty": torch.empty(0, 4), "one": torch.ones(1)}


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.randn(4, 6)).square().mean().backward()
        optim.step()
    return model, optim


PLAIN: dict[str, Any] = {
    "numbers": [
        0,
        1,
        -1,
        255,
        256,
        65536,
        -(1 << 31),
        1 << 31,
        1 << 53,
        (1 << 53) + 1,
        -(1 << 63),
        1 << 200,
        -(1 << 90),
    ],
    "floats": [0.0, -0.0, 1.0, 1e-300, 0.1, float("inf"), -float("inf"), 5e-324],
    "texts": ["", "é ∞ 😀", "a\nb\0c", "0"],
    "bytes": [b"", b"\x00\xff\x80", bytearray(b"\xfe\x01")],
    "nested": {"a": (1, (2, [3, None, True, False])), 5: "number", "5": "text", (1, "x"): "pair", None: 0, True: 1},
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "counter": collections.Counter("hello"),
    "set": {1, 2, 3},
    "complex": complex(1.5, -0.0),
    "torch": [torch.float8_e4m3fn, torch.Size([2, 3]), torch.Size([]), torch.device("cpu"), torch.device("cuda", 1)],
    "with.dot": {"x.y": 1},
    "empty": {"dict": {}, "list": [], "tuple": ()},
}


# torch.save


def test_every_dtype_survives_torch_save_both_ways(tmp_path: Path) -> None:
    state = {"tensors": all_dtypes()}
    torch.save(state, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run")
    run("verify", tmp_path / "run")
    assert same(sw.load(tmp_path / "run"), state)
    run("export", tmp_path / "run", tmp_path / "out.pt", "--torch")
    assert same(torch.load(tmp_path / "out.pt", weights_only=True), state)
    assert same(torch.load(tmp_path / "out.pt", weights_only=True, mmap=True), state)


def test_nested_plain_values_survive_torch_save_both_ways(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run")
    assert same(sw.load(tmp_path / "run"), PLAIN)
    assert repr(sw.load(tmp_path / "run")) == repr(PLAIN)
    run("export", tmp_path / "run", tmp_path / "out.pt", "--torch")
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    assert same(again, PLAIN)
    assert repr(again) == repr(PLAIN)


def test_values_that_only_a_full_load_takes_are_exported_with_a_note(tmp_path: Path, save_once: SaveOnce) -> None:
    state = {
        "w": torch.ones(2),
        "args": argparse.Namespace(lr=0.1, name="x"),
        "when": datetime.datetime(2026, 11, 18, 17, 0, 1, 5, datetime.UTC),
        "path": pathlib.PurePosixPath("a/b"),
        "deque": collections.deque([1, 2], maxlen=4),
        "default": collections.defaultdict(list, a=[1]),
        "frozen": frozenset({1}),
        "loss": np.float64(0.25),
        "range": range(1, 9, 2),
        "slice": slice(1, None, 2),
    }
    root = save_once(state)
    result = run("export", root, tmp_path / "out.pt", "--torch")
    assert "weights_only=True) does not take 'args' (a argparse.Namespace) and 8 other values" in result.stderr
    assert same(torch.load(tmp_path / "out.pt", weights_only=False), state)
    run("export", root, tmp_path / "w.pt", "--torch", "--only", "w")
    assert same(torch.load(tmp_path / "w.pt", weights_only=True), {"w": state["w"]})


def test_an_import_has_the_names_that_save_gives(tmp_path: Path, save_once: SaveOnce) -> None:
    tensor = torch.arange(4)
    wrapped = {f"module.{key}": value for key, value in trained()[0].state_dict().items()}
    state = {
        "model": trained()[0].state_dict(),
        "ddp": wrapped,
        "compiled": {"_orig_mod.a.b": torch.ones(1), "_orig_mod.c": torch.ones(2)},
        "mixed": {"a.b": torch.ones(3), "below": {"c.d": torch.ones(4)}, "50%": torch.ones(5), "0": torch.ones(6)},
        "values": {"a.b": torch.ones(2), "epoch": 3},
        "optim": trained()[1].state_dict(),
        "list": [torch.ones(1), (torch.ones(2), {"": torch.ones(3)})],
        "odd": {1: torch.ones(1), -2: torch.ones(2), "-2": torch.ones(3), (1, "a"): torch.ones(4), None: torch.ones(5)},
        "__metadata__": torch.ones(7),
        "tied": [tensor, tensor],
    }
    torch.save(state, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "imported")
    root = save_once(state)
    with sw.open(root) as saved, sw.open(tmp_path / "imported") as imported:
        assert sorted(imported) == sorted(saved)
        assert same(imported.tree(), state)
        assert imported.info("tied.1").alias_of == "tied.0"


def test_strided_and_shared_tensors_and_parameters_are_read_exactly(tmp_path: Path) -> None:
    base = torch.arange(60).reshape(3, 4, 5)
    state = {
        "transposed": base.permute(2, 0, 1),
        "part": base[1:, ::2, 3],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "buffer": torch.nn.Buffer(torch.randn(2)),
        "conjugate": None,
    }
    torch.save(state, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run")
    loaded = sw.load(tmp_path / "run")
    assert all(torch.equal(loaded[key], state[key]) for key in state if state[key] is not None)


def test_models_and_optimizers_are_restored_from_an_import(tmp_path: Path) -> None:
    model, optim = trained()
    torch.save({"model": model.state_dict(), "optim": optim.state_dict(), "epoch": 3}, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run", "--step", 40)
    torch.manual_seed(99)
    other = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    fresh = torch.optim.AdamW(other.parameters(), lr=1.0)
    state = {"model": other, "optim": fresh, "epoch": 0}
    with sw.Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.restore(state) == 40
        assert same(dict(other.state_dict()), dict(model.state_dict()))
        assert same(fresh.state_dict(), optim.state_dict())
        assert state["epoch"] == 3
        ckpt.save(41, state)  # the run goes on from there
    assert [version["step"] for version in json.loads(run("ls", tmp_path / "run", "--json").stdout)["versions"]] == [
        40,
        41,
    ]


def test_a_bare_state_dict_gets_a_key_with_as(tmp_path: Path) -> None:
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run", "--as", "model")
    other, _ = trained()
    with sw.Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.restore({"model": other}) == 0
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    torch.save(torch.ones(2), tmp_path / "bare.pt")
    assert "--as NAME" in refused("import", tmp_path / "bare.pt", tmp_path / "other")
    run("import", tmp_path / "bare.pt", tmp_path / "other", "--as", "w")
    assert same(sw.load(tmp_path / "other"), {"w": torch.ones(2)})


def test_only_and_exclude_choose_what_is_imported(tmp_path: Path) -> None:
    state = {"model": {"a": torch.ones(1), "b": torch.ones(2)}, "third": fractions.Fraction(1, 3), "epoch": 3}
    torch.save(state, tmp_path / "in.pt")
    error = refused("import", tmp_path / "in.pt", tmp_path / "run")
    assert "'third' is a fractions.Fraction" in error and "--only" in error
    run("import", tmp_path / "in.pt", tmp_path / "run", "--exclude", "third", "--exclude", "model.b")
    assert same(sw.load(tmp_path / "run"), {"model": {"a": torch.ones(1)}, "epoch": 3})
    run("import", tmp_path / "in.pt", tmp_path / "other", "--only", "model")
    assert same(sw.load(tmp_path / "other"), {"model": state["model"]})


class Runs:
    """A class whose pickle runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_pickle_is_run(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1), "x": Runs(tmp_path / "ran")}, tmp_path / "in.pt")
    assert "without running code" in refused("import", tmp_path / "in.pt", tmp_path / "run")
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    refused("import", tmp_path / "dcp", tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    assert not list((tmp_path / "run").glob("step-*"))


def test_an_export_writes_no_class_that_a_checkpoint_names(tmp_path: Path, save_once: SaveOnce) -> None:
    """Whoever loads the file would import it."""
    root = save_once({"w": torch.ones(1), "how": argparse.Namespace(kind=pytest.ExitCode.OK)})
    assert "--exclude 'how.kind'" in refused("export", root, tmp_path / "out.pt", "--torch")
    run("export", root, tmp_path / "out.pt", "--torch", "--exclude", "how.kind")


# Damaged and hostile files


def rezip(source: Path, target: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def test_damaged_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    torch.save({"w": torch.arange(100.0), "v": torch.ones(3)}, good)
    bytes_ = good.read_bytes()
    for number, cut in enumerate(range(0, len(bytes_), max(1, len(bytes_) // 25))):
        short = tmp_path / f"{number}.pt"
        short.write_bytes(bytes_[:cut])
        refused("import", short, tmp_path / "run", code=1)
    flipped = bytearray(bytes_)
    flipped[bytes_.index(torch.arange(100.0).numpy().tobytes()) + 17] ^= 1
    (tmp_path / "flipped.pt").write_bytes(flipped)
    assert "checksum" in refused("import", tmp_path / "flipped.pt", tmp_path / "run", code=1)
    run("import", tmp_path / "flipped.pt", tmp_path / "forced", "--no-crc")

    def shortened(name: str, data: bytes) -> bytes | None:
        return data[:40] if name.endswith("data/0") else data

    def without(name: str, data: bytes) -> bytes | None:
        return None if name.endswith("data/0") else data

    assert "shorter" in refused("import", rezip(good, tmp_path / "s.pt", shortened), tmp_path / "run", code=1)
    assert "does not have" in refused("import", rezip(good, tmp_path / "w.pt", without), tmp_path / "run", code=1)
    packed = rezip(good, tmp_path / "p.pt", lambda _, data: data, compression=zipfile.ZIP_DEFLATED)
    assert "compressed" in refused("import", packed, tmp_path / "run")
    assert not list((tmp_path / "run").glob("step-*")), "nothing is committed"


def hostile(tmp_path: Path, pickled: bytes) -> Path:
    good = tmp_path / "good.pt"
    torch.save({"w": torch.ones(4)}, good)
    return rezip(good, tmp_path / "bad.pt", lambda name, data: pickled if name.endswith("data.pkl") else data)


def deep(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def laughs() -> bytes:
    """A list of ten references to a list of ten references to ..., twenty times: 10^20 values."""
    out = b"\x80\x02]q\x00"
    for level in range(20):
        out += b"](" + bytes([ord("h"), level]) * 10 + b"eq" + bytes([level + 1]) + b"\x86"
    return out + b"."


def stretched() -> bytes:
    """A tensor of 2^50 elements, all of them the same four bytes."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    shape = b"\x8a\x08" + (1 << 50).to_bytes(8, "little")
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + b"(" + shape + b"t" + b"(K\x00t"
    tensor += b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}(X\x01\x00\x00\x00w" + tensor + b"u."


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (deep(1_000_000), "nested too deeply"),
        (laughs(), "holds more than"),
        (stretched(), "repeat the same bytes"),
        (b"", "ends in the middle"),
        (b"\x80\x02.", "0 values"),
        (b"\x80\x02h\x07.", "did not keep"),
        (b"\x80\x02X\xff\xff\xff\xffab.", "reaches beyond its end"),
        (b"\x80\x02}(K\x01u.", "missing on the stack"),
        (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "os.system"),
        (b"\x80\x02i", "opcode"),
    ],
    ids=["deep", "laughs", "stretched", "empty", "nothing", "memo", "length", "pairs", "system", "opcode"],
)
def test_hostile_pickles_are_refused(tmp_path: Path, pickled: bytes, said: str) -> None:
    source = hostile(tmp_path, pickled)
    result = subprocess.run([BINARY, "import", source, tmp_path / "run", "--as", "x"], capture_output=True, text=True)
    assert result.returncode in (1, 2), result
    assert said in result.stderr, result.stderr


def test_other_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "torch.save it again" in refused("import", tmp_path / "old.pt", tmp_path / "run")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    assert "TorchScript" in refused("import", tmp_path / "script.pt", tmp_path / "run")
    torch.save({"w": torch.ones(2, dtype=torch.complex64).conj()}, tmp_path / "conj.pt")
    assert "resolve_conj" in refused("import", tmp_path / "conj.pt", tmp_path / "run")
    torch.save({"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, tmp_path / "q.pt")
    assert "_rebuild_qtensor" in refused("import", tmp_path / "q.pt", tmp_path / "run")
    refused("import", tmp_path / "none.pt", tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    assert "nothing to import" in refused("import", tmp_path / "nothing", tmp_path / "run")


# Hugging Face


def test_from_pretrained_takes_an_export_in_shards(tmp_path: Path, save_once: SaveOnce) -> None:
    transformers: Any = library("transformers")
    model = gpt2(1)
    optim = torch.optim.AdamW(model.parameters())
    root = save_once({"model": model, "optim": optim, "epoch": 3})
    target = tmp_path / "hf"
    run("export", root, target, "--only", "model", "--map", "model.=", "--shard-size", "2kB")
    shards = sorted(path.name for path in target.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    model.config.save_pretrained(target)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert same(dict(loaded.state_dict()), dict(model.state_dict()))


def test_from_pretrained_takes_one_file_in_bfloat16(tmp_path: Path, save_once: SaveOnce) -> None:
    transformers: Any = library("transformers")
    model = gpt2(1)
    root = save_once({"net": model})
    model.config.save_pretrained(tmp_path / "hf")  # what is there stays
    run("export", root, tmp_path / "hf", "--map", "net.=", "--dtype", "bf16")
    assert [path.name for path in (tmp_path / "hf").glob("*.safetensors*")] == ["model.safetensors"]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    assert same(dict(loaded.state_dict()), dict(model.bfloat16().state_dict()))


def test_save_pretrained_sets_are_imported(tmp_path: Path) -> None:
    model = gpt2(1)
    model.save_pretrained(tmp_path / "hf", max_shard_size="2kB")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists()
    for number, source in enumerate([tmp_path / "hf", tmp_path / "hf" / "model.safetensors.index.json"]):
        run("import", source, tmp_path / f"run{number}", "--as", "model")
        other = gpt2(2)
        with sw.Checkpointer(tmp_path / f"run{number}") as ckpt:
            ckpt.restore({"model": other}, strict=False)  # tied weights are stored once
        assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_every_dtype_of_safetensors_survives_both_ways(tmp_path: Path) -> None:
    safetensors: Any = library("safetensors.torch")
    tensors = {key: tensor for key, tensor in all_dtypes().items() if tensor.dtype not in NOT_IN_SAFETENSORS}
    safetensors.save_file(tensors, tmp_path / "in.safetensors", metadata={"note": "hello"})
    run("import", tmp_path / "in.safetensors", tmp_path / "run")
    with sw.open(tmp_path / "run") as checkpoint:
        assert {name: checkpoint[name] for name in checkpoint}.keys() == tensors.keys()
        assert all(same(checkpoint[name], tensor) for name, tensor in tensors.items())
        assert checkpoint.metadata["note"] == "hello"
    run("export", tmp_path / "run", tmp_path / "out")
    loaded = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], tensor) for name, tensor in tensors.items())
    with library("safetensors").safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_dtypes_that_safetensors_lacks_are_named(tmp_path: Path, save_once: SaveOnce) -> None:
    root = save_once({"c": torch.ones(2, dtype=torch.complex128)})
    assert "'c' is complex128" in refused("export", root, tmp_path / "out")


@pytest.mark.parametrize("to", ["bf16", "fp16", "fp32"])
def test_conversion_rounds_as_torch_does(tmp_path: Path, save_once: SaveOnce, to: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[to]
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    values = patterns.to(torch.int32) << 16
    low = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32)
    ties = torch.cat([values, values + 0x8000, values + 0x7FFF, values + 0x8001, values | low, values + 0x1000])
    state = {
        "f32": ties.view(torch.float32),
        "small": (torch.randn(5000, dtype=torch.float64) * 1e-6).float(),
        "f64": torch.randn(5000, dtype=torch.float64) * 10.0 ** torch.randint(-60, 60, (5000,)),
        "f16": patterns.view(torch.float16),
        "bf16": patterns.view(torch.bfloat16),
        "ids": torch.arange(5),
    }
    root = save_once(state)
    run("export", root, tmp_path / "out.pt", "--torch", "--dtype", to)
    for name, found in torch.load(tmp_path / "out.pt").items():
        wanted = state[name].to(dtype) if state[name].is_floating_point() else state[name]
        assert found.dtype == wanted.dtype
        if not found.is_floating_point():
            assert torch.equal(found, wanted)
            continue
        assert torch.equal(found.isnan(), wanted.isnan()), name
        usable = ~wanted.isnan()  # the payload of a NaN depends on the processor
        assert same(found[usable], wanted[usable]), name


def test_names_are_mapped_by_prefix_and_by_stars(tmp_path: Path, save_once: SaveOnce) -> None:
    root = save_once({"model": {"a.attn.w": torch.ones(1), "b.attn.w": torch.ones(2), "c": torch.ones(3)}})
    run("export", root, tmp_path / "out.pt", "--torch", "--map", "model.*.attn.*=*.attention.*", "--map", "model.=")
    assert sorted(torch.load(tmp_path / "out.pt")) == ["a.attention.w", "b.attention.w", "c"]
    assert "both be called 'x'" in refused("export", root, tmp_path / "hf", "--map", "model.*=x")
    assert "no '='" in refused("export", root, tmp_path / "hf", "--map", "model")
    assert "is selected" in refused("export", root, tmp_path / "hf", "--only", "nothing")


def test_nothing_is_replaced_without_force_and_nothing_else_with_it(tmp_path: Path, save_once: SaveOnce) -> None:
    safetensors: Any = library("safetensors.torch")
    root = save_once({"a": torch.ones(300), "b": torch.zeros(300)})
    target = tmp_path / "out"
    run("export", root, target, "--shard-size", "1kB")
    (target / "config.json").write_text("{}")
    before = sorted(path.name for path in target.iterdir())
    for _ in range(2):
        assert "--force" in refused("export", root, target)
    assert sorted(path.name for path in target.iterdir()) == before
    run("export", root, target, "--force")
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    assert same(safetensors.load_file(target / "model.safetensors")["a"], torch.ones(300))


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".safetensors"])
def test_a_target_that_looks_like_a_file_does_not_become_a_directory(
    ending: str, tmp_path: Path, save_once: SaveOnce
) -> None:
    root = save_once({"a": torch.ones(5)})
    target = tmp_path / f"out{ending}"
    said = refused("export", root, target)
    assert f"'{target}' looks like a file, and an export without --torch writes a directory" in said
    assert ("name of a directory" if ending == ".safetensors" else "hint: add --torch") in said
    said = refused("export", root, target, "--dcp")
    assert "--dcp writes a directory" in said and "--torch instead of --dcp" in said
    assert not target.exists()
    run("export", root, f"{target}/")
    assert [path.name for path in target.iterdir()] == ["model.safetensors"]
    if ending != ".safetensors":
        run("export", root, tmp_path / f"file{ending}", "--torch")
        assert (tmp_path / f"file{ending}").is_file()


def test_a_damaged_checkpoint_leaves_no_export(tmp_path: Path, save_once: SaveOnce) -> None:
    root = save_once({"a": torch.ones(1 << 20), "b": torch.zeros(1 << 20)})
    with data_file(root, 1).open("r+b") as file:
        file.seek(-1000, io.SEEK_END)
        file.write(b"damage")
    for words in ([tmp_path / "hf"], [tmp_path / "out.pt", "--torch"], [tmp_path / "dcp", "--dcp"]):
        assert "error: " in run("export", root, *words, code=1).stderr
    assert not (tmp_path / "out.pt").exists()
    assert all(not list((tmp_path / name).iterdir()) for name in ("hf", "dcp")), "not even a private file is left"


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path: Path, save_once: SaveOnce) -> None:
    root = save_once({"a": torch.ones(5)})
    left = tmp_path / "hf" / ".slackwater-export"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run("export", root, tmp_path / "hf")
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["model.safetensors"]


def test_hostile_safetensors_sets_are_refused(tmp_path: Path) -> None:
    safetensors: Any = library("safetensors.torch")
    hf = tmp_path / "hf"
    hf.mkdir()
    safetensors.save_file({"a": torch.ones(2)}, hf / "one.safetensors")
    shutil.copy(hf / "one.safetensors", tmp_path / "outside.safetensors")
    index = hf / "model.safetensors.index.json"
    for weight_map, said in [
        ({"a": "../outside.safetensors"}, "names no file beside it"),
        ({"a": 5}, "names no file beside it"),
        ({"b": "one.safetensors"}, "does not hold"),
        ({"a": "two.safetensors"}, "cannot open"),
        ([], "weight_map"),
    ]:
        index.write_text(json.dumps({"weight_map": weight_map}))
        result = subprocess.run([BINARY, "import", hf, tmp_path / "run"], capture_output=True, text=True)
        assert result.returncode in (1, 2) and said in result.stderr, result.stderr
    index.unlink()
    shutil.copy(hf / "one.safetensors", hf / "two.safetensors")
    assert "in two files" in refused("import", hf, tmp_path / "run", code=1)


# DCP

NESTED: dict[str, Any] = {
    "model": {"a.b": torch.randn(3, 4), "c": torch.arange(5)},
    "optim": {"state": {"a.b": {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 4)}}, "lr": 0.1},
    "list": [torch.ones(2), {"k": 1}, [torch.zeros(1)]],
    "plain": [1, "two", None],
    "tuple": (1, torch.ones(2)),
    "epoch": 3,
}


def blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(part) for key, part in value.items()}
    if isinstance(value, list):
        return [blank(part) for part in value]
    return None


@pytest.mark.filterwarnings("ignore")
def test_dcp_checkpoints_survive_both_ways(tmp_path: Path, save_once: SaveOnce) -> None:
    state = {**NESTED, "dtypes": all_dtypes()}
    dcp.save(state, checkpoint_id=tmp_path / "in")
    run("import", tmp_path / "in", tmp_path / "run")
    run("verify", tmp_path / "run")
    assert same(sw.load(tmp_path / "run"), state)
    run("export", tmp_path / "run", tmp_path / "out", "--dcp", "--shard-size", "8kB")
    assert len(list((tmp_path / "out").glob("__0_*.distcp"))) > 1
    again = blank(state)
    dcp.load(again, checkpoint_id=tmp_path / "out")
    assert same(again, state)
    assert "--force" in refused("export", tmp_path / "run", tmp_path / "out", "--dcp")


@pytest.mark.filterwarnings("ignore")
def test_dcp_loads_what_a_run_has_saved(tmp_path: Path, save_once: SaveOnce) -> None:
    model, optim = trained()
    root = save_once({"model": model, "optim": optim, "epoch": 3})
    run("export", root, tmp_path / "out", "--dcp", "--only", "model", "--only", "epoch")
    other, _ = trained()
    state = {"model": other.state_dict(), "epoch": 0}
    dcp.load(state, checkpoint_id=tmp_path / "out")
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert state["epoch"] == 3


def test_damaged_dcp_directories_are_refused(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(50.0)}, checkpoint_id=tmp_path / "in", no_dist=True)
    [data] = (tmp_path / "in").glob("*.distcp")
    bytes_ = data.read_bytes()
    data.write_bytes(bytes_[:-10])
    assert "has only" in refused("import", tmp_path / "in", tmp_path / "run", code=1)
    flipped = bytearray(bytes_)
    flipped[bytes_.index(torch.arange(50.0).numpy().tobytes()) + 5] ^= 1
    data.write_bytes(flipped)
    assert "checksum" in refused("import", tmp_path / "in", tmp_path / "run", code=1)
    data.unlink()
    assert "cannot open" in refused("import", tmp_path / "in", tmp_path / "run")


# Memory, JSON, steps


def test_large_tensors_pass_through_bounded_memory(tmp_path: Path) -> None:
    """In pieces that cut every dimension, and with far less memory than the tensor takes."""
    tensor = torch.randint(0, 1 << 60, (3, 5, 4 << 20), dtype=torch.int64)  # 503 MB, rows of 160 MiB
    torch.save({"w": tensor}, tmp_path / "in.pt")
    usage = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    usage += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run("import", tmp_path / "in.pt", tmp_path / "run")
    (tmp_path / "in.pt").unlink()
    words = [BINARY, "export", tmp_path / "run", tmp_path / "out.pt", "--torch"]
    result = subprocess.run([sys.executable, "-c", usage, *words], capture_output=True, text=True, check=True)
    assert int(result.stdout.splitlines()[-1]) * 1024 < tensor.nbytes // 2
    shutil.rmtree(tmp_path / "run")
    assert torch.equal(torch.load(tmp_path / "out.pt", mmap=True)["w"], tensor)


def test_json_says_what_was_done(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "in.pt")
    report = json.loads(run("import", tmp_path / "in.pt", tmp_path / "run", "--step", 7, "--json").stdout)
    assert (report["format"], report["step"], report["tensors"], report["size_bytes"]) == ("torch.save", 7, 1, 16)
    assert report["version"]["directory"] == "step-0000000007.a1"
    report = json.loads(run("export", f"{tmp_path / 'run'}@7", tmp_path / "hf", "--json").stdout)
    assert (report["format"], report["step"], report["tensors"]) == ("hf", 7, 1)
    assert report["files"] == [{"name": "model.safetensors", "size_bytes": 16}]


def test_a_later_step_is_never_replaced_by_an_import(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "in.pt")
    run("import", tmp_path / "in.pt", tmp_path / "run", "--step", 5)
    assert "up to step 5" in refused("import", tmp_path / "in.pt", tmp_path / "run", "--step", 5)
    run("import", tmp_path / "in.pt", tmp_path / "run", "--step", 6)
    assert [version["step"] for version in json.loads(run("ls", tmp_path / "run", "--json").stdout)["versions"]] == [
        5,
        6,
    ]
