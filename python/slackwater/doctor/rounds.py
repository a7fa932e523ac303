"""Rounds: save, update at once, wait for the commit, restore into a second copy, compare every bit.

The state is larger than the pool, so its copies are under way when the update begins. Only the fence hook stands
between the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import slackwater as sw

from . import thresholds
from .context import Context, save
from .lines import Outcome

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass
class Trainer:
    """A model, its optimizer, and how they make a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: torch.Tensor
    forward: Callable[[torch.Tensor], torch.Tensor]
    step: Callable[[], Any]

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optim": self.optimizer}

    def backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # a captured step reads the same gradients each time
        self.forward(self.batch).square().mean().backward()

    def train(self) -> None:
        self.backward()
        self.step()

    def tensors(self) -> Tensors:
        """Every tensor of the state by its name; of a DTensor, what this rank holds."""
        found = dict(self.model.state_dict())
        for number, values in enumerate(self.optimizer.state.values()):
            found |= {f"optim.{number}.{key}": value for key, value in values.items() if torch.is_tensor(value)}
        return {name: _local(tensor) for name, tensor in found.items()}


def network() -> nn.Module:
    """One large layer, which is captured lazily, and small tensors, which are copied inside save()."""
    return nn.Sequential(nn.Linear(thresholds.WIDTH, thresholds.WIDTH), nn.LayerNorm(thresholds.WIDTH))


def trainer(device: str, model: nn.Module | None = None, **options: Any) -> Trainer:
    """AdamW with these options."""
    if model is None:
        model = network().to(device)
    return with_optimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-2, **options), device)


def with_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> Trainer:
    """One step is done: the optimizer has its state."""
    batch = torch.randn(4, thresholds.WIDTH, device=device)
    made = Trainer(model, optimizer, batch, model, optimizer.step)
    made.train()
    return made


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()


def differing(one: Tensors, other: Tensors) -> list[str]:
    """Names of tensors that are not the same to the last bit: NaN is NaN, and -0 is not 0."""
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())
    return [name for name, tensor in one.items() if not torch.equal(_bytes(tensor), _bytes(other[name]))]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def run_rounds(ckpt: sw.Checkpointer, one: Trainer, twin: Trainer, rounds: int) -> Outcome:
    """``twin`` gets each checkpoint. A torn snapshot raises, as every failed one does."""
    session = ckpt._session
    under_way = 0
    for number in range(1, rounds + 1):
        one.backward()
        before = {name: tensor.clone() for name, tensor in one.tensors().items()}
        steps = session.optimizer_steps
        snapshot = save(ckpt, number, one.state)
        copying = snapshot.progress.level == "captured"
        one.step()
        if session.optimizer_steps == steps:
            return Outcome("FAIL", f"round {number}: the fence hook did not run before the step", "all")
        under_way += copying
        snapshot.wait(timeout=thresholds.WAIT_SECONDS)
        if not differing(before, one.tensors()):
            return Outcome("FAIL", f"round {number}: the step changed nothing, so this check proves nothing", "all")
        ckpt.restore(twin.state, step=number)
        if wrong := differing(before, twin.tensors()):
            what = f"round {number}: '{wrong[0]}' and {len(wrong) - 1} more differ from what was saved"
            return Outcome("FAIL", what, "all")
    return Outcome("PASS", f"{rounds} rounds equal, {under_way} with copies under way", "all")


def adamw_foreach(context: Context) -> Outcome:
    found = _adamw(context, foreach=True)
    if context.kind == "cuda" and any(part.get("is_expandable") for part in torch.cuda.memory_snapshot()):
        return dataclasses.replace(found, figure=f"{found.figure}, expandable segments")
    return found


def adamw_fused(context: Context) -> Outcome:
    return _adamw(context, fused=True)


def _adamw(context: Context, **options: Any) -> Outcome:
    with context.checkpointer() as ckpt:
        one, twin = (trainer(context.device, **options) for _ in range(2))
        return run_rounds(ckpt, one, twin, context.rounds)
