"""The engine behind DeepSpeed's "datastates_ckpt": tags, stubs, retention, bad input. Without DeepSpeed itself."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from datastates import CheckpointEngine
from rank_processes import run_ranks
from slackwater.integrations.deepspeed import settings, tag_directory
from slackwater.integrations.deepspeed.__main__ import main as command
from support import same

FILE = "mp_rank_00_model_states.pt"
OPTIM = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
SMALL: dict[str, Any] = {"host_cache_size": 4 / 1024, "slab": "1MiB"}
Make = Callable[..., CheckpointEngine]


@pytest.fixture
def make() -> Iterator[Make]:
    engines = []

    def make_one(config: dict[str, Any] | None = None, **keys: Any) -> CheckpointEngine:
        engines.append(CheckpointEngine({**(config or {}), "datastates_ckpt": {**SMALL, **keys}}, 0))
        return engines[-1]

    yield make_one
    for engine in engines:
        engine._writer.close_quietly()


def save(engine: CheckpointEngine, run: Path, tag: str, state: Any, file: str = FILE) -> Path:
    (run / tag).mkdir(parents=True, exist_ok=True)
    engine.save(state, str(run / tag / file))
    return run / tag / file


def state_of(value: float = 1.0) -> dict[str, Any]:
    return {
        "module": OrderedDict(weight=torch.full((300, 70), value), bias=torch.arange(5.0).to(torch.bfloat16)),
        "param_shapes": [OrderedDict(weight=torch.Size([300, 70]))],
        "args": argparse.Namespace(lr=1e-3, betas=(0.9, 0.95)),
        "ds_config": {"zero_optimization": {"stage": 2}, "note": None},
        "global_steps": 7,
    }


def test_a_state_comes_back_as_it_was_more_than_once(make: Make, tmp_path: Path) -> None:
    engine = make()
    path = save(engine, tmp_path, "global_step7", state_of())
    engine.wait(persist=True)
    other = make()  # did not save it
    for loader in (engine, engine, other):
        assert same(loader.load(str(path), map_location=lambda storage, location: storage), state_of())
    for where in ("cpu", torch.device("cpu"), None, {"cuda:0": "cpu"}):
        assert same(other.load(path, where), state_of())
    assert other.load(path, torch.device("meta"))["module"]["weight"].is_meta
    moved = other.load(path, lambda storage, location: storage.clone())
    assert same(moved, state_of())
    with pytest.raises(sw.UsageError, match="map_location"):
        other.load(path, 7)


@pytest.mark.parametrize("closing", ["step", "other tag", "wait"])
def test_what_closes_a_tag(make: Make, tmp_path: Path, closing: str) -> None:
    engine = make()
    save(engine, tmp_path, "a", state_of())
    save(engine, tmp_path, "a", state_of(2), OPTIM)
    assert not (tmp_path / "latest").exists()
    if closing == "step":
        weight = torch.nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)
        torch.optim.SGD([weight], lr=0.1).step()
        engine._writer._finisher.drain(None)
    elif closing == "other tag":
        save(engine, tmp_path, "b", state_of())
        engine._writer._finisher.drain(None)
    else:
        engine.wait(persist=True)
    assert (tmp_path / "latest").read_text() == "a"
    manifest = tag_directory.TagDirectory(str(tmp_path / "a")).manifest()
    assert manifest is not None and set(manifest.files) == {FILE, OPTIM}


def test_the_update_waits_for_the_copies(make: Make, tmp_path: Path) -> None:
    """The state is many times larger than the pool, so the copies cannot be done when the step begins."""
    engine = make(host_cache_size=2 / 1024)
    model = torch.nn.Linear(2_000, 4_000)
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    expected = []
    for step in range(3):
        expected.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        save(engine, tmp_path, f"global_step{step}", {"module": model.state_dict()})
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optim.step()
    engine.wait(persist=True)  # raises if one was torn
    for step in range(3):
        loaded = engine.load(tmp_path / f"global_step{step}" / FILE)["module"]
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected[step].items())


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
        {"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}},
        {"datastates_ckpt": {}},
    ],
)
def test_optimizers_that_update_elsewhere_are_captured_at_once(
    make: Make, tmp_path: Path, config: dict[str, Any]
) -> None:
    engine = make(config, **({} if "zero_optimization" in config else {"capture": "at_once"}))
    tensor = torch.zeros(3_000_000)
    path = save(engine, tmp_path, "a", {"optimizer_state_dict": {"fp32": tensor}})
    tensor.fill_(1)  # nobody fences this
    engine.wait(persist=True)
    assert engine.load(path)["optimizer_state_dict"]["fp32"].count_nonzero() == 0


def test_buffers_that_change_in_the_next_forward_pass_are_copied_at_once(make: Make, tmp_path: Path) -> None:
    engine = make()
    module = OrderedDict(weight=torch.zeros(1000), mean=torch.zeros(500_000))
    path = save(engine, tmp_path, "a", {"module": module, "buffer_names": ["mean"]})
    module["mean"].fill_(1)
    engine.wait(persist=True)
    assert engine.load(path)["module"]["mean"].count_nonzero() == 0


def test_latest_can_be_left_to_the_user(make: Make, tmp_path: Path) -> None:
    engine = make(write_latest=False)
    path = save(engine, tmp_path, "a", state_of())
    engine.wait(persist=True)
    assert not (tmp_path / "latest").exists() and same(engine.load(path), state_of())


def test_keep_removes_older_tags_but_no_files_of_others(make: Make, tmp_path: Path) -> None:
    engine = make(keep=2)
    for number in range(4):
        save(engine, tmp_path, f"global_step{number}", state_of(number))
        (tmp_path / "global_step0" / "mine.txt").write_text("mine")
    engine.wait(persist=True)
    assert sorted(path.name for path in tmp_path.glob("global_step*")) == [
        "global_step0",
        "global_step2",
        "global_step3",
    ]
    assert [path.name for path in (tmp_path / "global_step0").iterdir()] == ["mine.txt"]
    again = make(keep=1)  # another run counts on from there
    save(again, tmp_path, "global_step9", state_of(9))
    again.wait(persist=True)
    assert sorted(path.name for path in tmp_path.glob("global_step*")) == ["global_step0", "global_step9"]


def test_a_tag_saved_again_stays_as_it_was_until_it_is_complete(make: Make, tmp_path: Path) -> None:
    engine = make()
    path = save(engine, tmp_path, "best", state_of(1))
    engine.wait(persist=True)
    save(engine, tmp_path, "best", state_of(2))
    engine._writer._finisher.drain(None)  # in place, but the tag is still open
    assert same(make().load(path), state_of(1))
    engine.wait(persist=True)
    assert same(make().load(path), state_of(2))
    assert len(list((tmp_path / "best" / "slackwater").iterdir())) == 2  # one version, and the manifest


def test_an_incomplete_tag_does_not_load(make: Make, tmp_path: Path) -> None:
    engine = make()
    path = save(engine, tmp_path, "a", state_of())
    engine._writer._finisher.drain(None)
    assert path.exists()  # its stub and its data are there
    with pytest.raises(sw.NotFoundError, match="not complete"):
        make().load(path)


def test_an_exception_in_the_middle_of_a_tag_gives_it_up(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    save(engine, tmp_path, "a", state_of())
    monkeypatch.setattr(sys, "last_value", RuntimeError("a rank died"), raising=False)
    with pytest.raises(sw.ClosedError, match="ended with an exception"):
        engine.wait(persist=True)
    assert not (tmp_path / "latest").exists()
    with pytest.raises(sw.NotFoundError):
        make().load(tmp_path / "a" / FILE)


def test_storage_trouble_is_logged_and_raised_by_wait_only(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make()
    (tmp_path / "run").write_text("a file, not a directory")
    engine.save(state_of(), str(tmp_path / "run" / "a" / FILE))  # training goes on
    with pytest.raises(OSError, match="checkpoint 'a'"):
        engine.wait(persist=True)
    assert "was not saved" in caplog.text
    engine.wait(persist=True)  # reported once
    path = save(engine, tmp_path / "better", "b", state_of())
    engine.wait(persist=True)
    assert same(engine.load(path), state_of())


def test_a_torn_state_is_never_complete(make: Make, tmp_path: Path) -> None:
    engine = make(host_cache_size=2 / 1024)
    tensor = torch.zeros(8_000_000)
    save(engine, tmp_path, "a", {"module": {"w": tensor}})
    tensor.fill_(1)  # without a fence
    with pytest.raises(sw.TornError, match="checkpoint 'a'"):
        engine.wait(persist=True)
    assert not (tmp_path / "latest").exists()


class Custom:
    def __init__(self) -> None:
        self.value = 3


def test_no_pickle_unless_it_is_allowed(make: Make, tmp_path: Path) -> None:
    engine = make()
    with pytest.raises(sw.UnsupportedError, match="client.*Custom.*allow_pickle"):
        save(engine, tmp_path, "a", {"client": Custom()})
    with pytest.raises(sw.UnsupportedError):
        engine.wait(persist=True)
    trusting = make(allow_pickle=True)
    path = save(trusting, tmp_path, "b", {"client": Custom()})
    trusting.wait(persist=True)
    assert trusting.load(path)["client"].value == 3
    with pytest.raises(sw.UnsupportedError, match="allow_pickle"):
        make().load(path)


def test_objects_of_deepspeed_come_back_without_pickle(make: Make, tmp_path: Path) -> None:
    from slackwater.integrations.deepspeed.objects import from_plain

    for bad in (
        {"__deepspeed_object__": ["os", "system"], "state": {}},
        {"__deepspeed_object__": ["deepspeed.utils.tensor_fragment", "fragment_address"], "state": {"x": 1}},
        {"__deepspeed_object__": "no list", "state": {}},
        {"__deepspeed_object__": ["deepspeed.utils.tensor_fragment", "fragment_address"]},
    ):
        with pytest.raises(sw.Error):
            from_plain(bad)
    with pytest.raises(sw.UsageError, match="uses itself"):
        save(make(), tmp_path, "a", {"__deepspeed_object__": 1})


def test_torch_load_reads_a_stub_wherever_it_lies(make: Make, tmp_path: Path) -> None:
    engine = make()
    path = save(engine, tmp_path / "run", "a", state_of())
    engine.wait(persist=True)
    assert same(torch.load(path, map_location="cpu", mmap=True, weights_only=False), state_of())
    alone = tmp_path / "universal" / FILE  # as DeepSpeed's universal tool copies it
    alone.parent.mkdir()
    shutil.copy(path, alone)
    assert same(torch.load(alone, weights_only=False), state_of())
    assert same(make().load(alone), state_of())
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert same(torch.load(tmp_path / "moved" / "a" / FILE, weights_only=False), state_of())
    with pytest.raises(sw.NotFoundError, match="copy the whole folder"):
        torch.load(alone, weights_only=False)


def test_export_writes_a_checkpoint_of_torch_files(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make()
    save(engine, tmp_path / "run", "a", state_of())
    save(engine, tmp_path / "run", "a", state_of(2), OPTIM)
    engine.wait(persist=True)
    assert command(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "latest").read_text() == "a" and OPTIM in capsys.readouterr().out
    assert same(torch.load(tmp_path / "out" / "a" / OPTIM, weights_only=False), state_of(2))
    for wrong in (["--tag", "../a"], ["--tag", "b"], []):  # no tag, not complete, exists already
        assert command(["export", str(tmp_path / "run"), str(tmp_path / "out"), *wrong]) == 1
    assert capsys.readouterr().err.count("error: ") == 3


def test_files_that_deepspeed_does_not_load_are_files_of_torch(make: Make, tmp_path: Path) -> None:
    make().save({"w": torch.ones(3)}, str(tmp_path / "pytorch_model.bin"))
    assert same(torch.load(tmp_path / "pytorch_model.bin", weights_only=True), {"w": torch.ones(3)})


def test_a_checkpoint_of_the_torch_engine_loads(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    torch.save({"module": {"w": torch.ones(3)}}, tmp_path / "a" / FILE)
    assert same(make().load(tmp_path / "a" / FILE, "cpu"), {"module": {"w": torch.ones(3)}})
    torch.save({"client": Custom()}, tmp_path / "a" / FILE)
    with pytest.raises(sw.UnsupportedError, match="allow_pickle"):
        make().load(tmp_path / "a" / FILE)
    assert make(allow_pickle=True).load(tmp_path / "a" / FILE)["client"].value == 3


def test_hostile_directories_are_refused(make: Make, tmp_path: Path) -> None:
    engine = make()
    path = save(engine, tmp_path, "a", state_of())
    save(engine, tmp_path, "b", state_of(2))
    engine.wait(persist=True)
    manifest = tmp_path / "a" / "slackwater" / "manifest.json"
    good = manifest.read_bytes()
    content = json.loads(good.rpartition(b"\n")[0].rpartition(b"\n")[0])

    def sealed(**changes: Any) -> bytes:
        return tag_directory._seal({**content, **changes})

    fields = content["files"][FILE]
    for bad in (
        good[:-40],
        good.replace(b'"world": 1', b'"world": 2'),
        b"",
        sealed(files=[]),
        sealed(files={FILE: {**fields, "folder": "../../b/slackwater/" + FILE}}),
        sealed(files={FILE: {**fields, "file": "other"}}),
        sealed(files={FILE: {**fields, "step": "1"}}),
        sealed(files={FILE: {"x": 1}}),
        sealed(format=99),
    ):
        manifest.write_bytes(bad)
        with pytest.raises((sw.DamagedError, sw.UnsupportedError)):
            engine.load(path)
    manifest.write_bytes(sealed(files={}))
    with pytest.raises(sw.NotFoundError, match="has no file"):
        engine.load(path)
    manifest.write_bytes(good)
    data = next((tmp_path / "a" / "slackwater" / FILE).glob("step-*/rank-00000.safetensors"))
    text = bytearray(data.read_bytes())
    text[-1] ^= 1
    data.write_bytes(bytes(text))
    with pytest.raises(sw.DamagedError):
        engine.load(path)
    shutil.rmtree(tmp_path / "a" / "slackwater" / FILE)  # the data of another tag in its place
    shutil.copytree(tmp_path / "b" / "slackwater" / FILE, tmp_path / "a" / "slackwater" / FILE)
    with pytest.raises(sw.Error):
        engine.load(path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / FILE).write_bytes(b"neither a stub nor an archive")
    with pytest.raises(Exception):  # noqa: B017  (whatever torch.load says)
        engine.load(tmp_path / "c" / FILE)
    with pytest.raises(sw.NotFoundError):
        engine.load(tmp_path / "d" / FILE)


def test_unknown_keys_are_named_with_the_nearest_known_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "slackwater"):
        settings.Settings({"datastates_ckpt": {"host_cache_sise": 4, "zzz": 1}})
    assert (
        '"host_cache_sise" (did you mean "host_cache_size"?)' in caplog.text and '"zzz"; it is ignored' in caplog.text
    )


@pytest.mark.parametrize(
    "section", [{"host_cache_size": -1}, {"keep": True}, {"capture": "late"}, {"slab": []}, 7, "yes"]
)
def test_wrong_values_are_refused_by_name(section: Any) -> None:
    with pytest.raises(sw.UsageError, match="datastates_ckpt"):
        settings.Settings({"datastates_ckpt": section})


def test_the_docs_have_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrations" / "deepspeed.md").read_text()
    assert [key for key in settings.KEYS if f"| `{key}` |" not in page] == []


def test_debris_of_a_killed_process_is_removed(make: Make, tmp_path: Path) -> None:
    debris = tmp_path / ".slackwater-spool" / "rank-00000.1.abcd"
    (debris / ".slackwater").mkdir(parents=True)
    (debris / ".slackwater" / "lock").write_text("killed")
    engine = make()
    save(engine, tmp_path, "a", state_of())
    engine.close()
    assert not (tmp_path / ".slackwater-spool").exists()


RANKS = """
from datastates import CheckpointEngine

