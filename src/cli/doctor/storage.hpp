// The directory that checkpoints will go to: O_DIRECT, speed, syncs, free space. The engine saves and restores a small
// state in the scratch directory, and raw I/O moves the same bytes in turns with it.
// The judges are pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/doctor/check.hpp"
#include "cli/doctor/machine.hpp"
#include "cli/doctor/settings.hpp"

namespace slackwater::cli::doctor {

[[nodiscard]] Check direct_io_check(bool direct, const std::optional<Mount>& mount);
[[nodiscard]] Check sync_check(const std::vector<double>& milliseconds);
[[nodiscard]] Check free_space_check(std::uint64_t free_bytes, std::uint64_t state_bytes, std::uint64_t keep,
                                     unsigned in_flight);

// Rates in GB/s, measured in turns.
struct Rates {
  std::vector<double> ours;
  std::vector<double> raw;
};
// "1.21 GB/s, 0.97 of raw (1.25)". The medians are compared.
[[nodiscard]] Check ratio_check(Check check, const Rates& rates, const char* raw_name, bool quick);

void storage_checks(const Settings& settings, const MachineFiles& files, const Emit& emit);

}  // namespace slackwater::cli::doctor
