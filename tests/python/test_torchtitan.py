"""TorchTitan's checkpoint manager on Slackwater: the published base class, with a model made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
import torch.distributed.checkpoint as dcp
from rank_processes import run_ranks
from support import library

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Counting:
    """A state with state_dict(): a data loader, or the trainer's own."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "seen": bytes([self.count])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["seen"] == bytes([state["count"]])
        self.count = state["count"]


class Optimizers:
    def __init__(self, model: torch.nn.Module) -> None:
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        return {f"{number}.{key}": value for number, entry in state.items() for key, value in entry.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, parameter in enumerate(self.optimizer.param_groups[0]["params"]):
            self.optimizer.state[parameter] = {
                key: state[f"{number}.{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")
            }


class Job:
    def __init__(self, base: Path, seed: int, adapter: Any = None, **config: Any) -> None:
        library("torchtitan")
        from slackwater.integrations.torchtitan import SlackwaterCheckpointManager

        torch.manual_seed(seed)
        self.model = torch.nn.Linear(8, 300)
        self.optimizers = Optimizers(self.model)
        self.loader, self.trained = Counting(), Counting()
        options = {"enable": True, "folder": "checkpoint", "interval": 2, "keep_latest_k": 2, "pool": "16MiB", **config}
        self.manager = SlackwaterCheckpointManager.Config(**options).build(
            dataloader=self.loader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=Counting(),
            states={"train_state": self.trained},
            sd_adapter=adapter,
            base_folder=str(base),
        )
        self.step()  # an optimizer has no state before its first step

    def step(self) -> None:
        self.model(torch.ones(2, 8)).square().mean().backward()
        if hasattr(self, "manager"):
            self.manager.maybe_wait_for_staging()
        self.optimizers.optimizer.step()
        self.optimizers.optimizer.zero_grad()

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.step()
            self.loader.count = self.trained.count = step
            self.manager.save(step, last_step=False)

    def same(self, other: Job) -> bool:
        mine, theirs = self.optimizers.state_dict(), other.optimizers.state_dict()
        return torch.equal(self.model.weight, other.model.weight) and all(
            torch.equal(mine[name], theirs[name]) for name in mine
        )


@pytest.mark.parametrize("asynchronous", [True, False], ids=["background", "foreground"])
def test_a_resumed_job_goes_on_bit_by_bit(tmp_path: Path, asynchronous: bool) -> None:
    job = Job(tmp_path, 1, asynchronous=asynchronous)
    assert not job.manager.load()  # a fresh start
    job.train(1, 4)
    job.manager.close()
    resumed = Job(tmp_path, 2, asynchronous=asynchronous)
    assert resumed.manager.load()
    assert resumed.trained.count == resumed.loader.count == 4
    assert resumed.same(job)
    job.step()
    resumed.step()
    assert resumed.same(job)
    resumed.manager.close()


def test_saves_follow_the_interval_and_old_directories_go(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, enable_first_step_checkpoint=True)
    saved = []
    for step in range(1, 9):
        job.step()
        if job.manager.save(step):
            saved.append(step)
    job.manager.close()
    assert saved == [1, 2, 4, 6, 8]
    assert sorted(found.name for found in (tmp_path / "checkpoint").iterdir()) == ["step-6", "step-8"]
    chosen = Job(tmp_path, 2)
    assert chosen.manager.load(6)
    with pytest.raises(FileNotFoundError):
        chosen.manager.load(4)
    chosen.manager.close()


def test_the_last_step_holds_the_model_alone_in_the_wanted_dtype(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, export_dtype="bfloat16")
    assert job.manager.save(3, last_step=True)
    with sw.open(tmp_path / "checkpoint" / "step-3") as reader:
        assert sorted(reader) == ["bias", "weight"] and reader["weight"].dtype is torch.bfloat16
    other = Job(tmp_path / "other", 2, initial_load_path=str(tmp_path / "checkpoint" / "step-3"))
    assert other.manager.load()
    assert torch.equal(other.model.weight, job.model.weight.bfloat16().float())
    full = Job(tmp_path / "full", 1, last_save_model_only=False)
    full.manager.save(5, last_step=True)
    assert "train_state.count" in json.dumps(
        sorted(str(name) for name in _names(tmp_path / "full" / "checkpoint" / "step-5"))
    )


def _names(path: Path) -> list[str]:
    from slackwater.integrations.dcp import SlackwaterReader

    return list(SlackwaterReader(path).read_metadata().state_dict_metadata)


def test_directories_without_a_commit_are_passed_over(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, asynchronous=False)
    job.train(1, 2)
    (tmp_path / "checkpoint" / "step-4" / "step-0000000004.a1").mkdir(parents=True)  # a save that was killed
    (tmp_path / "checkpoint" / "step-6").mkdir()
    resumed = Job(tmp_path, 2)
    assert resumed.manager.load() and resumed.trained.count == 2


def test_excluded_states_stay_as_they_are_and_unknown_ones_are_an_error(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, asynchronous=False)
    job.train(1, 2)
    other = Job(tmp_path, 2, exclude_from_loading=["dataloader"])
    assert other.manager.load()
    assert other.trained.count == 2 and other.loader.count == 0
    with pytest.raises(sw.UsageError, match="nonsense"):
        Job(tmp_path, 2, exclude_from_loading=["nonsense"]).manager.load()


def test_a_disabled_manager_does_nothing_and_refused_options_are_named(tmp_path: Path) -> None:
    from slackwater.integrations.torchtitan import SlackwaterCheckpointManager

    config = SlackwaterCheckpointManager.Config(enable=False)
    made = {"dataloader": None, "model_parts": [], "optimizers": None, "lr_schedulers": None, "states": {}}
    manager = config.build(**made, sd_adapter=None)
    assert not manager.save(1) and not manager.load()
    manager.maybe_wait_for_staging()
    manager.close()
    with pytest.raises(sw.UsageError, match="last_save_in_hf needs a state dict adapter"):
        Job(tmp_path, 1, last_save_in_hf=True)
    with pytest.raises(sw.UsageError, match="folder"):
        Job(tmp_path, 1, folder="gs://bucket/run")


def stock(job: Job, folder: Path) -> None:
    """As TorchTitan's own manager saves."""
    dcp.save(job.manager._flat_states(job.manager.states), checkpoint_id=folder, no_dist=True)


def test_a_checkpoint_of_the_stock_manager_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    job = Job(tmp_path, 1, asynchronous=False)
    job.train(1, 2)
    job.step()
    job.trained.count = job.loader.count = 5
    stock(job, folder / "step-5")
    resumed = Job(tmp_path, 2, asynchronous=False)
    assert resumed.manager.load() and resumed.trained.count == 5 and resumed.same(job)
    other = Job(tmp_path / "other", 3, initial_load_path=str(folder / "step-5"), initial_load_model_only=False)
    assert other.manager.load() and other.same(job)
    resumed.train(6, 6)
    last = Job(tmp_path, 4)
    assert last.manager.load() and last.trained.count == 6


def test_only_committed_directories_of_ours_count_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    job = Job(tmp_path, 1)
    for step in (1, 100, 200, 300):
        stock(job, folder / f"step-{step}")
    (folder / "step-3" / ".slackwater").mkdir(parents=True)  # killed
    job.train(1, 8)
    job.manager.close()
    found = sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())
    assert found == [1, 3, 6, 8, 100, 200, 300]


