"""Checkpoints that earlier releases wrote (tests/fixtures): this release reads them bit for bit, and goes on from them.

Every test works on a copy. What must come back is in expectation.json; states.py has the same as states to restore.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))

from states import bits, build, content, describe, dtype_name

SMALL: dict[str, Any] = {"pool": "2MiB", "slab": "1MiB"}
RELEASES = {file.parent.name: json.loads(file.read_text()) for file in sorted(FIXTURES.glob("*/expectation.json"))}
DIRECTORIES = [f"{release}/{name}" for release, said in RELEASES.items() for name in said["directories"]]


def ranks_of(name: str) -> int:
    release, case = name.split("/")
    return RELEASES[release]["directories"][case]["versions"][0]["world"]


class Fixture:
    """A copy of one directory of checkpoints, and what is expected of it."""

    def __init__(self, name: str, path: Path) -> None:
        self.release, self.case = name.split("/")
        self.path = path
        self.expected = RELEASES[self.release]["directories"][self.case]
        shutil.copytree(FIXTURES / name, path)

    def versions(self, *states: str) -> list[dict[str, Any]]:
        return [version for version in self.expected["versions"] if version["state"] in states]

    @property
    def live(self) -> list[dict[str, Any]]:
        return self.versions("live")


@pytest.fixture(params=DIRECTORIES)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    return Fixture(request.param, tmp_path / "run")


@pytest.fixture(params=[name for name in DIRECTORIES if ranks_of(name) > 1])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    """One that several ranks wrote."""
    return Fixture(request.param, tmp_path / "run")


@pytest.fixture(params=[name for name in DIRECTORIES if ranks_of(name) == 1])
def single(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    """One that a single rank wrote."""
    return Fixture(request.param, tmp_path / "run")


def command(*words: object) -> Any:
    """What the command says with --json."""
    program = shutil.which("slackwater", path=str(Path(sys.executable).parent))
    assert program, "the command is not beside the Python that runs the tests"
    result = subprocess.run([program, *map(str, words), "--json"], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_opened(path: Path, version: dict[str, Any]) -> None:
    """Every tensor, plain value and text of a version, through sw.open and sw.load."""
    with sw.open(path, version["step"]) as checkpoint:
        assert list(checkpoint) == sorted(version["tensors"], key=str.encode)
        for name, wanted in version["tensors"].items():
            tensor = checkpoint[name]
            assert (dtype_name(tensor), list(tensor.shape)) == (wanted["dtype"], wanted["shape"]), name
            assert sha256(bits(tensor)) == wanted["sha256"], name
        assert describe(dict(sorted(checkpoint.metadata.items()))) == version["metadata"]
    tree = sw.load(path, version["step"])
    for name, wanted in version["values"].items():
        value = tree
        for key in name.split("."):
            value = value[key]
        assert describe(value) == wanted, name


# The fixtures themselves


def test_there_is_a_fixture_of_a_release() -> None:
    assert "0.1.0" in RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_files_are_those_that_the_release_wrote(release: str) -> None:
    folder = FIXTURES / release
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    del files["expectation.json"]
    assert {name: sha256(file.read_bytes()) for name, file in files.items()} == RELEASES[release]["files"]
    assert sum(file.stat().st_size for file in files.values()) < 300 * 1024


def test_contents_follow_from_names_and_steps(fixture: Fixture) -> None:
    for version in fixture.versions("live", "replaced", "set aside"):
        ranks = [build(fixture.case, version["step"], rank, version["world"]) for rank in range(version["world"])]
        held = {name: tensor for rank in ranks for name, tensor in rank.tensors.items()}
        assert held.keys() == version["tensors"].keys()
        for name, wanted in version["tensors"].items():
            assert sha256(held[name].data) == wanted["sha256"], name
            if wanted.get("by_rule", True) and wanted["dtype"] != "bool":
                stored = wanted.get("alias_of", name)
                assert held[name].data == content(stored, version["step"], len(held[name].data)), name


def test_files_hold_the_tensors_for_any_reader_of_safetensors(fixture: Fixture) -> None:
    """Without the engine. The versions that are not live too, but for the one that is damaged."""
    for version in fixture.versions("live", "replaced"):
        for file in (fixture.path / version["directory"]).rglob("*.safetensors"):
            data = file.read_bytes()
            [size] = struct.unpack_from("<Q", data)
            assert (8 + size) % 4096 == 0
            header = json.loads(data[8 : 8 + size])
            about = header.pop("__metadata__")
            prefix = f"rank-{int(about['rank']):05d}/" if version["world"] > 1 else ""
            shards = json.loads(about.get("shards", "{}"))
            for name, entry in header.items():
                if name in shards and version["tensors"].get(name, {}).get("shape") != entry["shape"]:
                    continue  # a box; the engine puts those together
                wanted = version["tensors"][name if name in shards else prefix + name]
                start, end = entry["data_offsets"]
                assert sha256(data[8 + size + start : 8 + size + end]) == wanted["sha256"], name


# Reading


def test_every_version_opens_bit_for_bit(fixture: Fixture) -> None:
    for version in fixture.live:
        check_opened(fixture.path, version)
    newest = fixture.live[-1]
    with sw.open(fixture.path) as checkpoint:
        assert checkpoint.step == newest["step"]


def test_headers_alone_are_enough_where_the_index_is_lost(fixture: Fixture) -> None:
    """They say the same as the index, but for global tensors without elements, which no file holds."""
    for version in fixture.live:
        (fixture.path / version["directory"] / "index").unlink()
        with sw.open(fixture.path, version["step"]) as checkpoint:
            for name, wanted in version["tensors"].items():
                if 0 in wanted["shape"] and version["world"] > 1:
                    continue
                tensor = checkpoint[name]
                assert (dtype_name(tensor), list(tensor.shape)) == (wanted["dtype"], wanted["shape"]), name
                assert sha256(bits(tensor)) == wanted["sha256"], name


def test_verify_finds_every_byte_as_promised(fixture: Fixture) -> None:
    said = command("verify", fixture.path)
    assert said["ok"]
    assert [version["directory"] for version in said["versions"]] == [version["directory"] for version in fixture.live]


def test_ls_lists_what_is_live_and_what_is_not(fixture: Fixture) -> None:
    said = command("ls", "--all", fixture.path)
    assert said["newest_attempt"] == fixture.expected["newest_attempt"]
    assert (said["run_name"] or "") == fixture.expected["run_name"]
    found = {version["directory"]: version for version in said["versions"] + said["set_aside"]}
    assert found.keys() == {version["directory"] for version in fixture.expected["versions"]}
    for version in fixture.expected["versions"]:
        now = found[version["directory"]]
        assert now["state"] == version["state"]
        for key in ("step", "attempt", "world", "pinned", "tensor_count", "size_bytes"):
            assert now[key] == version.get(key, now[key]), key


def test_show_names_every_tensor(fixture: Fixture) -> None:
    for version in fixture.live:
        said = command("show", f"{fixture.path}@{version['step']}")
        found = {tensor["name"]: tensor for tensor in said["tensors"]}
        assert found.keys() == version["tensors"].keys()
        for name, wanted in version["tensors"].items():
            now = found[name]
            assert (now["dtype"], now["shape"]) == (wanted["dtype"], wanted["shape"]), name
            assert now.get("alias_of") == wanted.get("alias_of"), name
        assert sorted(said["rank_local_values"]) == sorted(version["rank_local_values"])


# Restoring, and going on


def copy_of(fixture: Fixture, version: dict[str, Any]) -> Path:
    """A directory of its own, for a run that restores this version."""
    copy = fixture.path.with_name(f"{fixture.case}-{version['step']}")
    if not copy.exists():
        shutil.copytree(fixture.path, copy)
    return copy


def test_one_rank_restores_every_version_and_goes_on(single: Fixture) -> None:
    for version in single.live:
        copy = copy_of(single, version)
        newest = version is single.live[-1]
        fresh = build(single.case, version["step"], fresh=True)
        with sw.Checkpointer(copy, keep=0, **SMALL) as ckpt:
            assert ckpt.restore(fresh.state, None if newest else version["step"]) == version["step"]
            assert fresh.wrong() == []
            assert {key: describe(value) for key, value in restored_values(fresh.state, version).items()} == {
                key: value for key, value in version["values"].items() if "." not in key
            }
            following = version["step"] + 1
            ckpt.save(following, build(single.case, following).state)
        kept = [old for old in single.live if old["step"] <= version["step"]]
        now = command("ls", copy)
        assert [entry["step"] for entry in now["versions"]] == [old["step"] for old in kept] + [following]
        assert now["newest_attempt"] == single.expected["newest_attempt"] + 1
        for old in kept:
            check_opened(copy, old)
        again = build(single.case, following, fresh=True)
        with sw.Checkpointer(copy, keep=0, **SMALL) as ckpt:
            assert ckpt.restore(again.state) == following
            assert again.wrong() == []


def restored_values(state: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    values = {key: state[key] for key in version["values"] if "." not in key}
    return {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in values.items()}


def test_optimizer_state_follows_the_names_of_its_parameters(tmp_path: Path) -> None:
    fixture = Fixture("0.1.0/one-rank", tmp_path / "run")
    fresh = build("one-rank", 7, fresh=True)
    norm, token = fresh.state["model"].norm, fresh.state["model"].token
    turned = torch.optim.AdamW([{"params": [norm.bias, norm.weight]}, {"params": [token.weight]}])
    with sw.Checkpointer(fixture.path, **SMALL) as ckpt:
        assert ckpt.restore({**fresh.state, "optim": turned}) == 7
    for number, parameter in enumerate([token.weight, norm.weight, norm.bias]):  # as it was saved
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert bits(turned.state[parameter][key]) == fresh.tensors[f"optim.state.{number}.{key}"].data
    assert [group["weight_decay"] for group in turned.param_groups] == [0.0, 0.01]


def test_a_version_that_was_set_aside_stays_and_is_not_restored(tmp_path: Path) -> None:
    fixture = Fixture("0.1.0/one-rank", tmp_path / "run")
    [damaged] = fixture.versions("set aside")
    with sw.Checkpointer(fixture.path, keep=1, keep_best=sw.Best("loss", 1), **SMALL) as ckpt:
        assert ckpt.restore(build("one-rank", 7, fresh=True).state) == 7
        ckpt.save(8, build("one-rank", 8).state)
    said = command("ls", fixture.path)
    assert [version["step"] for version in said["versions"]] == [2, 3, 8]  # the best, the pinned one, the newest
    assert [version["step"] for version in said["set_aside"]] == [damaged["step"]]


def run_as_ranks(world: int, work: Callable[[int], None]) -> None:
    """``work(rank)`` in a forked process for each rank. They talk through the directory: nothing has to be loaded."""
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
            code = 1
            try:
                work(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * world


@pytest.mark.parametrize("world", [4, 3, 2])
def test_ranks_restore_every_version_and_go_on(world: int, many: Fixture) -> None:
    """As many ranks as saved it, and fewer."""
    newest = many.live[-1]
    # An optimizer's first step makes torch load modules. Load them here once, not in every rank.
    build(many.case, newest["step"])
    for version in many.live:
        path, step = copy_of(many, version), version["step"]

        def restore(rank: int, path: Path = path, step: int = step) -> None:
            fresh = build(many.case, step, rank, world, fresh=True)
            with sw.Checkpointer(path, keep=0, rank=rank, world=world, coordinator="directory", **SMALL) as ckpt:
                assert ckpt.restore(fresh.state, None if step == newest["step"] else step) == step
                assert fresh.wrong() == []
                values = [key for key in ("epoch", "seat", "step") if key in fresh.values]
                assert [fresh.state[key] for key in values] == [fresh.values[key] for key in values]
                if step == newest["step"]:
                    ckpt.save(step + 1, build(many.case, step + 1, rank, world).state)

        run_as_ranks(world, restore)
    path = copy_of(many, newest)
    said = command("ls", path)
    assert said["newest_attempt"] == many.expected["newest_attempt"] + 1
    steps = [version["step"] for version in many.live]
    assert [version["step"] for version in said["versions"]] == [*steps, newest["step"] + 1]
    assert said["versions"][-1]["world"] == world
    for version in many.live:
        check_opened(path, version)
    assert command("verify", path)["ok"]


def test_one_rank_restores_what_several_saved(many: Fixture) -> None:
    for version in many.live:
        fresh = build(many.case, version["step"], fresh=True)
        with sw.Checkpointer(many.path, keep=0, **SMALL) as ckpt:
            assert ckpt.restore(fresh.state, version["step"]) == version["step"]
        assert fresh.wrong() == []
