"""Trainings of the tests of Transformers, Accelerate and Lightning: `trainer_cases.py CASE [OPTION=VALUE ...]`.

docs_server.py runs them, and kills them. Each goes on from the checkpoint in ./run, if there is one, to the same end.
It writes what it has then to ./end-RANK.pt. ./order-RANK.jsonl has which samples each step was trained on. Of a step
that was trained twice, the last lines count.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

RANK = int(os.environ.get("RANK", "0"))
SAMPLES = 24
SMALL: dict[str, Any] = {"pool": "4MiB", "slab": "1MiB"}


def note(step: int, ids: Any) -> None:
    with open(f"order-{RANK}.jsonl", "a") as file:
        file.write(json.dumps([step, ids.tolist()]) + "\n")


def finish(model: Any, optimizers: Any, schedulers: Any, **more: Any) -> None:
    """Everything that must be the same, to the last bit."""
    torch.save(
        {
            "model": {name.removeprefix("module."): tensor for name, tensor in model.state_dict().items()},
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in schedulers],
            "random": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
            "draws": [random.random(), np.random.rand(), torch.rand(2)],
            **more,
        },
        f"end-{RANK}.pt",
    )


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sample i is i, and some of its powers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), *(torch.tensor(index / SAMPLES) ** torch.arange(1, 8)).tolist()])


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Without a length, and with another order in each pass."""

    def __iter__(self) -> Any:
        return (Samples()[int(index)] for index in torch.randperm(SAMPLES))