def main(rank):
    join(rank)
    keys = {"host_cache_size": 4 / 1024, "slab": "1MiB"}
    engine = CheckpointEngine({"datastates_ckpt": keys}, rank)
    weight = torch.nn.Parameter(torch.ones(3))
    optim = torch.optim.SGD([weight], lr=0.1)
    for step in (1, 2, 3):
        tag = f"{path}/global_step{step}"
        os.makedirs(tag, exist_ok=True)
        # Rank 0 writes two files, rank 1 one, rank 2 none.
        if rank == 0:
            engine.save({"module": {"w": torch.full((1000,), float(step))}}, f"{tag}/mp_rank_00_model_states.pt")
        if rank < 2:
            state = {"fp32": torch.full((500_000,), float(10 * step + rank))}
            if step == 2 and rank == 1:
                engine._writer._tag_of(tag).fail(OSError(28, "No space left on device"))
            engine.save(state, f"{tag}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        dist.barrier()  # as save_checkpoint does
        weight.grad = torch.ones(3)
        optim.step()
    try:
        engine.wait(persist=True)
        print(f"{rank}: no error")
    except OSError as error:
        print(f"{rank}: {'No space left' in str(error)}")
    except sw.AbortedError as error:
        print(f"{rank}: {'rank 1' in str(error) and 'No space left' in str(error)}")
    dist.barrier()
    print(f"{rank}: " + open(f"{path}/latest").read())
    state = engine.load(f"{path}/global_step3/zero_pp_rank_{rank % 2}_mp_rank_00_optim_states.pt", "cpu")
    print(f"{rank}: {state['fp32'][0].item()}")
    try:
        engine.load(f"{path}/global_step2/mp_rank_00_model_states.pt")
        print(f"{rank}: loaded")
    except sw.NotFoundError:
        print(f"{rank}: not complete")
    engine.close()
"""


def test_a_tag_is_complete_only_if_all_ranks_have_written_their_files(tmp_path: Path) -> None:
    result = run_ranks(RANKS, 3, tmp_path)
    assert result["codes"] == [0, 0, 0], result["errors"]
    assert result["lines"] == sorted(
        [
            *("0: True", "0: global_step3", "0: 30.0", "0: not complete"),
            *("1: True", "1: global_step3", "1: 31.0", "1: not complete"),
            *("2: no error", "2: global_step3", "2: 30.0", "2: not complete"),
        ]
    )
    manifest = tag_directory.TagDirectory(str(tmp_path / "global_step3")).manifest()
    assert manifest is not None and len(manifest.files) == 3 and manifest.world == 3
