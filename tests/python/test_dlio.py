"""The checkpoint mechanism for DLIO, against a stand-in for DLIO's base class: both of its published interfaces."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch

MODULE = "slackwater.integrations.dlio"


class Base:
    """What later sources of DLIO do: the state is made once, and saved as one file per kind."""

    folder = ""

    def __init__(self, ext: str) -> None:
        self.ext = ext
        self.args = types.SimpleNamespace(my_rank=0, comm_size=1, checkpoint_folder=self.folder)
        self.model_state = {"layer": self.get_tensor_core(300_000, "bf16"), "ids": self.get_tensor_core(7, "int64")}
        self.finalized = False

    def save_checkpoint(self, epoch: int, step_number: int) -> None:
        self.save_state(f"model_states-{self.args.my_rank}", self.model_state, fsync=True)

    def load_checkpoint(self, epoch: int, step_number: int) -> None:
        self.load_state(f"model_states-{self.args.my_rank}", self.model_state)

    def finalize(self) -> None:
        self.finalized = True


class Old(Base):
    """Release 2.0.0: ``checkpoint``, which saves the same tensors once per layer, and loads nothing."""

    def __init__(self, ext: str) -> None:
        super().__init__(ext)
        self.layer_state = {"w": self.get_tensor(50_000)}

    def checkpoint(self, epoch: int, step_number: int) -> None:
        for layer in range(3):
            self.save_state(f"layer-{layer}", self.layer_state)


@pytest.fixture
def mechanism(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    base = request.param
    monkeypatch.setattr(base, "folder", str(tmp_path / "run"))
    names = ["dlio_benchmark", "dlio_benchmark.checkpointing", "dlio_benchmark.checkpointing.base_checkpointing"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].BaseCheckpointing = base  # type: ignore[attr-defined]
    sys.modules.pop(MODULE, None)
    kind = importlib.import_module(MODULE).SlackwaterCheckpointing
    made = kind.get_instance()
    yield made
    made.finalize()
    assert made.finalized and kind._instance is None
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("mechanism", [Base], indirect=True)
def test_a_checkpoint_is_committed_when_the_call_returns_and_comes_back(mechanism: Any, tmp_path: Path) -> None:
    assert type(mechanism).get_instance() is mechanism
    saved = {name: tensor.clone() for name, tensor in mechanism.model_state.items()}
    mechanism.save_checkpoint(1, 10)
    with sw.open(tmp_path / "run") as checkpoint:  # durable: another program reads it
        assert checkpoint.metadata == {"dlio_epoch": 1, "dlio_step": 10}
    for tensor in mechanism.model_state.values():
        tensor.zero_()
    mechanism.save_checkpoint(2, 20)
    mechanism.load_checkpoint(1, 10)
    assert all(torch.equal(mechanism.model_state[name], tensor) for name, tensor in saved.items())
    with pytest.raises(sw.NotFoundError, match="epoch 3, step 30"):
        mechanism.load_checkpoint(3, 30)


@pytest.mark.parametrize("mechanism", [Old], indirect=True)
def test_tensors_that_are_saved_once_per_layer_are_written_once_per_layer(mechanism: Any, tmp_path: Path) -> None:
    for epoch in (1, 2):
        mechanism.checkpoint(epoch, 0)
    with sw.open(tmp_path / "run") as checkpoint:
        assert sum(checkpoint.info(name).size_bytes for name in checkpoint) == 3 * 50_000
        assert all(checkpoint.info(name).alias_of == "" for name in checkpoint)


@pytest.mark.parametrize("mechanism", [Base], indirect=True)
def test_tensors_are_made_as_dlio_asks_for_them(mechanism: Any) -> None:
    for datatype, dtype in {"fp32": torch.float32, "fp16": torch.float16, "uint8": torch.uint8}.items():
        assert mechanism.get_tensor_core(5, datatype).dtype is dtype
    assert mechanism.get_tensor_core(3, "fp32", randomize=False).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="'nonsense'"):
        mechanism.get_tensor_core(3, "nonsense")
    assert mechanism.set_madvise_mergeable(torch.zeros(1)) is False, "smaller than a page"
