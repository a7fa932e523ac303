"""The trainer of the demo: a child process that demo.py starts, kills and starts again.

Writes one JSON object a line to stdout: {"start": ...}, then one for each step, then {"end": ...}. Losses are written
as hexadecimal floats and the final state as a SHA-256, so that the parent can compare bit by bit.
"""

import argparse
import contextlib
import hashlib
import json
import os
import time

import slackwater as sw
import torch
from gpt import GPT, Batches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--run", help="directory of the checkpoints; without it none are made")
    args = parser.parse_args()

    make_deterministic()
    state = new_state()
    with sw.Checkpointer(args.run) if args.run else contextlib.nullcontext() as ckpt:
        start = (ckpt.restore(state) or 0) if ckpt else 0
        report(start=start)
        train(state, start, args.steps, ckpt)
    # Leaving the block waited until everything was committed.
    report(end=args.steps, digest=digest(state), state_bytes=sum(tensor.nbytes for _, tensor in tensors(state)))


def make_deterministic() -> None:
    """On a CPU a sum comes out the same, bit by bit, when as many threads share the work in the same way."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(min(4, os.cpu_count() or 1))
    torch.manual_seed(0)


def new_state() -> dict:
    batches = Batches()
    model = GPT(batches.vocabulary)
    optim = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
    warmup = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: min(1.0, (step + 1) / 10))
    return {"model": model, "optim": optim, "schedule": warmup, "batches": batches, "rng": sw.Rng()}


def train(state: dict, start: int, steps: int, ckpt: sw.Checkpointer | None) -> None:
    model, optim, schedule, batches = (state[name] for name in ("model", "optim", "schedule", "batches"))
    in_flight: list[sw.Snapshot] = []
    newest, rate = start, 0.0
    for step in range(start + 1, steps + 1):
        loss = model(*next(batches))
        loss.backward()

        # optim.step() waits at the fence by itself. Called here first, so that the wait can be timed from outside.
        began = time.perf_counter()
        if ckpt:
            ckpt.fence()
        stall = time.perf_counter() - began

        optim.step()
        schedule.step()
        optim.zero_grad()

        began = time.perf_counter()
        if ckpt:
            in_flight.append(ckpt.save(step, state))
        stall += time.perf_counter() - began

        while in_flight and in_flight[0].progress.level == "committed":
            snapshot = in_flight.pop(0)
            newest, rate = snapshot.step, snapshot.stats.total_bytes / snapshot.stats.durable_seconds
        report(step=step, loss=loss.item().hex(), stall=stall, rate=rate, committed=newest)


def tensors(state: dict) -> list[tuple[str, torch.Tensor]]:
    """Weights and optimizer state, in a fixed order."""
    found = []
    for name, parameter in state["model"].named_parameters():
        moments = state["optim"].state.get(parameter, {})
        found += [(name, parameter), *((f"{name}.{key}", moments[key]) for key in sorted(moments))]
    return found


def digest(state: dict) -> str:
    result = hashlib.sha256()
    for name, tensor in tensors(state):
        result.update(name.encode())
        result.update(tensor.detach().numpy().tobytes())
    return result.hexdigest()


def report(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
