"""SlackwaterCallback: killed and resumed, a fit ends as if it had never stopped (trainer_cases.py trains)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from support import library, same
from torch import nn
from trainer_runs import Runs, assert_same, steps_of

L: Any = library("lightning")

SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


@pytest.mark.parametrize(
    ("options", "kills"),
    [
        ((), (3, 6, 13)),  # 6 is the last step of an epoch
        (("stateful=true",), (5, 12)),
        (("endless=true",), (3, 7)),
        (("workers=2",), (7,)),
        (("manual=true",), (4, 24)),  # two optimizers; 24 is the last of an epoch
        (("max_steps=14",), (5, 12)),
        (("validate=0.5",), (3, 8)),  # after a validation within an epoch
    ],
    ids=["plain", "stateful", "no-length", "workers", "manual", "max-steps", "validation"],
)
def test_killed_fit_ends_with_the_same_bits(options: tuple[str, ...], kills: tuple[int, ...], runs: Runs) -> None:
    assert_same(*runs.ends("lightning", *options, kills=kills))


def test_killed_fit_on_two_ranks_ends_with_the_same_bits(runs: Runs) -> None:
    assert_same(*runs.ends("lightning", kills=(4,), ranks=2))


def test_random_states_that_are_set_too_early_end_with_other_bits(runs: Runs) -> None:
    [whole], [killed] = runs.ends("lightning", "early=true", kills=(4,))
    assert not same(whole[0]["model"], killed[0]["model"])


@pytest.mark.parametrize("fence", [True, False])
def test_update_without_the_fence_costs_the_checkpoint(fence: bool, runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "lightning", f"fence={str(fence).lower()}", "max_steps=2")
    assert steps_of(where) == ([1, 2] if fence else [2])


# In this process


class Module(L.LightningModule):
    def __init__(self, hidden: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.module = nn.Linear(2, hidden)  # called as DDP calls what it wraps
        self.seen: list[Any] = []

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(batch.tolist())
        loss = self.module(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("val", self.module(batch).mean())

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2), batch_size=2)


def trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        **{"max_epochs": 2, "enable_checkpointing": False, **quiet, **options},
    )


def callback(path: Path, every: int = 1, **options: Any) -> Any:
    from slackwater.integrations.lightning import SlackwaterCallback

    return SlackwaterCallback(path, every, **{**SMALL, "keep": 0, **options})


def io(**options: Any) -> Any:
    from slackwater.integrations.lightning import SlackwaterCheckpointIO

    return SlackwaterCheckpointIO(**{**SMALL, **options})


def steps(path: Path) -> list[int]:
    return sorted(int(found.parent.name[5:15]) for found in path.glob("step-*/manifest.json"))


@pytest.mark.parametrize(("options", "saved"), [({}, [3, 6]), ({"save_last": True}, [3, 6, 8])])
def test_every_third_step_is_saved_and_the_last_on_request(options: Any, saved: list[int], tmp_path: Path) -> None:
    trainer(callback(tmp_path, 3, **options)).fit(Module(), loader())
    assert steps(tmp_path) == saved


def test_fast_dev_run_saves_nothing(tmp_path: Path) -> None:
    trainer(callback(tmp_path / "run"), fast_dev_run=True).fit(Module(), loader(), loader())
    assert not (tmp_path / "run").exists()


def test_validation_alone_takes_the_weights_and_no_lock(tmp_path: Path) -> None:
    module = Module()
    trainer(callback(tmp_path)).fit(module, loader())
    holder = sw.Checkpointer(tmp_path, **SMALL)  # another run trains on
    for run in ("validate", "test"):
        other = Module()
        getattr(trainer(callback(tmp_path)), run)(other, loader(), ckpt_path="slackwater")
        assert same(dict(other.state_dict()), dict(module.state_dict()))
    holder.close()


def test_fit_goes_on_from_a_step_that_is_asked_for(tmp_path: Path) -> None:
    module = Module()
    trainer(callback(tmp_path)).fit(module, loader())
    again = Module()
    trainer(callback(tmp_path)).fit(again, loader(), ckpt_path="slackwater@3")
    assert again.seen == module.seen[3:]
    assert same(dict(again.state_dict()), dict(module.state_dict()))
    with pytest.raises(sw.NotFoundError):
        trainer(callback(tmp_path)).fit(Module(), loader(), ckpt_path="slackwater@77")


def test_longer_fit_continues_an_epoch_that_max_steps_cut_short(tmp_path: Path) -> None:
    whole, part = Module(), Module()
    part.load_state_dict(whole.state_dict())
    trainer(max_steps=6, max_epochs=-1).fit(whole, loader())
    trainer(callback(tmp_path), max_steps=3, max_epochs=-1).fit(part, loader())
    rest = Module()
    trainer(callback(tmp_path), max_steps=6, max_epochs=-1).fit(rest, loader(), ckpt_path="slackwater")
    assert part.seen + rest.seen == whole.seen
    assert same(dict(rest.state_dict()), dict(whole.state_dict()))


def test_mean_over_an_epoch_counts_the_batches_before_the_restart(tmp_path: Path) -> None:
    class Mean(Module):
        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            self.log("mean", batch.mean(), on_epoch=True)
            return super().training_step(batch)

    whole = trainer(callback(tmp_path))
    whole.fit(Mean(), loader())
    rest = trainer(callback(tmp_path))
    rest.fit(Mean(), loader(), ckpt_path="slackwater@6")
    assert same(rest.callback_metrics["mean_epoch"], whole.callback_metrics["mean_epoch"])
    assert whole.callback_metrics["mean_epoch"].item() == 7.5


def test_two_callbacks_save_into_two_directories(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    module = Module()
    trainer(callback(first), callback(second, 4)).fit(module, loader())
    assert (steps(first), steps(second)) == ([1, 2, 3, 4, 5, 6, 7, 8], [4, 8])
    again = Module()
    both = [callback(first), callback(second, 4)]
    trainer(*both, max_epochs=3).fit(again, loader(), ckpt_path="slackwater")
    assert len(again.seen) == 4
    assert (steps(first)[-1], steps(second)) == (12, [4, 8, 12])


def test_loader_without_state_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with caplog.at_level(logging.WARNING, logger="slackwater"):
        trainer(callback(tmp_path / "a"), max_steps=1).fit(Module(), loader())
        assert "a DataLoader of the fit keeps no state" in caplog.text
        caplog.clear()
        stateful: Any = StatefulDataLoader(torch.zeros(8, 2), batch_size=2)
        trainer(callback(tmp_path / "b"), max_steps=1).fit(Module(), stateful)
        assert "keeps no state" not in caplog.text


def test_hooks_that_change_the_checkpoint_are_followed(tmp_path: Path) -> None:
    class Own(Module):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"count": 7}
            checkpoint["state_dict"] = {f"renamed.{key}": value for key, value in checkpoint["state_dict"].items()}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.mine = checkpoint["mine"]
            saved = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {key.removeprefix("renamed."): value for key, value in saved}

    module, again = Own(), Own()
    trainer(callback(tmp_path)).fit(module, loader())
    trainer(callback(tmp_path)).fit(again, loader(), ckpt_path="slackwater")
    assert again.mine == {"count": 7}
    assert same(dict(again.state_dict()), dict(module.state_dict()))


def test_run_into_a_used_directory_is_one_sentence(tmp_path: Path) -> None:
    trainer(callback(tmp_path)).fit(Module(), loader())
    with pytest.raises(sw.UsageError, match=r"up to step 8, and this run begins at step 0; give fit\(ckpt_path="):
        trainer(callback(tmp_path)).fit(Module(), loader())
    trainer(callback(tmp_path), max_epochs=3).fit(Module(), loader(), ckpt_path="slackwater")  # the lock is free


def test_what_cannot_be_right_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(sw.UsageError, match="every is 0; it is a whole number, 1 or more"):
        callback(tmp_path, 0)
    with pytest.raises(sw.UsageError, match="path is an int"):
        callback(7)  # type: ignore[arg-type]
    with pytest.raises(sw.UsageError, match="'slackwater@x' names no checkpoint"):
        trainer(callback(tmp_path)).fit(Module(), loader(), ckpt_path="slackwater@x")


def test_exception_of_the_program_commits_what_is_in_flight(tmp_path: Path) -> None:
    class Fails(Module):
        def on_train_epoch_end(self) -> None:
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        trainer(callback(tmp_path)).fit(Fails(), loader())
    assert steps(tmp_path) == [1, 2, 3], "the last batch of an epoch is saved when the epoch has ended"
    again = Module()
    trainer(callback(tmp_path)).fit(again, loader(), ckpt_path="slackwater")
    assert len(again.seen) == 5


# CheckpointIO


def test_files_of_lightning_stay_as_they_are_beside_the_callback(tmp_path: Path) -> None:
    made = trainer(callback(tmp_path / "run"))
    module = Module()
    made.fit(module, loader())
    made.save_checkpoint(tmp_path / "x.ckpt")
    assert (tmp_path / "x.ckpt").is_file()
    again = Module.load_from_checkpoint(tmp_path / "x.ckpt")
    assert same(dict(again.state_dict()), dict(module.state_dict()))
    trainer(callback(tmp_path / "new"), max_epochs=3).fit(again, loader(), ckpt_path=tmp_path / "x.ckpt")
    assert steps(tmp_path / "new") == [9, 10, 11, 12]


def test_plugin_saves_loads_and_removes(tmp_path: Path) -> None:
    made, module = trainer(plugins=[io()]), Module()
    made.fit(module, loader())
    for _ in range(2):  # the second one goes over the first
        made.save_checkpoint(tmp_path / "x.ckpt", storage_options={"paranoid": True})
    assert same(dict(sw.load(tmp_path / "x.ckpt")["state_dict"]), dict(module.state_dict()))
    assert len(steps(tmp_path / "x.ckpt")) == 1
    again = Module()
    trainer(plugins=[io()], max_epochs=3).fit(again, loader(), ckpt_path=str(tmp_path / "x.ckpt"))
    assert again.seen == module.seen[:4]
    loaded = io().load_checkpoint(tmp_path / "x.ckpt", map_location=lambda storage, _: storage)
    assert same(loaded["state_dict"], io().load_checkpoint(tmp_path / "x.ckpt", map_location="cpu")["state_dict"])
    assert loaded["hyper_parameters"] == {"hidden": 2}
    io().remove_checkpoint(tmp_path / "x.ckpt")
    io().remove_checkpoint(tmp_path / "x.ckpt")
    assert not (tmp_path / "x.ckpt").exists()
    with pytest.raises(FileNotFoundError):
        io().load_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(TypeError, match="storage_options is of type int"):
        io().save_checkpoint({"a": 1}, tmp_path / "x.ckpt", storage_options=7)


@pytest.mark.parametrize("thread", [False, True], ids=["direct", "thread"])
def test_plugin_works_with_model_checkpoint(thread: bool, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    best = ModelCheckpoint(tmp_path, monitor="loss", save_top_k=1, save_last=True)
    plugin = AsyncCheckpointIO(io()) if thread else io()
    made = trainer(best, plugins=[plugin], enable_checkpointing=True, max_epochs=3)
    module = Module()
    made.fit(module, loader())
    if not thread:  # Lightning may remove what its thread has not written yet
        kept = sorted(path.name for path in tmp_path.iterdir())
        assert kept == sorted([Path(best.best_model_path).name, "last.ckpt"])
    again = Module()
    trainer(plugins=[io()]).validate(again, loader(), ckpt_path=best.last_model_path)
    assert same(dict(again.state_dict()), dict(module.state_dict()))


def test_plugin_still_reads_files_of_torch(tmp_path: Path) -> None:
    made, module = trainer(), Module()
    made.fit(module, loader())
    made.save_checkpoint(tmp_path / "x.ckpt")
    again = Module()
    trainer(plugins=[io()]).validate(again, loader(), ckpt_path=tmp_path / "x.ckpt")
    assert same(dict(again.state_dict()), dict(module.state_dict()))


def test_value_that_only_pickle_can_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(sw.UnsupportedError, match="mine"):
        io().save_checkpoint({"mine": object()}, tmp_path / "x.ckpt")


# What is never written over


def test_file_of_torch_stays_until_the_new_checkpoint_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"a": 1}, path)

    def fail(*given: Any, **options: Any) -> None:
        raise MemoryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(sw.Checkpointer, "save", fail)
        with pytest.raises(MemoryError):
            io().save_checkpoint({"a": 2}, path)
    assert torch.load(path) == {"a": 1}
    io().save_checkpoint({"a": 2}, path)
    assert io().load_checkpoint(path) == {"a": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["x.ckpt"]


def test_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    """save_last="link", after a resume: last.ckpt is a link to the best checkpoint."""
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    io().save_checkpoint({"a": 1}, best)
    last.symlink_to(best.name)
    io().save_checkpoint({"a": 2}, last)
    assert (io().load_checkpoint(best), io().load_checkpoint(last)) == ({"a": 1}, {"a": 2})
    last.rename(tmp_path / "other.ckpt")
    for target in ("best.ckpt", "nothing.ckpt"):
        last.symlink_to(target)
        io().remove_checkpoint(last)
        assert not last.is_symlink()
    assert io().load_checkpoint(best) == {"a": 1}


def test_fit_that_links_its_last_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(epochs: int, resume: Any) -> Any:
        best = ModelCheckpoint(tmp_path, monitor="loss", save_top_k=1, save_last="link")
        module = Module()
        trainer(best, plugins=[io()], enable_checkpointing=True, max_epochs=epochs).fit(
            module, loader(), ckpt_path=resume
        )
        return best, module

    first, module = fit(2, None)
    kept = io().load_checkpoint(first.best_model_path)
    second, module = fit(3, first.last_model_path)
    last = io().load_checkpoint(tmp_path / "last.ckpt")
    assert same(dict(last["state_dict"]), dict(module.state_dict()))
    if second.best_model_path == first.best_model_path:
        assert same(io().load_checkpoint(first.best_model_path), kept)


def test_weights_only_runs_no_pickle(tmp_path: Path) -> None:
    trusting = io(allow_pickle=True)
    trusting.save_checkpoint({"mine": Custom()}, tmp_path / "x.ckpt")
    assert trusting.load_checkpoint(tmp_path / "x.ckpt")["mine"].value == 3
    with pytest.raises(sw.UnsupportedError, match="allow_pickle"):
        trusting.load_checkpoint(tmp_path / "x.ckpt", weights_only=True)


class Custom:
    value = 3


def test_callback_that_allows_pickles_passes_that_on(tmp_path: Path) -> None:
    class Own(Module):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = Custom()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.mine = checkpoint["mine"]

    trainer(callback(tmp_path, allow_pickle=True)).fit(Own(), loader())
    for where in ("slackwater", str(tmp_path)):
        again = Own()
        trainer(callback(tmp_path, allow_pickle=True)).validate(again, loader(), ckpt_path=where)
        assert again.mine.value == 3


def test_location_that_is_no_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sw.UsageError, match=r"'gs://bucket/run' is not a directory"):
        callback("gs://bucket/run")  # type: ignore[arg-type]
    with pytest.raises(sw.UsageError, match=r"'s3:/bucket/run' is not a directory"):
        callback(Path("s3://bucket/run"))
    with pytest.raises(sw.UsageError, match=r"this plugin writes directories"):
        io().save_checkpoint({"a": 1}, "s3://bucket/x.ckpt")
    assert callback("s3://bucket/run").path == "s3://bucket/run"  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_fit_resumes_from_a_tier_below_if_its_directory_is_gone(tmp_path: Path) -> None:
    """As sw.Checkpointer("s3://bucket/run") does on another machine, where nothing is staged."""
    lower = [sw.Tier(tmp_path / "lower")]
    module = Module()
    trainer(callback(tmp_path / "a", tiers=lower)).fit(module, loader())
    shutil.copytree(tmp_path / "lower", tmp_path / "elsewhere", ignore=shutil.ignore_patterns("lock"))
    again, lower = Module(), [sw.Tier(tmp_path / "elsewhere")]
    trainer(callback(tmp_path / "b", tiers=lower), max_epochs=3).fit(again, loader(), ckpt_path="slackwater")
    assert len(again.seen) == 4
