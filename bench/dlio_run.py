"""DLIO (MLPerf Storage) with our checkpoint mechanism beside its own, on 2 MPI ranks, in one run.

    python bench/dlio_run.py --dlio build/dlio [--quick] [--json FILE]

The checkpoint has the shape of a Llama with 12 layers, shrunk (--mib per rank). The ways take turns (ABBA), and so do
raw writes of the same bytes with O_DIRECT: two processes, 8 MiB at a time from huge pages, 8 at the same time, one
fdatasync. DLIO's own mechanism does not sync, so its figure is the time until the page cache has the bytes. "synced" is
the same with one fsync per file. The first checkpoint of each process, which makes buffers, is left out.

Each round compares medians of the same number of checkpoints and raw writes. The figure is the median of the rounds'
ratios, with the least and the greatest of them (with 5 rounds, a 94 % interval).
"""

import argparse
import concurrent.futures
import json
import mmap
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
RANKS = 2
LAYERS = 12
WAYS = {
    "dlio": "",
    "dlio, synced": "dlio_synced.SyncedCheckpointing",
    "slackwater": "slackwater.integrations.dlio.SlackwaterCheckpointing",
}
CHUNK = 8 << 20
AT_ONCE = 8  # raw writes of a rank
GOAL = 0.95  # of raw O_DIRECT


def sizes(mib: int) -> tuple[list[int], list[int], int]:
    """Optimizer groups, tensors of a layer, and the bytes that a rank then writes."""
    total = mib << 20
    # DLIO saves each group three times (a, b, combined), and the tensors of a layer once per layer.
    group = total * 3 // 4 // 6 // 4096 * 4096
    layer = total // 4 // LAYERS // 4096 * 4096
    attention, mlp = layer // 3 // 4096 * 4096, layer - layer // 3 // 4096 * 4096
    return [group, group], [attention, mlp], 6 * group + LAYERS * layer


