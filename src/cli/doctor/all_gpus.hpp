// "device: all GPUs at once": how fast GPUs copy to the host when all of them do, as at a checkpoint of all ranks of a
// node. They share the memory of the host, and often a switch.
// Thread rule: one thread; a thread per GPU while it measures. gpus_at_once_check() any.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/doctor/check.hpp"
#include "cli/doctor/settings.hpp"

namespace slackwater::cli::doctor {

// GB/s by GPU.
struct GpuRates {
  std::vector<double> alone;
  std::vector<double> at_once;
};
[[nodiscard]] Check gpus_at_once_check(const GpuRates& rates);

// For more than one GPU.
void all_gpus_checks(const Settings& settings, int gpus, std::uint64_t usable_host_bytes, const Emit& emit);

}  // namespace slackwater::cli::doctor
