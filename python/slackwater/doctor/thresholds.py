"""Every limit of the doctor, with its reason. Limits on time have room for a busy machine: false alarms cost trust."""

from __future__ import annotations

TESTED_TORCH = (2, 13)  # the release that Slackwater's own tests use

# Sizes. The state is three times the pool, so its copies are still under way when save() returns and the step begins.
POOL = "2MiB"
SLAB = "1MiB"
WIDTH = 768  # of the square layer: 2.25 MiB of weights, 6.75 MiB with AdamW's moments
LARGE_BYTES = 32 << 20  # one tensor that takes a disk some tens of milliseconds
ROUNDS = 12
QUICK_ROUNDS = 3
TRIES = 20  # of the negative control, until an update comes before the copies have ended

# Seconds. They end what hangs; nothing that works comes near them.
WAIT_SECONDS = 30.0  # for a commit
CLOSE_SECONDS = 20.0
CHILD_SECONDS = 45.0  # for a child process
COMPILE_SECONDS = 30.0  # torch.compile takes 10 s on two cores; the doctor has a minute
RANKS_SECONDS = 60.0  # for other ranks: one that died must not hang the rest

# save() of 1,000 tensors takes 4 to 10 ms on two cores at 2 GHz. More is a cost that users notice at every iteration.
SAVE_COUNT = 1_000
SAVE_TRIES = 12
SAVE_MS = 10.0

# A GPU counts as ours alone if others use less than this: the driver's own contexts take some hundred MiB.
LEFT_BYTES = 8 << 20
OTHERS_BYTES = 2 << 30

# Interference: how much slower the slowest 1 % of operations may be while a snapshot is saved, and from how many
# milliseconds on that matters at all. On a GPU the copy engines work beside the kernels, so little may change. On a
# CPU, copying, checksums and writing share cores and memory with training. There only a stop is worth a word.
LATENCY_RATIO = {"cuda": 3.0, "cpu": 10.0}
LATENCY_FLOOR_MS = {"cuda": 1.0, "cpu": 25.0}
# The share of the idle rate that must be left. Two cores may lose half of it to copies, and some more to noise.
RATE_SHARE = {"cuda": 0.8, "cpu": 0.2}
# What is saved meanwhile. A GPU's state fits into the pool, so that its copies run at the full speed of the bus.
LOAD_BYTES = {"cuda": 256 << 20, "cpu": LARGE_BYTES}
LOAD_POOL = {"cuda": "256MiB", "cpu": POOL}
BLOCK_SECONDS = 0.3  # of one measurement; idle and busy alternate
QUICK_BLOCK_SECONDS = 0.1
BLOCKS = 3
LEAST_OPERATIONS = 10  # per block, however slow they are
REDUCE_BYTES = 4 << 20
REDUCE_COUNT = 30  # all-reduces per block: a number, not a time, because all ranks must make equally many
