"""How long a checkpoint at every step holds up DeepSpeed: our engine beside its torch and fast engines, in one run.

    python bench/deepspeed_stall.py [--quick] [--mib 384] [--stage 1] [--json FILE]

One rank on the CPU. Each way trains in a process of its own, and the ways take turns. The device's computation is
simulated by a sleep, during which copies may run, as they may beside a GPU. The stall is the time that an iteration
takes longer than the median iteration without checkpoints. The first checkpoint of each process, which makes buffers,
is left out. "durable" says whether the bytes survive a power cut when DeepSpeed reports the checkpoint.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FAST_WRITER = "FAST" if Path("/usr/include/libaio.h").exists() else "PYTHON"
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "torch": {},
    "fast": {"checkpoint": {"writer": {"type": FAST_WRITER, "decoupled": False, "data_parallel": "REPLICA"}}},
    "slackwater": {"datastates_ckpt": {"keep": 2}},
}
DURABLE = {"torch": "no (no sync)", "fast": "no (no sync)", "slackwater": "yes"}


def train(way: str, arguments: argparse.Namespace) -> None:
    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        CROSS_SIZE="1",
        CROSS_RANK="0",
    )
    os.environ["MASTER_PORT"] = str(arguments.port)
    import deepspeed
    import torch

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled here, for a minute
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    # ZeRO 1 in float32 saves the weights, their masters and two moments: four times the parameters.
    rows = arguments.mib * (1 << 20) // 16 // 1024
    model = torch.nn.Sequential(torch.nn.Embedding(rows, 1024), torch.nn.Linear(1024, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_batch_size": 4,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": arguments.stage},
            "zero_force_ds_cpu_optimizer": False,
            **WAYS[way],
        },
    )
    iterations, calls = [], []
    for step in range(arguments.steps + 1):
        began = time.perf_counter()
        loss = engine(torch.randint(0, rows, (4, 16))).float().square().mean()
        time.sleep(arguments.compute)
        engine.backward(loss)
        engine.step()
        call = time.perf_counter()
        if way != "none":
            engine.save_checkpoint(arguments.folder, tag=f"global_step{step % 3 if way != 'slackwater' else step}")
        ended = time.perf_counter()
        iterations.append(ended - began)
        calls.append(ended - call)
    began = time.perf_counter()
    engine.destroy()
    # The checkpoint of iteration k holds up iteration k (the call) and k + 1 (the fence).
    result = {"iterations": iterations[2:], "calls": calls[1:], "end": time.perf_counter() - began}
    print("RESULT " + json.dumps(result), flush=True)


def run(way: str, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="slackwater-deepspeed-", dir=arguments.dir) as folder:
        command = [sys.executable, "-W", "ignore", __file__, "--way", way, "--folder", folder]
        command += ["--port", str(29600 + number), "--mib", str(arguments.mib), "--stage", str(arguments.stage)]
        command += ["--steps", str(arguments.steps), "--compute", str(arguments.compute)]
        done = subprocess.run(command, capture_output=True, text=True)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    raise SystemExit(f"{way} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small state, one round")
    parser.add_argument("--mib", type=int, default=384, help="size of a checkpoint (default: 384)")
    parser.add_argument("--stage", type=int, default=1, help="ZeRO stage (default: 1)")
    parser.add_argument("--steps", type=int, default=6, help="checkpoints per process (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="processes per way (default: 3)")
    parser.add_argument("--compute", type=float, default=1.0, help="simulated seconds per iteration (default: 1)")
    parser.add_argument("--dir", default="build", help="where the checkpoints go")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=29600, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        train(arguments.way, arguments)
        return
    if arguments.quick:
        arguments.mib, arguments.rounds, arguments.steps = 128, 1, 4
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    number = 0
    for turn in range(arguments.rounds):
        for way in list(WAYS) if turn % 2 == 0 else reversed(WAYS):
            results[way].append(run(way, number, arguments))
            number += 1
    base = statistics.median([value for one in results["none"] for value in one["iterations"]])
    figures: dict[str, Any] = {
        "checkpoint_mib": arguments.mib,
        "zero_stage": arguments.stage,
        "compute_seconds": arguments.compute,
        "iteration_without_seconds": base,
        "fast_writer": FAST_WRITER,
        "ways": {},
    }
    print(f"\n{arguments.mib} MiB per checkpoint, ZeRO {arguments.stage}, an iteration without takes {base:.3f} s")
    print(f"{'engine':<22} | stall per checkpoint (median) | inside save_checkpoint | end of the run | durable")
    for way, runs in results.items():
        if way == "none":
            continue
        stalls = [value - base for one in runs for value in one["iterations"]]
        calls = [value for one in runs for value in one["calls"]]
        end = statistics.median([one["end"] for one in runs])
        figures["ways"][way] = {
            "stall_ms": [1e3 * value for value in stalls],
            "stall_ms_median": 1e3 * statistics.median(stalls),
            "save_call_ms_median": 1e3 * statistics.median(calls),
            "end_seconds_median": end,
            "durable": DURABLE[way],
        }
        shown = figures["ways"][way]
        label = f"fast ({FAST_WRITER} writer)" if way == "fast" else way
        print(
            f"{label:<22} | {shown['stall_ms_median']:>26.1f} ms | {shown['save_call_ms_median']:>19.1f} ms | "
            f"{end:>12.2f} s | {DURABLE[way]}"
        )
    print(json.dumps(figures))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
