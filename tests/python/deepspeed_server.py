"""Trains with an unmodified DeepSpeed, as several ranks, in processes of its own. Loads torch and DeepSpeed once.

Reads one request per line (see ``train``) and forks the ranks. Answers with one line: the exit code of each. What a
rank found is in ``<out>-<rank>.json``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed
import slackwater.integrations.deepspeed  # noqa: F401  (once, for all processes that are forked)
import torch

# An optional operator for shared memory: DeepSpeed would compile it here, for a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.set_num_threads(1)


class Net(torch.nn.Module):
    """Large enough for several slabs, with a large buffer that changes in every forward pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.second = torch.nn.Linear(width, 16)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0).to(self.mean.dtype))
        return self.second(torch.relu(hidden - self.mean.to(hidden.dtype)))


def digests(value: Any, name: str = "") -> dict[str, str]:
    """Each tensor and plain value below ``value``, to the last bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.blake2b(bytes(flat.numpy()), digest_size=12).hexdigest()
        return {name: f"{value.dtype} {list(value.shape)} {digest}"}
    if isinstance(value, dict):
        return {key: text for part, item in value.items() for key, text in digests(item, f"{name}.{part}").items()}
    if isinstance(value, (list, tuple)):
        return {key: text for part, item in enumerate(value) for key, text in digests(item, f"{name}.{part}").items()}
    if type(value).__module__.startswith("deepspeed") and hasattr(value, "__dict__"):
        return digests(vars(value), name)
    return {name: f"{type(value).__name__} {value!r}"}


def make_engine(request: dict[str, Any]) -> Any:
    stage, world = request["stage"], request["world"]
    config: dict[str, Any] = {
        "train_batch_size": 4 * world,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage, **request.get("zero", {})},
        "zero_force_ds_cpu_optimizer": False,
        **request.get("config", {}),
    }
    torch.manual_seed(3)
    model = Net(request.get("width", 96))
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}
    config["scheduler"] = scheduler
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def one_step(engine: Any, rank: int) -> None:
    generator = torch.Generator().manual_seed(1_000 * engine.global_steps + rank)
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
    x = torch.randn(4, 64, generator=generator).to(dtype)
    loss = engine(x).float().square().mean()
    engine.backward(loss)
    engine.step()


def train(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Loads ``latest``, trains up to ``steps`` with a checkpoint at each, may kill itself after that of ``kill``."""
    deepspeed.init_distributed("gloo", verbose=False)
    engine = make_engine(request)
    path, client = engine.load_checkpoint(request["dir"], tag=request.get("tag"))
    began = engine.global_steps
    for _ in range(began, request["steps"]):
        one_step(engine, rank)
        engine.save_checkpoint(request["dir"], client_state={"note": [engine.global_steps, {"a": (1, 2)}]})
        if engine.global_steps == 1 and "kill" in request:
            engine.checkpoint_engine.ckpt_engine.wait(persist=True)  # so that there is something to resume from
        if engine.global_steps == request.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "began": began,
        "path": path,
        "client": repr(client.get("note")) if client else None,
        "module": digests(dict(engine.module.state_dict())),
        "optimizer": digests(engine.optimizer.state_dict()),
        "scheduler": digests(engine.lr_scheduler.state_dict()),
        "engine": type(engine.checkpoint_engine).__name__,
    }
    engine.destroy()
    return result


def run_code(request: dict[str, Any], rank: int) -> Any:
    """Any other program: it has ``request``, ``rank`` and the names of this module, and sets ``result``."""
    scope: dict[str, Any] = {**globals(), "request": request, "rank": rank, "result": None}
    exec(compile(request["code"], "<test>", "exec"), scope)
    return scope["result"]


def run_rank(request: dict[str, Any], rank: int, port: int) -> int:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
    log = os.open(f"{request['out']}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(request["world"]),
        LOCAL_WORLD_SIZE=str(request["world"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        result = (run_code if "code" in request else train)(request, rank)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        return 1
    Path(f"{request['out']}-{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    return 0


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = {}
        for rank in range(request["world"]):
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os._exit(run_rank(request, rank, port))
            children[pid] = rank
        codes = [0] * request["world"]
        while children:
            pid, status = os.wait()
            codes[children.pop(pid)] = os.waitstatus_to_exitcode(status)
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
