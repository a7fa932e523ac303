"""The shortest training loop with a checkpoint at every iteration. Stop it with kill -9, start it again: it goes on."""

import sys
from pathlib import Path

import slackwater as sw
import torch
from gpt import GPT, Batches

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/minimal")
directory.parent.mkdir(parents=True, exist_ok=True)
steps = 100

batches = Batches()
model = GPT(batches.vocabulary, layers=2, width=128, heads=4)
optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

with sw.Checkpointer(directory) as ckpt:
    state = {"model": model, "optim": optim, "data": batches, "rng": sw.Rng()}
    start = ckpt.restore(state) or 0
    for step in range(start + 1, steps + 1):
        loss = model(*next(batches))
        loss.backward()
        optim.step()
        optim.zero_grad()
        ckpt.save(step, state)
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