def run_dlio(way: str, arguments: argparse.Namespace, folder: Path) -> list[float]:
    groups, layer, _ = sizes(arguments.mib)
    settings = {
        "framework": "pytorch",
        "workflow.generate_data": True,
        "workflow.train": True,
        "workflow.evaluation": False,
        "workflow.checkpoint": True,
        "dataset.data_folder": folder / "data",
        "dataset.num_files_train": 2,
        "dataset.num_files_eval": 0,
        "dataset.num_samples_per_file": 2,
        "dataset.record_length": 1024,
        "dataset.format": "npz",
        "reader.data_loader": "pytorch",
        "reader.batch_size": 1,
        "reader.read_threads": 0,
        "train.epochs": arguments.checkpoints + 1,
        "train.computation_time": 0.0,
        "checkpoint.checkpoint_folder": folder / "checkpoints",
        "checkpoint.checkpoint_after_epoch": 1,
        "checkpoint.epochs_between_checkpoints": 1,
        "checkpoint.type": "all_ranks",
        "checkpoint.model_size": 4096,
        "checkpoint.optimization_groups": groups,
        "checkpoint.num_layers": LAYERS,
        "checkpoint.layer_parameters": layer,
    }
    if WAYS[way]:
        settings["checkpoint.checkpoint_mechanism_classname"] = WAYS[way]
    command = [
        "mpirun",
        "--oversubscribe",
        "-n",
        str(RANKS),
        sys.executable,
        "-W",
        "ignore",
        str(BENCH / "dlio_main.py"),
    ]
    command += ["workload=default", f"hydra.run.dir={folder / 'hydra'}"]
    command += [f"++workload.{name}={str(value).replace(' ', '')}" for name, value in settings.items()]
    environment = os.environ | {
        "PYTHONPATH": f"{arguments.dlio}:{BENCH}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "DFTRACER_ENABLE": "0",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    stats = folder / "hydra" / "per_epoch_stats.json"
    if done.returncode != 0 or not stats.exists():
        raise SystemExit(f"DLIO with {way} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    seconds = []
    for epoch in json.loads(stats.read_text()).values():
        for name, block in epoch.items():
            if name.startswith("ckpt"):
                start, end = (datetime.fromisoformat(block[key]) for key in ("start", "end"))
                seconds.append((end - start).total_seconds())
    return seconds[1:]


def write_raw(path: str, size: int, times: int, barrier: Any) -> None:
    size = -(-size // 4096) * 4096
    memory = mmap.mmap(-1, AT_ONCE * CHUNK)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.write(os.urandom(1 << 20) * (AT_ONCE * CHUNK >> 20))
    view = memoryview(memory)
    for number in range(times):
        barrier.wait()
        handle = os.open(f"{path}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        os.posix_fallocate(handle, 0, size)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:

            def write(offset: int, handle: int = handle) -> None:
                slot = offset // CHUNK % AT_ONCE * CHUNK
                os.pwrite(handle, view[slot : slot + min(CHUNK, size - offset)], offset)

            list(pool.map(write, range(0, size, CHUNK)))
        os.fdatasync(handle)
        os.close(handle)
        barrier.wait()
        if number > 0:  # as a run that keeps one earlier checkpoint
            os.unlink(f"{path}.{number - 1}")


def run_raw(arguments: argparse.Namespace, folder: Path) -> list[float]:
    *_, size = sizes(arguments.mib)
    barrier = multiprocessing.Barrier(RANKS + 1)
    times = arguments.checkpoints + 1
    writers = [
        multiprocessing.Process(target=write_raw, args=(str(folder / f"raw-{rank}"), size, times, barrier))
        for rank in range(RANKS)
    ]
    for writer in writers:
        writer.start()
    seconds = []
    for _ in range(times):
        barrier.wait()
        began = time.perf_counter()
        barrier.wait()
        seconds.append(time.perf_counter() - began)
    for writer in writers:
        writer.join()
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dlio", type=Path, default=Path("build/dlio"), help="where dlio-benchmark is installed")
    parser.add_argument("--mib", type=int, default=512, help="MiB that each rank writes (default: 512)")
    parser.add_argument("--checkpoints", type=int, default=4, help="checkpoints per process (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="processes per way (default: 5)")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where the checkpoints go")
    parser.add_argument("--quick", action="store_true", help="128 MiB, one round")
    parser.add_argument("--json", help="write the figures here")
    arguments = parser.parse_args()
    arguments.dlio = arguments.dlio.resolve()
    if arguments.quick:
        arguments.mib, arguments.rounds, arguments.checkpoints = 128, 1, 3
    raw = "raw O_DIRECT"
    rounds: dict[str, list[list[float]]] = {way: [] for way in [*WAYS, raw]}
    for turn in range(arguments.rounds):
        for way in list(rounds) if turn % 2 == 0 else reversed(rounds):
            folder = (arguments.dir / f"dlio-bench-{os.getpid()}").resolve()
            folder.mkdir(parents=True)
            try:
                rounds[way].append(run_raw(arguments, folder) if way == raw else run_dlio(way, arguments, folder))
            finally:
                shutil.rmtree(folder)
            os.sync()  # what one way left in the page cache must not slow down the next
    size = RANKS * sizes(arguments.mib)[2]
    figures: dict[str, Any] = {"bytes_per_checkpoint": size, "ranks": RANKS, "goal": GOAL, "ways": {}}
    print(f"\n{size / 1e9:.2f} GB per checkpoint on {RANKS} ranks, {arguments.rounds} rounds")
    print(f"{'mechanism':<14} | seconds (median) |   GB/s | of raw O_DIRECT (rounds) | durable when it returns")
    durable = {"dlio": "no", "dlio, synced": "yes, files only", "slackwater": "yes, and committed", raw: "yes"}
    medians = {way: [statistics.median(of_round) for of_round in of_way] for way, of_way in rounds.items()}
    for way, of_way in medians.items():
        median = statistics.median(of_way)
        rate = size / median / 1e9
        ratios = [of_raw / own for of_raw, own in zip(medians[raw], of_way, strict=True)]
        ratio = statistics.median(ratios)
        figures["ways"][way] = {
            "seconds": rounds[way],
            "gb_per_second": rate,
            "of_raw": ratio,
            "of_raw_by_round": ratios,
            "durable": durable[way],
        }
        spread = f"{ratio:.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
        print(f"{way:<14} | {median:>16.3f} | {rate:>6.2f} | {spread:>24} | {durable[way]}")
    ours = figures["ways"]["slackwater"]["of_raw"]
    print(f"goal: slackwater at {GOAL} of raw O_DIRECT or better: {'met' if ours >= GOAL else 'missed'}")
    print(json.dumps(figures))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