def network() -> nn.Module:
    """With dropout, which draws random numbers, and statistics that change in the forward pass."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))


# Transformers


class Wrapped(nn.Module):
    """What Trainer takes: a model that returns its loss."""

    def __init__(self, large: bool = False) -> None:
        super().__init__()
        self.net = network()
        self.register_buffer("large", torch.zeros(1 << 19 if large else 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.net(x[:, 1:]).squeeze() - x[:, 1]).square().mean()
        return {"loss": loss, "logits": loss.detach()[None]}


def transformers_case(**options: Any) -> None:
    import transformers
    from slackwater.integrations.transformers import SlackwaterMixin, SlackwaterTrainer

    class Counter(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
        """A callback with state."""

        def __init__(self) -> None:
            self.steps = self.epochs = self.evaluations = 0

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": dict(vars(self))}

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.steps += 1

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.epochs += 1

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            self.evaluations += 1

    class Noting:
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                note(self.state.global_step, inputs["x"][:, 0])  # type: ignore[attr-defined]
            return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]

    mixed = options.pop("mixin", False)
    base = type("Base", (SlackwaterMixin, transformers.Trainer), {}) if mixed else SlackwaterTrainer
    endless = options.pop("endless", False)
    peft = options.pop("peft", False)
    resume = options.pop("resume", "slackwater")
    model: Any = Wrapped(options.pop("large", False))
    if peft:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(4)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["net.0", "net.3"]))
    arguments = {"num_train_epochs": 3} if not endless else {"max_steps": 14}
    arguments |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 1} | options
    args = transformers.TrainingArguments(
        output_dir="out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=3,
        eval_strategy="epoch",
        learning_rate=0.05,
        seed=5,
        remove_unused_columns=False,
        metric_for_best_model="eval_loss",
        label_names=["x"],
        restore_callback_states_from_checkpoint=True,
        **arguments,
    )
    trainer = type("Trainer", (Noting, base), {})(
        model=model,
        args=args,
        train_dataset=Endless() if endless else Samples(),
        eval_dataset=Samples(),
        data_collator=lambda samples: {"x": torch.stack(samples)},
        callbacks=[Counter()],
        slackwater={"path": "run", "keep": 3, **SMALL},
    )
    trainer.train(resume_from_checkpoint=resume)
    counter = next(one for one in trainer.callback_handler.callbacks if isinstance(one, Counter))
    timed = ("_runtime", "_per_second", "train_loss", "jit_compilation_time")
    history = trainer.state.log_history  # whose keys trainer_state.json sorts
    logs = [{key: entry[key] for key in sorted(entry) if not key.endswith(timed)} for entry in history]
    finish(
        trainer.model,
        [trainer.optimizer],
        [trainer.lr_scheduler],
        counter=dict(vars(counter)),
        logs=logs,
        best=[trainer.state.best_metric, trainer.state.best_global_step],
        step=trainer.state.global_step,
    )


# Accelerate


def accelerate_case(**options: Any) -> None:
    import accelerate
    from slackwater.integrations.accelerate import AccelerateCheckpointer

    config = accelerate.DataLoaderConfiguration(
        use_seedable_sampler=options.get("seedable", True), use_stateful_dataloader=options.get("stateful", False)
    )
    accelerate.utils.set_seed(5)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=config)
    model: Any = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
    endless = options.get("endless", False)
    data: Any = Endless() if endless else Samples()
    loader: Any = torch.utils.data.DataLoader(
        data, batch_size=2, shuffle=not endless, num_workers=options.get("workers", 0)
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    meter = Meter()
    accelerator.register_for_checkpointing(meter)
    with AccelerateCheckpointer(accelerator, "run", keep=3, **SMALL) as ck:
        for epoch, batch in ck.batches(loader, epochs=3):
            with accelerator.accumulate(model):
                note(ck.step, batch[:, 0])
                loss = (model(batch[:, 1:]).squeeze() - batch[:, 1]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            meter.total += float(loss) * (epoch + 1)
            ck.save(metadata={"loss": float(loss)})
            if ck.step == options.get("steps"):
                break
        end = ck.step
    finish(model, [optimizer], [scheduler], meter=meter.total, step=end, accelerator=accelerator.step)


class Meter:
    def __init__(self) -> None:
        self.total = 0.0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


# Lightning


def lightning_case(**options: Any) -> None:
    import lightning as L
    from lightning.pytorch.callbacks import EarlyStopping
    from slackwater.integrations.lightning import SlackwaterCallback

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("large", torch.zeros(1 << 16))  # changes in the forward pass
            self.automatic_optimization = not options.get("manual", False)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            note(self.trainer.global_step, batch[:, 0])
            self.large += 1
            loss = (self.net(batch[:, 1:]).squeeze() - batch[:, 1]).square().mean()
            self.log("loss", loss, on_step=True, on_epoch=True)
            if self.automatic_optimization:
                return loss
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            return None

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val", self.net(batch[:, 1:]).mean())

        def on_train_batch_end(self, *_: Any) -> None:
            torch.rand(1)  # after the hooks of callbacks

        def configure_optimizers(self) -> Any:
            if not self.automatic_optimization:
                halves = [self.net[0].parameters(), [*self.net[1].parameters(), *self.net[3].parameters()]]
                return [torch.optim.AdamW(half, lr=0.05) for half in halves]
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            step = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
            return [optimizer], [
                {"scheduler": step, "interval": "step"},
                {"scheduler": plateau, "interval": "epoch", "monitor": "val"},
            ]

    class Counter(L.Callback):
        def __init__(self) -> None:
            self.counts = dict.fromkeys(("batches", "epochs", "starts", "validations"), 0)

        def on_train_batch_end(self, *_: Any) -> None:
            self.counts["batches"] += 1

        def on_train_epoch_start(self, *_: Any) -> None:
            self.counts["starts"] += 1

        def on_train_epoch_end(self, *_: Any) -> None:
            self.counts["epochs"] += 1

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            self.counts["validations"] += not trainer.sanity_checking

        def state_dict(self) -> dict[str, Any]:
            return self.counts

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.counts = state

    L.seed_everything(5, verbose=False)
    endless = options.get("endless", False)
    shuffle = {} if endless else {"shuffle": True}
    if options.get("stateful"):
        from torchdata.stateful_dataloader import StatefulDataLoader as Loader
    else:
        from torch.utils.data import DataLoader as Loader
    workers = options.get("workers", 0)
    loader = Loader(Endless() if endless else Samples(), batch_size=2, num_workers=workers, **shuffle)
    validation = torch.utils.data.DataLoader(Samples(), batch_size=11)
    module, counter = Module(), Counter()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    limit = {"max_steps": options["max_steps"]} if "max_steps" in options else {"max_epochs": 3}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=1 if options.get("manual") else options.get("accumulate", 2),
        val_check_interval=options.get("validate", 1.0),
        callbacks=[
            SlackwaterCallback("run", keep=3, **SMALL),
            counter,
            EarlyStopping("val", patience=100, strict=False),
        ],
        **limit,
    )
    trainer.fit(module, loader, validation, ckpt_path="slackwater")
    finish(
        module,
        trainer.optimizers,
        [config.scheduler for config in trainer.lr_scheduler_configs],
        counts=counter.counts,
        step=trainer.global_step,
        epoch=trainer.current_epoch,
        stopping=trainer.callbacks[-1].state_dict(),
        loops=trainer.fit_loop.state_dict(),
    )


def spoil(*, fence: bool | None = None, early: bool = False) -> None:
    """``fence``: snapshots are settled at a fence or at the end, and not earlier, with or without the fence before the
    optimizer's step. ``early``: random states are set when the rest is restored, and not once more."""
    from slackwater.in_flight import InFlight
    from slackwater.integrations.trainer_shared import LateRandom
    from slackwater.session import Session

    if fence is not None:
        InFlight.settle_all = lambda self: None  # type: ignore[method-assign]
    if fence is False:
        Session.fence_quietly = lambda self: None  # type: ignore[method-assign]
    if early:
        LateRandom.apply = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    given = {key: json.loads(value) for key, value in (argument.split("=") for argument in sys.argv[2:])}
    spoil(**{key: given.pop(key) for key in ("fence", "early") if key in given})
    case = {"transformers": transformers_case, "accelerate": accelerate_case, "lightning": lightning_case}[sys.argv[1]]
    case(**given)
