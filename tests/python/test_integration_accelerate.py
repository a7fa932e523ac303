"""AccelerateCheckpointer: killed and resumed, a loop ends as if it had never stopped (trainer_cases.py trains)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from support import library, same
from torch import nn
from trainer_runs import Runs, assert_same, steps_of

SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


@pytest.mark.parametrize(
    ("options", "kills"),
    [
        ((), (3, 6, 13)),  # 6 is the last step of an epoch
        (("seedable=false",), (4,)),
        (("stateful=true",), (4, 6)),
        (("endless=true",), (8,)),
        (("workers=2",), (5,)),
    ],
    ids=["seedable", "not-seedable", "stateful", "no-length", "workers"],
)
def test_killed_loop_ends_with_the_same_bits(options: tuple[str, ...], kills: tuple[int, ...], runs: Runs) -> None:
    assert_same(*runs.ends("accelerate", *options, kills=kills))


@pytest.mark.parametrize(
    ("options", "kills"),
    [((), (4,)), (("seedable=false",), (3, 4))],  # 3 is the last step of an epoch
    ids=["seedable", "not-seedable"],
)
def test_killed_loop_on_two_ranks_ends_with_the_same_bits(
    options: tuple[str, ...], kills: tuple[int, ...], runs: Runs
) -> None:
    assert_same(*runs.ends("accelerate", *options, kills=kills, ranks=2))


def test_random_states_that_are_set_too_early_end_with_other_bits(runs: Runs) -> None:
    [whole], [killed] = runs.ends("accelerate", "early=true", kills=(4,))
    assert not same(whole[0]["model"], killed[0]["model"])


@pytest.mark.parametrize("fence", [True, False])
def test_update_without_the_fence_costs_the_checkpoint(fence: bool, runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "accelerate", f"fence={str(fence).lower()}", "steps=2")
    assert steps_of(where) == ([1, 2] if fence else [2])


# In this process


class Part:
    """What a test trains, prepared."""

    def __init__(self, *, accumulate: int = 1, models: int = 1, project: Any = None) -> None:
        accelerate: Any = library("accelerate")
        accelerate.utils.set_seed(1)
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, project_config=project
        )
        self.models = [self.accelerator.prepare(nn.Linear(2, 2)) for _ in range(models)]
        self.optimizers = [
            self.accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.1)) for model in self.models
        ]
        loader: Any = torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2), batch_size=2, shuffle=True)
        self.loader = self.accelerator.prepare(loader)

    def train(self, batch: torch.Tensor) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            with self.accelerator.accumulate(model):
                self.accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    def weights(self) -> list[Any]:
        return [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in self.models]


def checkpointer(part: Part, path: Path | None, **options: Any) -> Any:
    from slackwater.integrations.accelerate import AccelerateCheckpointer

    return AccelerateCheckpointer(part.accelerator, path, **{**SMALL, **options})


def test_save_waits_for_the_end_of_gradient_accumulation(tmp_path: Path) -> None:
    part = Part(accumulate=2)
    with checkpointer(part, tmp_path / "run", keep=0) as ck:
        saved = []
        for _, batch in ck.batches(part.loader, epochs=1):
            part.train(batch)
            saved.append(ck.save() is not None)
        assert saved == [False, True, False, True]
        assert ck.checkpointer.steps() or ck.wait() is None
        assert ck.step == 2


def test_several_models_and_what_else_is_given_come_back(tmp_path: Path) -> None:
    part, mine = Part(models=2), random.Random(1)
    extra = {"count": 0, "ema": torch.zeros(3)}
    with checkpointer(part, tmp_path / "run", state=extra, rng=sw.Rng(mine=mine)) as ck:
        for _, batch in ck.batches(part.loader, epochs=1):
            part.train(batch)
            extra["count"] += 1
            extra["ema"] += 1
            ck.save()
        weights, draw = part.weights(), mine.random()
    again, mine, extra = Part(models=2), random.Random(2), {"count": 0, "ema": torch.zeros(3)}
    with checkpointer(again, tmp_path / "run", state=extra, rng=sw.Rng(mine=mine)) as ck:
        assert ck.restore() == 4
        assert same(again.weights(), weights)
        assert (extra["count"], extra["ema"].tolist(), mine.random()) == (4, [4.0] * 3, draw)
        assert list(ck.batches(again.loader, epochs=1)) == []


def test_step_that_is_asked_for_continues_from_there(tmp_path: Path) -> None:
    part = Part()
    with checkpointer(part, tmp_path / "run", keep=0) as ck:
        orders = []
        for _, batch in ck.batches(part.loader, epochs=2):
            part.train(batch)
            orders.append(batch.tolist())
            ck.save()
        end = part.weights()
    again = Part()
    with checkpointer(again, tmp_path / "run", keep=0) as ck:
        assert ck.restore(step=3) == 3
        rest = []
        for _, batch in ck.batches(again.loader, epochs=2):
            again.train(batch)
            rest.append(batch.tolist())
    assert rest == orders[3:]
    assert same(again.weights(), end)


def test_without_an_end_it_goes_on_epoch_after_epoch_if_that_is_asked_for(tmp_path: Path) -> None:
    part = Part()
    with checkpointer(part, tmp_path / "run", keep=0) as ck:
        with pytest.raises(TypeError, match="'epochs'"):
            ck.batches(part.loader)
        for number, (epoch, batch) in enumerate(ck.batches(part.loader, epochs=None)):
            assert epoch == number // 4
            part.train(batch)
            ck.save()
            if number == 9:
                break
        weights = part.weights()
    again = Part()
    with checkpointer(again, tmp_path / "run") as ck:
        assert next(ck.batches(again.loader, epochs=None))[0] == 2
        assert same(again.weights(), weights)
        assert list(ck.batches([], epochs=None)) == [], "a loader without batches ends it"


# accelerator.save_state


@pytest.mark.parametrize("background", [False, True])
def test_save_state_and_load_state_bring_everything_back(background: bool, tmp_path: Path) -> None:
    part = Part(models=2)
    with checkpointer(part, None) as ck:
        ck.route_save_state(background=background)
        batches = ck.batches(part.loader, epochs=2)
        for _ in range(3):
            part.train(next(batches)[1])
        part.accelerator.save_state(tmp_path / "a")
        weights, rest = part.weights(), []
        for _, batch in batches:
            part.train(batch)
            rest.append((batch.tolist(), torch.rand(1).item()))
        end = part.weights()
        part.accelerator.save_state(str(tmp_path / "b"))
    again = Part(models=2)
    with checkpointer(again, tmp_path / "other") as ck:
        ck.route_save_state()
        again.accelerator.load_state(str(tmp_path / "b"))
        assert same(again.weights(), end)
        again.accelerator.load_state(tmp_path / "a")
        assert same(again.weights(), weights)
        found = []
        for _, batch in ck.batches(again.loader, epochs=2):
            again.train(batch)
            found.append((batch.tolist(), torch.rand(1).item()))
        assert found == rest
        assert same(again.weights(), end)
        again.accelerator.save_state(tmp_path / "a")  # over the earlier one
        again.accelerator.load_state(tmp_path / "a")
        assert same(again.weights(), end)
    assert "save_state" not in vars(again.accelerator)


def test_save_state_names_and_rotates_as_accelerate_does(tmp_path: Path) -> None:
    accelerate: Any = library("accelerate")
    project = accelerate.utils.ProjectConfiguration(
        project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=2
    )
    part = Part(project=project)
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        for _ in range(3):
            part.train(next(iter(part.loader)))
            part.accelerator.save_state()
        end = part.weights()
        part.train(next(iter(part.loader)))
        part.accelerator.load_state()
        assert same(part.weights(), end)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_1", "checkpoint_2"]
    project.iteration = 2
    with checkpointer(part, tmp_path / "run") as ck, pytest.raises(ValueError, match="already exists"):
        ck.route_save_state()
        part.accelerator.save_state()


def test_load_state_still_reads_what_accelerate_wrote(tmp_path: Path) -> None:
    part = Part()
    part.accelerator.save_state(str(tmp_path / "stock"))
    weights = part.weights()
    part.train(next(iter(part.loader)))
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.load_state(str(tmp_path / "stock"))
        assert same(part.weights(), weights)
        with pytest.raises(ValueError, match="folder does not exist"):
            part.accelerator.load_state(str(tmp_path / "nowhere"))


def test_hooks_that_save_a_model_themselves_are_called(tmp_path: Path) -> None:
    part = Part()
    seen: list[Any] = []

    def save(models: Any, weights: list[Any], directory: str) -> None:
        seen.append(("save", Path(directory).name, len(weights)))
        weights.pop()

    def load(models: list[Any], directory: str) -> None:
        seen.append(("load", Path(directory).name, len(models)))
        models.pop()

    part.accelerator.register_save_state_pre_hook(save)
    part.accelerator.register_load_state_pre_hook(load)
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.save_state(tmp_path / "a")
        part.train(next(iter(part.loader)))
        weights = part.weights()
        part.accelerator.load_state(tmp_path / "a")
        assert same(part.weights(), weights), "the hook loads it"
    assert seen == [("save", "a", 1), ("load", "a", 1)]


@pytest.mark.parametrize("taken", [0, 1])
def test_hook_that_loads_one_model_leaves_the_rest_strict(taken: int, tmp_path: Path) -> None:
    part = Part(models=2)
    hooks = part.accelerator
    hook = hooks.register_load_state_pre_hook(lambda models, directory: models.pop(taken) and None)
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        hooks.save_state(tmp_path / "a")
        saved = part.weights()
        part.train(next(iter(part.loader)))
        trained = part.weights()
        hooks.load_state(tmp_path / "a")
        expected = [trained[number] if number == taken else saved[number] for number in (0, 1)]
        assert same(part.weights(), expected)
        part.models[1 - taken].register_parameter("more", nn.Parameter(torch.ones(1)))
        with pytest.raises(sw.MismatchError, match="more"):
            hooks.load_state(tmp_path / "a")
    hook.remove()


def test_weights_that_a_hook_puts_in_place_are_saved(tmp_path: Path) -> None:
    part = Part(models=3)

    def replace(models: Any, weights: list[Any], directory: str) -> None:
        weights[1] = {name: tensor.bfloat16() for name, tensor in weights[1].items()}  # another dtype
        weights.pop(0)  # saves it itself

    part.accelerator.register_save_state_pre_hook(replace)
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.save_state(tmp_path / "a")
        saved = sw.load(tmp_path / "a")
        assert "model" not in saved
        assert same(saved["model_1"]["weight"], part.models[1].weight.detach().bfloat16())
        rounded = part.models[1].weight.detach().bfloat16().float()
        third = part.weights()[2]
        part.train(next(iter(part.loader)))
        part.accelerator.register_load_state_pre_hook(lambda models, directory: models.pop(0) and None)
        part.accelerator.load_state(tmp_path / "a")
        assert same(part.models[1].weight.detach(), rounded) and same(part.weights()[2], third)


def naming(tmp_path: Path, limit: int) -> Any:
    accelerate: Any = library("accelerate")
    return accelerate.utils.ProjectConfiguration(
        project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=limit
    )


def test_the_old_checkpoint_stays_until_the_new_one_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, folders = Part(project=naming(tmp_path, 1)), tmp_path / "checkpoints"
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.save_state()
        saved = part.weights()
        part.train(next(iter(part.loader)))
        with monkeypatch.context() as patch:  # killed during the save
            patch.setattr(sw.Checkpointer, "save", lambda *given, **options: (_ for _ in ()).throw(MemoryError()))
            with pytest.raises(MemoryError):
                part.accelerator.save_state()
        assert sorted(path.name for path in folders.iterdir()) == ["checkpoint_0", "checkpoint_1"]
        part.accelerator.load_state()  # the newest one that is committed
        assert same(part.weights(), saved)
        part.accelerator.save_state()  # over the one that was not
        assert sorted(path.name for path in folders.iterdir()) == ["checkpoint_1"]


def test_load_state_needs_neither_a_lock_nor_write_permission(tmp_path: Path) -> None:
    part = Part()
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.save_state(tmp_path / "a")
        saved = part.weights()
        part.train(next(iter(part.loader)))
        with sw.Checkpointer(tmp_path / "a", **SMALL):  # another job
            before = sorted((tmp_path / "a").rglob("*"))
            part.accelerator.load_state(tmp_path / "a")
            assert sorted((tmp_path / "a").rglob("*")) == before
        assert same(part.weights(), saved)


def test_a_save_state_in_the_background_that_fails_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = Part()
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state(background=True)

        def fail(self: Any, timeout: float | None = None) -> None:
            close(self, timeout)
            raise sw.StorageError("no space left on the device")

        close = sw.Checkpointer.close
        with monkeypatch.context() as patch:
            patch.setattr(sw.Checkpointer, "close", fail)
            part.accelerator.save_state(tmp_path / "a")
            part.accelerator.save_state(tmp_path / "b")
        assert "no space left" in caplog.text
        part.accelerator.save_state(tmp_path / "c")
        with pytest.raises(sw.StorageError, match="no space left"):
            ck.wait()
    assert sw.load(tmp_path / "c", only="model")


def test_a_location_that_is_no_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = Part()
    with checkpointer(part, None) as ck, pytest.raises(sw.UsageError, match=r"'s3:/.*' is not a directory"):
        ck.route_save_state()
        part.accelerator.save_state("s3://bucket/run")
    assert not list(tmp_path.iterdir())


def test_another_number_of_registered_objects_is_an_error(tmp_path: Path) -> None:
    from trainer_cases import Meter

    part = Part()
    with checkpointer(part, tmp_path / "run") as ck:
        ck.route_save_state()
        part.accelerator.save_state(tmp_path / "a")
        part.accelerator.register_for_checkpointing(Meter())
        with pytest.raises(RuntimeError, match="has 0 objects of register_for_checkpointing, and 1 are registered"):
            part.accelerator.load_state(tmp_path / "a")


# What cannot be right


def test_what_cannot_be_right_is_one_sentence(tmp_path: Path) -> None:
    accelerate: Any = library("accelerate")
    from slackwater.integrations.accelerate import AccelerateCheckpointer

    with pytest.raises(sw.UsageError, match=r"accelerator is a str; give the accelerate\.Accelerator"):
        AccelerateCheckpointer("runs/x", "runs/x")  # type: ignore[arg-type]
    with AccelerateCheckpointer(accelerate.Accelerator(cpu=True), tmp_path / "run", **SMALL) as ck:
        with pytest.raises(sw.UsageError, match=r"nothing was prepared; call accelerator\.prepare"):
            ck.save()
        with pytest.raises(sw.UsageError, match="epochs is -1"):
            ck.batches([], epochs=-1)
