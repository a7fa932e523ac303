"""Bad input, one test each, with its message."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slackwater as sw
import torch
from support import data_file, python, step_directory

Make = Callable[..., sw.Checkpointer]
SaveOnce = Callable[..., Path]


def test_parent_that_is_a_file(tmp_path: Path, make: Make) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(sw.Error, match="taken"):
        make(tmp_path / "taken" / "run")
    assert (tmp_path / "taken").read_text() == "mine"


def test_unwritable_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    result = python(
        """
        import os, sys, slackwater as sw
        if os.geteuid() == 0:
            os.setuid(65534)   # root may write anywhere
        try:
            sw.Checkpointer(sys.argv[1])
        except sw.PermissionDeniedError as error:
            print(isinstance(error, PermissionError), error.errno, error)
        """,
        tmp_path / "run",
    )
    assert result.stdout.startswith("True 13 ")
    assert str(tmp_path) in result.stdout


def test_directory_that_cannot_be_made(make: Make) -> None:
    with pytest.raises(sw.Error, match="/proc/"):
        make("/proc/slackwater-run")


def test_path_that_is_a_file(tmp_path: Path, make: Make) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(sw.Error, match="run"):
        make(tmp_path / "run")


def test_path_of_another_kind(make: Make) -> None:
    with pytest.raises(sw.UsageError, match="gs://bucket/run"):
        make("gs://bucket/run")
    with pytest.raises(sw.UsageError, match="path is empty"):
        make("")
    with pytest.raises(sw.UsageError, match="path is an int"):
        make(3)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """8 MiB of tmpfs: needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_fails_the_snapshot_and_training_goes_on(
    small_disk: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt = make(small_disk / "run")
    ckpt.save(1, {"t": torch.ones(1000)})
    ckpt.wait()
    snapshot = ckpt.save(2, {"t": torch.ones(4_000_000)})
    assert snapshot is not None
    ckpt.fence()
    with pytest.raises(sw.NoSpaceError) as caught:
        snapshot.wait(timeout=60)
    assert caught.value.errno == 28
    assert isinstance(caught.value, OSError)
    assert isinstance(snapshot.error, sw.NoSpaceError)
    with pytest.raises(sw.NoSpaceError):
        ckpt.wait()
    assert ckpt.steps() == [1]
    ckpt.save(3, {"t": torch.ones(1000)})
    ckpt.wait()
    assert ckpt.latest_step() == 3
    ckpt.close()
    assert "step 2" in caplog.text


def test_full_disk_without_root(path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    result = python(
        """
        import resource, signal, sys, numpy as np, slackwater as sw
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ckpt = sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB")
        ckpt.save(1, {"a": np.ones(10)}); ckpt.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
        snapshot = ckpt.save(2, {"a": np.ones(1 << 20)})
        ckpt.fence()
        try:
            ckpt.wait()
        except sw.StorageError as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ckpt.save(3, {"a": np.ones(10)})
        ckpt.close()
        print(sw.open(sys.argv[1]).step)
        """,
        path,
    )
    assert "Error" in result.stdout
    assert result.stdout.endswith("3\n")


def test_step_saved_twice(make: Make) -> None:
    ckpt = make()
    ckpt.save(5, {"t": torch.ones(1)})
    with pytest.raises(sw.UsageError, match="5"):
        ckpt.save(5, {"t": torch.ones(1)})


def test_step_smaller_than_the_last(make: Make) -> None:
    ckpt = make()
    ckpt.save(5, {"t": torch.ones(1)})
    with pytest.raises(sw.UsageError, match=r"4.*5"):
        ckpt.save(4, {"t": torch.ones(1)})
    ckpt.save(6, {"t": torch.ones(1)})
    ckpt.wait()
    assert ckpt.steps() == [5, 6]


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, True, 1 << 63])
def test_step_that_is_no_whole_number(step: object, make: Make) -> None:
    with pytest.raises(sw.UsageError, match="step is"):
        make().save(step, {})  # type: ignore[arg-type]


def test_fresh_start_over_later_steps(save_once: SaveOnce, make: Make, path: Path) -> None:
    """A run that did not restore must not silently end up beside the checkpoints of another."""
    save_once({"t": torch.ones(1)}, step=10)
    ckpt = make()
    with pytest.raises(sw.UsageError, match=r"10.*restore"):
        ckpt.save(1, {"t": torch.ones(1)})
    ckpt.close()
    assert sw.open(path).step == 10


def test_empty_directory_restores_nothing(make: Make) -> None:
    state = {"t": torch.ones(1)}
    assert make().restore(state) is None
    assert state["t"].item() == 1


