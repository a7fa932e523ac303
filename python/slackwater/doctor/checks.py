"""The table of checks, in the order of their lines. Under torchrun, those that ranks make together come first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from . import compiled, guard, interference, memory, processes, ranks, rounds, versions
from .context import Context
from .lines import Outcome

Where = Literal["once", "both", "cuda"]  # "both": on the CPU, and on CUDA where there is a GPU
Phase = Literal["here", "child", "timed"]


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Context], Outcome]
    remedy: str = ""  # for WARN and FAIL, if the check gives none of its own
    where: Where = "both"
    # "child": in a process of its own, beside those that run "here". "timed": last, with nothing else under way.
    phase: Phase = "here"
    quick: bool = True  # whether --quick runs it
    together: Callable[[Context], Outcome] | None = None  # what all ranks of a job do in place of ``run``


_FENCE = "call fence() on the checkpointer before every update, and send this report with --json as a bug"
_BUG = "send this report with --json as a bug"
_PROCESS = (
    "call close() on the checkpointer before the process ends or forks, and send this report with --json as a bug"
)
_RANKS = "ranks must reach each other over the network (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); if they do, " + _BUG
_GPU_SLOW = "lower copy_turn (docs/devices.md)"
_SLOW = (
    "copies share cores and memory with training on a CPU; leave a core free, or save less often (every=). On a GPU: "
    + _GPU_SLOW
)

TABLE = (
    Check("version", versions.version, "use the torch that Slackwater is tested with", "once"),
    Check("fence hook", versions.fence_hook, _FENCE, "once"),
    Check("AdamW foreach", rounds.adamw_foreach, _FENCE),
    Check("AdamW fused", rounds.adamw_fused, _FENCE),
    Check("FSDP2", ranks.own_fsdp2, _RANKS, "once", together=ranks.fsdp2),
    Check("hand-captured step", compiled.captured_step, _FENCE, "cuda"),
    Check("expandable_segments", memory.expandable_segments, "leave PYTORCH_ALLOC_CONF unset, and " + _BUG, "cuda"),
    Check("update without a fence", guard.counted_update, _BUG),
    Check("update without a fence (.data)", guard.uncounted_update, _BUG),
    Check("exit by os._exit", processes.hard_exit, _PROCESS),
    Check("exit by sys.exit", processes.soft_exit, _PROCESS),
    Check("fork during a save", processes.fork_during_a_save, _PROCESS),
    Check("compiled step", compiled.compiled_step, _FENCE, phase="child", quick=False),
    Check("reduce-overhead", compiled.reduce_overhead, _FENCE, "cuda", "child", quick=False),
    # Timed, because it takes the memory that children on the same GPU would need.
    Check("GPU with 8 MiB left", memory.full_gpu, "leave some memory to the driver, and " + _BUG, "cuda", "timed"),
    Check(".item() while saving", interference.item, _SLOW, phase="timed"),
    Check("launch latency while saving", interference.launch, _SLOW, phase="timed"),
    Check("matmul while saving", interference.matmul, _SLOW, phase="timed"),
    Check("all-reduce while saving", ranks.own_all_reduce, _SLOW, "once", "timed", together=ranks.all_reduce),
    Check(
        "save() of 1,000 tensors", interference.save_cost, "save less often (every=), or fewer tensors", phase="timed"
    ),
)


# Under torchrun this comes before what else the ranks do together.
SHARED = Check("shared directory", ranks.shared_directory, "give a directory on a file system that all ranks share")


def named(name: str) -> Check:
    return next(check for check in TABLE if check.name == name)


def run_in_child(check: str, directory: str, quick: bool, device: str) -> dict[str, str]:
    """The job of a child process."""
    return vars(named(check).run(Context(Path(directory), quick, device)))


# What the forked children can be asked for.
JOBS = {"check": run_in_child, "save_and_exit": processes.save_and_exit, "own_rank": ranks.own_rank}
