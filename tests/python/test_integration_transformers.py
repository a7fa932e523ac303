"""SlackwaterTrainer: killed and resumed, it ends as if it had never stopped (trainer_cases.py trains)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from support import data_file, library, same
from trainer_runs import Runs, assert_same, steps_of


@pytest.mark.parametrize(
    ("options", "kills"),
    [
        ((), (3, 6, 13)),  # 6 is the last step of an epoch
        (("endless=true",), (3, 8)),
        (("peft=true", "mixin=true"), (4,)),
    ],
    ids=["map", "no-length", "peft-mixin"],
)
def test_killed_run_ends_with_the_same_bits(options: tuple[str, ...], kills: tuple[int, ...], runs: Runs) -> None:
    assert_same(*runs.ends("transformers", *options, kills=kills))


def test_killed_run_on_two_ranks_ends_with_the_same_bits(runs: Runs) -> None:
    assert_same(*runs.ends("transformers", kills=(4,), ranks=2))


def test_random_states_that_are_set_too_early_end_with_other_bits(runs: Runs) -> None:
    [whole], [killed] = runs.ends("transformers", "early=true", kills=(4,))
    assert not same(whole[0]["model"], killed[0]["model"])


@pytest.mark.parametrize("fence", [True, False])
def test_update_without_the_fence_costs_the_checkpoint(fence: bool, runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "transformers", f"fence={str(fence).lower()}", "max_steps=2")
    assert steps_of(where) == ([1, 2] if fence else [2])


def test_true_resumes_from_the_newest_and_finished_runs_train_no_further(runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "transformers", kill_at=5)
    runs.run(where, "transformers", "resume=true", "max_steps=7")
    assert steps_of(where) == [5, 6, 7]
    runs.run(where, "transformers", "resume=true", "max_steps=7")
    assert steps_of(where) == [5, 6, 7]


def test_stubs_go_with_their_versions(runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "transformers", kill_at=5)
    stub = where / "out" / "checkpoint-99"  # of a step that was killed before its commit
    stub.mkdir()
    (stub / "slackwater.json").write_text(json.dumps({"path": "../../run", "step": 99}))
    (where / "out" / "checkpoint-98").mkdir()  # not ours
    runs.run(where, "transformers", "max_steps=7")
    found = sorted(path.name for path in (where / "out").glob("checkpoint-*"))
    assert found == ["checkpoint-5", "checkpoint-6", "checkpoint-7", "checkpoint-98"]
    state = json.loads((where / "out" / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == 6
    assert state["stateful_callbacks"]["Counter"]["attributes"]["steps"] == 6


@pytest.mark.parametrize("large", [False, True], ids=["header", "tensors"])
def test_damaged_checkpoint_is_passed_over(large: bool, runs: Runs) -> None:
    where, options = runs.directory("killed"), ("max_steps=7", f"large={str(large).lower()}")
    runs.run(where, "transformers", *options, kill_at=5)
    file = data_file(where / "run", 5)
    damaged = bytearray(file.read_bytes())
    damaged[-5000:] = bytes(5000)
    file.write_bytes(damaged)
    output = runs.run(where, "transformers", *options)
    assert "step 5 cannot be restored" in output
    assert "trying step 4" in output
    whole = runs.directory("whole")
    runs.run(whole, "transformers", *options)
    assert same(*(torch.load(one / "end-0.pt", weights_only=False)["model"] for one in (where, whole)))


@pytest.mark.parametrize(
    ("resume", "sentence"),
    [
        ('"slackwater@x"', "'slackwater@x' names no checkpoint"),
        ('"slackwater@77"', "has no committed checkpoint of step 77; it has 2"),
        ("null", "has checkpoints up to step 2, and this run begins at step 0"),
    ],
)
def test_resume_that_cannot_be_is_one_sentence(resume: str, sentence: str, runs: Runs) -> None:
    where = runs.directory("run")
    runs.run(where, "transformers", "max_steps=2", "save_steps=2")
    assert sentence in runs.refused(where, "transformers", f"resume={resume}")


# In this process


def trainer(tmp_path: Path, *, slackwater: Any = "run", **arguments: Any) -> Any:
    library("transformers")
    import transformers
    from slackwater.integrations.transformers import SlackwaterTrainer
    from trainer_cases import Samples, Wrapped

    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["x"],
        per_device_train_batch_size=4,
        **{"max_steps": 4, "save_steps": 1, **arguments},
    )
    return SlackwaterTrainer(
        model=Wrapped(),
        args=args,
        train_dataset=Samples(),
        eval_dataset=Samples(),
        data_collator=lambda samples: {"x": torch.stack(samples)},
        slackwater=str(tmp_path / slackwater) if isinstance(slackwater, str) else slackwater,
    )


def test_best_model_is_kept_and_loaded_at_the_end(tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        eval_strategy="steps",
        eval_steps=1,
        save_total_limit=1,
        learning_rate=0.5,
        max_steps=6,
    )
    made.train()
    best = made.state.best_global_step
    assert Path(made.state.best_model_checkpoint).name == f"checkpoint-{best}"
    kept = sorted(int(path.name[5:15]) for path in (tmp_path / "run").glob("step-*"))
    assert kept == sorted({best, 6})
    saved = sw.load(tmp_path / "run", best, only="model")["model"]
    assert all(same(tensor, saved[name]) for name, tensor in made.model.state_dict().items())


def test_checkpoint_of_the_stock_trainer_is_still_resumed(tmp_path: Path) -> None:
    import transformers

    stock = trainer(tmp_path, slackwater=None, max_steps=2, save_steps=2)
    stock.train()
    assert (tmp_path / "out" / "checkpoint-2" / "optimizer.pt").exists()
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert sw.open(tmp_path / "run").step == 4
    with pytest.raises(ValueError, match="No valid checkpoint"):
        trainer(tmp_path / "new").train(resume_from_checkpoint=True)
    assert isinstance(resumed, transformers.Trainer)


def test_step_that_is_asked_for_by_its_stub_or_its_number(tmp_path: Path) -> None:
    trainer(tmp_path, slackwater={"path": tmp_path / "run", "keep": 0}).train()
    weights = sw.load(tmp_path / "run", 2, only="model")["model"]
    for resume in ("slackwater@2", str(tmp_path / "out" / "checkpoint-2")):
        made = trainer(tmp_path, max_steps=2, save_strategy="no")
        made.train(resume_from_checkpoint=resume)
        assert all(same(tensor, weights[name]) for name, tensor in made.model.state_dict().items())
    elsewhere = trainer(tmp_path, slackwater="other")
    with pytest.raises(sw.UsageError, match=r"stands for step 2 of '.*run', and this trainer has"):
        elsewhere.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_only_the_model_is_saved_if_the_arguments_say_so(tmp_path: Path) -> None:
    trainer(tmp_path, save_only_model=True).train()
    with sw.open(tmp_path / "run") as checkpoint:
        assert {name.partition(".")[0] for name in checkpoint} == {"model"}
    made = trainer(tmp_path, save_only_model=True, max_steps=5)
    made.train(resume_from_checkpoint="slackwater")
    assert made.state.global_step == 5


def test_classes_between_the_mixin_and_trainer_still_do_their_part(tmp_path: Path) -> None:
    """As TRL's trainers do: a file beside the checkpoint, which is read again."""
    import transformers
    from slackwater.integrations.transformers import SlackwaterMixin

    class Between(transformers.Trainer):
        mine = 0

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            (folder / "mine.json").write_text(str(self.state.global_step))

        def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
            super()._load_optimizer_and_scheduler(checkpoint)
            self.mine = int(Path(checkpoint, "mine.json").read_text()) if checkpoint else 0

    made = trainer(tmp_path)
    made.__class__ = type("Mine", (SlackwaterMixin, Between), {})
    made.train()
    assert not list((tmp_path / "out").glob("*/*.safetensors")), "Trainer itself wrote nothing"
    again = trainer(tmp_path, max_steps=5)
    again.__class__ = type("Mine", (SlackwaterMixin, Between), {})
    again.train(resume_from_checkpoint="slackwater")
    assert (again.mine, again.state.global_step) == (4, 5)


def test_metrics_are_metadata_and_strategy_no_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(tmp_path, eval_strategy="steps", eval_steps=2, logging_steps=1).train()
    assert {"eval_loss", "loss", "learning_rate"} <= set(sw.open(tmp_path / "run", 4).metadata)
    with caplog.at_level(logging.WARNING, logger="slackwater"):
        trainer(tmp_path, slackwater="none", save_strategy="no", max_steps=1).train()
    assert "save_strategy is 'no'" in caplog.text


@pytest.mark.parametrize(
    ("slackwater", "arguments", "sentence"),
    [
        (7, {}, "slackwater is an int; give a directory"),
        ({"keep": 2}, {}, "slackwater is a dict without 'path'"),
        ("run", {"push_to_hub": True, "hub_strategy": "every_save"}, "hub_strategy='end'"),
    ],
)
def test_arguments_that_cannot_be_are_one_sentence(
    slackwater: Any, arguments: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    monkeypatch.setattr(transformers.Trainer, "init_hf_repo", lambda *_, **__: None)
    with pytest.raises(sw.UsageError, match=sentence):
        trainer(tmp_path, slackwater=slackwater, **arguments)
