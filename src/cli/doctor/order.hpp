// Whether checkpoints hold the right bytes: those of the moment of save(), whatever the trainer does after the fence.
// The same checks run on host memory and on each CUDA device. Each returns within a few times Settings::time_limit().
// Thread rule: one thread.
#pragma once

#include "cli/doctor/check.hpp"
#include "cli/doctor/settings.hpp"
#include "device/cuda/inspection.hpp"

namespace slackwater::cli::doctor {

// Random states: save, fence, immediate update, restore, compare.
[[nodiscard]] Check rounds_check(const Settings& settings, Scratch& scratch);
// The negative control: an update without a fence. PASS means that the snapshot failed because of it.
[[nodiscard]] Check missing_fence_check(const Settings& settings, Scratch& scratch);
// Thousands of small tensors, copied in batches and one by one.
[[nodiscard]] Check batches_check(const Settings& settings, Scratch& scratch);
// A save while 8 MiB of the device's memory are free.
[[nodiscard]] Check full_device_check(const Settings& settings, cuda::CudaScratch& scratch);

}  // namespace slackwater::cli::doctor