def test_save_after_close(make: Make) -> None:
    ckpt = make()
    ckpt.close()
    ckpt.close()
    for call in (
        lambda: ckpt.save(1, {}),
        lambda: ckpt.restore({}),
        ckpt.fence,
        ckpt.wait,
        ckpt.steps,
        lambda: ckpt.pin(1),
        lambda: ckpt.delete(1),
        lambda: ckpt.fence_on([], "x"),
    ):
        with pytest.raises(sw.ClosedError, match="closed"):
            call()


STATE = {"t": torch.arange(1000.0), "n": 1}


def damaged(path: Path, make: Make) -> str:
    """The message of a restore that finds only this damaged step."""
    with pytest.raises(sw.DamagedError) as caught:
        make().restore({"t": torch.zeros(1000), "n": 0})
    return str(caught.value)


def test_truncated_file(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    file = data_file(path, 1)
    os.truncate(file, file.stat().st_size - 100)
    assert "rank-00000.safetensors" in damaged(path, make)


def test_empty_file(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    os.truncate(data_file(path, 1), 0)
    assert "rank-00000.safetensors" in damaged(path, make)


def test_missing_file(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    data_file(path, 1).unlink()
    assert "step 1" in damaged(path, make)


@pytest.mark.parametrize("place", [0, 20, 5000, -1])
def test_flipped_bit(place: int, save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    file = data_file(path, 1)
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)
    assert "rank-00000.safetensors" in damaged(path, make)


def test_header_that_claims_too_much(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    file = data_file(path, 1)
    data = bytearray(file.read_bytes())
    data[:8] = struct.pack("<Q", 1 << 60)
    file.write_bytes(data)
    assert "rank-00000.safetensors" in damaged(path, make)


def test_manifest_with_names_that_leave_the_directory(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    manifest = step_directory(path, 1) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("rank-00000", "../../etc"))
    with pytest.raises(sw.DamagedError, match="manifest"):
        sw.open(path, 1)
    assert "manifest" in damaged(path, make)


def test_manifest_that_is_no_json(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    (step_directory(path, 1) / "manifest.json").write_text("{")
    assert "manifest" in damaged(path, make)


def test_directory_copied_under_another_step(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    directory = step_directory(path, 1)
    shutil.copytree(directory, directory.with_name(directory.name.replace("0001", "0009")))
    assert make().restore({"t": torch.zeros(1000), "n": 0}) == 1


def test_two_runs_on_one_directory(make: Make, path: Path) -> None:
    make()
    with pytest.raises(sw.BusyError, match="this process already has it open"):
        make()
    assert "BusyError" in python("import sys, slackwater as sw; sw.Checkpointer(sys.argv[1])", path, check=False).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "1MiB", "slab": "8MiB"}, "two slabs"),
        ({"pool": "many"}, "option 'pool' was given 'many'"),
        ({"pool": [1]}, "pool is a list"),
        ({"keep": -1}, "option 'keep' was given '-1'"),
        ({"every": 0}, "every is 0"),
        ({"in_flight": 0}, "option 'in_flight'"),
        ({"on_busy": "panic"}, "option 'on_busy'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"on_damage": "ignore"}, "option 'on_damage'"),
        ({"tiers": [3]}, "a tier is an int"),
        ({"tiers": "/a"}, "tiers is a list"),
        ({"tiers": [sw.Tier("/a", every=0)]}, "tier option 'every'"),
        ({"tiers": ["gs://bucket/run"]}, "neither a directory nor s3://"),
        ({"stall_timeout": -1.0}, "option 'stall_timeout'"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, make: Make) -> None:
    with pytest.raises(sw.UsageError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keeps": 3}, "unknown option 'keeps' of sw.Checkpointer; did you mean 'keep'?"),
        ({"stall_time": 3}, "unknown option 'stall_time' of sw.Checkpointer; did you mean 'stall_timeout'?"),
        ({"xyz": 3}, "unknown option 'xyz' of sw.Checkpointer; help(sw.Checkpointer) lists them all"),
        ({"selfs": 3}, "unknown option 'selfs' of sw.Checkpointer; help(sw.Checkpointer) lists them all"),
    ],
)
def test_an_option_that_does_not_exist(options: dict[str, object], message: str, make: Make, path: Path) -> None:
    for kind in (TypeError, sw.UsageError):
        with pytest.raises(kind) as caught:
            make(**options)
        assert str(caught.value) == message
    assert not path.exists()


def test_an_option_that_other_calls_do_not_have(make: Make, tmp_path: Path) -> None:
    ckpt = make()
    calls: list[tuple[str, str, str, Callable[..., object]]] = [
        ("evry", "every", "sw.Tier", lambda **options: sw.Tier("/a", **options)),
        ("meta_data", "metadata", "sw.Checkpointer.save", lambda **options: ckpt.save(1, STATE, **options)),
        ("keep_hyperparams", "keep_hyperparameters", "sw.Checkpointer.restore", lambda **o: ckpt.restore({}, **o)),
    ]
    for wrong, right, of, call in calls:
        with pytest.raises(sw.UnknownOptionError) as caught:
            call(**{wrong: 2})
        assert str(caught.value) == f"unknown option '{wrong}' of {of}; did you mean '{right}'?"
    with pytest.raises(sw.UnknownOptionError, match="did you mean 'strict'"), ckpt.resume({}, strictly=True):
        pass
    assert ckpt.save(1, STATE, metadata={"loss": 1.0}) is not None, "known ones are taken"
    with pytest.raises(TypeError, match="positional"):
        sw.Checkpointer("a", "b")  # type: ignore[misc]


def test_wrong_level(make: Make) -> None:
    ckpt = make()
    snapshot = ckpt.save(1, {"t": torch.ones(1)})
    assert snapshot is not None
    for waiting in (snapshot.wait, ckpt.wait):
        with pytest.raises(sw.UsageError, match="'staged', 'durable', 'committed'"):
            waiting("finished")  # type: ignore[arg-type]


def test_errors_are_also_built_in_ones_and_can_be_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(sw.NoSpaceError("full", path="/x", errno=28)))
    assert (str(error), error.path, error.filename, error.errno, error.retryable) == ("full", "/x", "/x", 28, False)
    assert error.tensor == ""
    assert pickle.loads(pickle.dumps(sw.TornError("torn", tensor="w"))).tensor == "w"
    for kind, built_in in {
        sw.UsageError: ValueError,
        sw.StorageError: OSError,
        sw.TimeoutError: TimeoutError,
        sw.ClosedError: RuntimeError,
        sw.UnsupportedError: TypeError,
        sw.MismatchError: ValueError,
        sw.NotFoundError: LookupError,
        sw.OutOfMemoryError: MemoryError,
    }.items():
        assert issubclass(kind, built_in) and issubclass(kind, sw.Error)


def test_manifest_is_what_makes_a_checkpoint(save_once: SaveOnce, make: Make, path: Path) -> None:
    save_once(STATE)
    manifest = step_directory(path, 1) / "manifest.json"
    assert json.loads(manifest.read_text())["step"] == 1
    manifest.unlink()
    assert make().restore({"t": torch.zeros(1000), "n": 0}) is None


def test_arguments_of_save_in_the_wrong_order(make: Make) -> None:
    ckpt = make()
    model = torch.nn.Linear(2, 2)
    with pytest.raises(sw.UsageError) as caught:
        ckpt.save({"model": model}, 1)  # type: ignore[arg-type]
    assert str(caught.value) == "step is a dict; the order is save(step, state)"
    with pytest.raises(sw.UsageError) as caught:
        ckpt.save(model, {"model": model})  # type: ignore[arg-type]
    assert str(caught.value) == "step is a Linear; it is a whole number, 0 or more"


def test_an_empty_state(make: Make) -> None:
    with pytest.raises(sw.UsageError, match=r"the state is empty; give a dict such as \{'model': model"):
        make().save(1, {})


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_data_loader_without_state(allow_pickle: bool, make: Make) -> None:
    loader = torch.utils.data.DataLoader([1, 2, 3])
    with pytest.raises(sw.UnsupportedError) as caught:
        make(allow_pickle=allow_pickle).save(1, {"train": {"loader": loader}})
    assert str(caught.value) == (
        "'train.loader' is a torch.utils.data.dataloader.DataLoader, which has no state; "
        "use torchdata's StatefulDataLoader (docs/guide/data-loaders.md)"
    )


def test_messages_have_the_article_that_belongs_to_the_noun(make: Make) -> None:
    ckpt = make()
    with pytest.raises(sw.UsageError, match="the state is an int;"):
        ckpt.save(1, 2)  # type: ignore[arg-type]
    with pytest.raises(sw.UsageError, match="the state is an int;"):
        ckpt.restore(2)  # type: ignore[arg-type]
    with pytest.raises(sw.UnsupportedError, match="'x' is an object,"):
        ckpt.save(1, {"x": object()})