def test_a_save_in_the_background_that_fails_does_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, 1)
    job.train(1, 2)
    job.manager.maybe_wait_for_saving()
    (tmp_path / "checkpoint" / "step-4").write_text("in the way")
    job.train(3, 8)
    with pytest.raises(sw.StorageError, match="was not saved"):
        job.manager.close()
    assert "the checkpoint of step 4 was not saved" in caplog.text
    resumed = Job(tmp_path, 2)
    assert resumed.manager.load() and resumed.trained.count == 8


class Adapter:
    """A state dict adapter: other names in the files of Hugging Face."""

    hf_assets_path = None

    def __init__(self, mapping: dict[str, int] | None) -> None:
        self.fqn_to_index_mapping = mapping

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {f"hf.{name}": value for name, value in state.items()}


@pytest.mark.parametrize("mapping", [None, {"hf.weight": 1, "hf.bias": 2}], ids=["one file", "several"])
def test_the_last_step_can_be_files_of_hugging_face(tmp_path: Path, mapping: dict[str, int] | None) -> None:
    from safetensors.torch import load_file

    job = Job(tmp_path, 1, adapter=Adapter(mapping), last_save_in_hf=True, export_dtype="bfloat16")
    assert job.manager.save(3, last_step=True)
    found: dict[str, Any] = {}
    files = list((tmp_path / "checkpoint" / "step-3").glob("*.safetensors"))
    assert len(files) == (1 if mapping is None else 2)
    for file in files:
        found |= load_file(file)
    assert torch.equal(found["hf.weight"], job.model.weight.detach().bfloat16())
    assert torch.equal(found["hf.bias"], job.model.bias.detach().bfloat16())


def test_storage_answers_the_published_questions(tmp_path: Path) -> None:
    library("torchtitan")
    from slackwater.integrations.torchtitan import DirectoryStorage

    storage = DirectoryStorage()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "c").write_text("x")
    assert storage.isdir(str(tmp_path / "a")) and not storage.isdir(str(tmp_path / "a" / "c"))
    assert storage.isfile(str(tmp_path / "a" / "c")) and not storage.isfile(str(tmp_path / "a"))
    assert storage.listdir(str(tmp_path / "a")) == ["b", "c"]
    storage.remove(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_fsdp2_on_two_ranks_saves_in_the_background_and_resumes(tmp_path: Path) -> None:
    program = """
    import warnings
    warnings.simplefilter("ignore")
    from slackwater.integrations.torchtitan import SlackwaterCheckpointManager
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Nothing:
        def state_dict(self):
            return {}
        def load_state_dict(self, state):
            pass

    def job(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(64, 600)
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        manager = SlackwaterCheckpointManager.Config(enable=True, interval=1, pool="16MiB").build(
            dataloader=Nothing(), model_parts=[model], optimizers=Nothing(), lr_schedulers=Nothing(), states={},
            sd_adapter=None, base_folder=path)
        return model, manager

    def main(rank):
        join(rank)
        model, manager = job(1)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in (1, 2, 3):
            model(torch.ones(1, 64)).sum().backward()
            manager.maybe_wait_for_staging()
            optim.step()
            optim.zero_grad()
            manager.save(step)
        expected = model.weight.full_tensor().clone()
        manager.close()
        dist.barrier()
        other, manager = job(2)
        assert manager.load()
        assert torch.equal(other.weight.full_tensor(), expected)
        manager.close()
"""
    library("torchtitan")
    answer = run_ranks(program, 2, tmp_path)
    assert answer["codes"] == [0, 0], answer["errors"]
