// Every threshold of `slackwater doctor`, with its reason. docs/doctor.md explains them to users.
// Constants only; any thread.
#pragma once

#include <cstdint>

#include "cli/doctor/check.hpp"

namespace slackwater::cli::doctor {

// --- machine ---------------------------------------------------------------------------------------------------------
// 5.19 has sparse tables of registered buffers. Before 5.11, our queue cannot use io_uring at all.
inline constexpr int kKernelWanted[2] = {5, 19};
inline constexpr int kKernelForUring[2] = {5, 11};
// Beyond one running process per processor, every speed measured here is that of a share.
inline constexpr double kLoadPerProcessor = 1;
// Beyond this, a slow result says nothing about the machine: never a FAIL.
inline constexpr double kTooMuchLoadPerProcessor = 2;
// Two slabs of 8 MiB for each of two snapshots, the 64 MiB that the engine may use besides, and some room to run.
inline constexpr std::uint64_t kMemoryNeeded = 128ull << 20;
// A quarter of it is the automatic pool. 256 MiB keep a disk of 5 GB/s busy for 50 ms.
inline constexpr std::uint64_t kMemoryWanted = 1ull << 30;
// A commit syncs five times in a row. With 30 ms each, checkpoints are at least 150 ms apart. A hard disk
// takes 10 to 20.
inline constexpr Band kSyncMedianMs{.warn = 30, .fail = 1000};
// A single sync that takes this long is what users notice as a step that hangs.
inline constexpr double kSyncWorstMs = 1000;
// A file system that is nearly full gets slow and fragments its files.
inline constexpr double kFreeSpaceMargin = 1.2;
// Without --state-bytes: less than this and not even a small model has room.
inline constexpr std::uint64_t kFreeSpaceWanted = 4ull << 30;

// --- ours next to raw ------------------------------------------------------------------------------------------------
// The engine does what raw I/O does, plus checksums and a commit. It reaches 0.9 or more on an idle machine. Two
// identical programs differ by up to 0.2 in single runs, so more than that is worth a look. Below 0.3 something is
// broken.
inline constexpr Band kOursOverRaw{.warn = 0.8, .fail = 0.3};

// --- pool and device -------------------------------------------------------------------------------------------------
// Memory that is fragmented, or huge pages that must be made first, give 0.3 GB/s. Plain pages give 1 to 3.
inline constexpr double kTouchGbs = 0.5;
// O_DIRECT from plain pages can be half as fast, because each request is in thousands of pieces.
inline constexpr double kHugePart = 0.5;
// Registering pins every page: 2 to 10 GB/s are usual. At 0.5, a pool of 40 GB takes 80 s.
inline constexpr double kRegisterGbs = 0.5;
// The driver holds locks meanwhile, so a call of the trainer may wait this long.
inline constexpr double kRegisterSlowestMs = 250;
// One engine for both directions: our copies and the trainer's uploads take turns.
inline constexpr int kCopyEnginesWanted = 2;
// With fewer hardware queues, a copy may wait behind kernels of other streams. The driver's default is 8.
inline constexpr int kConnectionsWanted = 2;
// All GPUs at once, next to the sum of each alone. Two that share the link of a switch get half, which is how many
// servers are built. With a link each, the memory of the host may be the limit. A guess: no such machine was measured.
inline constexpr double kAtOnceOverAlone = 0.6;
// What the checks themselves allocate on a device. A GPU with less is in use by somebody else.
inline constexpr std::uint64_t kDeviceMemoryNeeded = 256ull << 20;

// --- interference ----------------------------------------------------------------------------------------------------
// Copies leave in turns of 2 MiB: 84 us at 25 GB/s, after which the trainer's passes. Where turns do not work, it waits
// for all that is queued: 2.7 ms for 64 MiB, and often for the whole state. Beyond 250 ms, every loss.item() is seen in
// the step time.
inline constexpr double kSmallCopyOverIdle = 3;
inline constexpr double kSmallCopyTurnMs = 0.1;
inline constexpr double kSmallCopyFailMs = 250;
// What turns may cost: the time until a state is staged, next to that without turns. Both goals are those of
// docs/decisions/0014-copies-ahead.md, which shows on which GPUs they can be met.
inline constexpr double kStagingOverNoTurns = 1.03;
// Seconds for measuring turns: on all GPUs of a machine together, at least on each, and at most on each.
inline constexpr double kTurnsSeconds = 24;
inline constexpr double kTurnsSecondsLeast = 3;
inline constexpr double kTurnsSecondsMost = 8;
// Queueing work takes some 5 us. A call that takes a millisecond has waited for a lock of the driver.
inline constexpr Band kLaunchP99Ms{.warn = 1, .fail = 100};
// A copy of 1 MiB takes 0.1 ms. Copy threads may take its processor for a few time slices of 4 ms.
inline constexpr Band kHostCopyP99Ms{.warn = 20, .fail = 250};

}  // namespace slackwater::cli::doctor
