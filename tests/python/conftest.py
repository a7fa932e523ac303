"""Fixtures of the Python tests. Each test has its own directory; a test that hangs says where and ends the run."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import rank_processes
import slackwater as sw
import torch
from cuda_sim import LIBRARY, Sim, TorchCuda
from docs_server import Server as DocsServer
from hypothesis import settings
from object_stores import Store, serve
from resume_server import Server
from support import SECONDS, need
from trainer_runs import Runs

torch.set_num_threads(1)
settings.register_profile("slackwater", deadline=None, max_examples=60)
settings.load_profile("slackwater")

SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


@pytest.fixture(scope="session", autouse=True)
def _rank_server() -> Iterator[None]:
    yield
    if rank_processes.server.cache_info().currsize:
        rank_processes.server().close()


@pytest.fixture(scope="session")
def resume_server() -> Iterator[Server]:
    """Trains, is killed and resumes in processes of its own."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def trainer_server() -> Iterator[DocsServer]:
    need("transformers", "accelerate", "lightning", "peft", "torchdata")
    server = DocsServer()
    yield server
    server.close()


@pytest.fixture
def runs(trainer_server: DocsServer) -> Iterator[Runs]:
    """Trainings of Transformers, Accelerate and Lightning that are killed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="trainers-", dir=memory) as directory:
        yield Runs(trainer_server, Path(directory))


@pytest.fixture(scope="module")
def rclone_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with serve("rclone", tmp_path_factory.mktemp("rclone")) as store:
        yield store


@pytest.fixture(scope="module")
def moto_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with serve("moto", tmp_path_factory.mktemp("moto")) as store:
        yield store


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., sw.Checkpointer]]:
    """Checkpointer(path, small pool, ...), closed after the test."""
    made: list[sw.Checkpointer] = []

    def build(where: Path | str = path, **options: Any) -> sw.Checkpointer:
        made.append(sw.Checkpointer(where, **{**SMALL, **options}))
        return made[-1]

    yield build
    for checkpointer in made:
        with contextlib.suppress(sw.Error):
            checkpointer.close(timeout=120)


@pytest.fixture
def save_once(path: Path) -> Callable[..., Path]:
    """Save one state as one step, wait, close."""

    def save(state: dict[str, Any], step: int = 1, **options: Any) -> Path:
        with sw.Checkpointer(path, **{**SMALL, **options}) as checkpointer:
            checkpointer.save(step, state)
        return path

    return save


# The simulated CUDA device


@pytest.fixture
def sim() -> Iterator[Sim]:
    if not LIBRARY:
        pytest.skip("SLACKWATER_SIM_CUDA names no simulated driver; `make test-python` builds and names it")
    sim = Sim()
    yield sim
    sim.close()


@pytest.fixture
def cuda(sim: Sim, path: Path) -> Iterator[Callable[..., sw.Checkpointer]]:
    """Checkpointer(path, small pool, ...) on the simulated driver; closed and let go of before that ends."""
    made: list[sw.Checkpointer] = []

    def build(**options: Any) -> sw.Checkpointer:
        made.append(sw.Checkpointer(path, **{**SMALL, "cuda_driver": LIBRARY, **options}))
        return made[-1]

    yield build
    while made:
        with contextlib.suppress(sw.Error):
            made.pop().close(timeout=120)


@pytest.fixture
def torch_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, int]], TorchCuda]:
    """torch works with CUDA, and these are its current streams."""

    def install(current: dict[int, int]) -> TorchCuda:
        stub = TorchCuda(current)
        for name in (
            "is_initialized",
            "device_count",
            "current_device",
            "current_stream",
            "is_current_stream_capturing",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(stub, name))
        return stub

    return install
