// How fast copies leave a device, next to a bare copy, and what the trainer's own calls cost meanwhile.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/check.hpp"
#include "cli/doctor/settings.hpp"
#include "device/scratch.hpp"

namespace slackwater::cli::doctor {

// Milliseconds of one kind of call, when nothing else runs and while a snapshot is being copied.
struct Latencies {
  std::vector<double> idle;
  std::vector<double> copying;
};
[[nodiscard]] Check latency_check(std::string name, const Latencies& latencies, Band p99_ms, bool quick);
// For a copy on a GPU, which may take longer than an idle one by a turn of ours.
[[nodiscard]] Check small_copy_check(std::string name, const Latencies& latencies, bool quick);

// "copies" and "interference" of one device. `most_bytes` limits the state that is saved.
void copy_checks(const Settings& settings, Scratch& scratch, std::uint64_t most_bytes, const Emit& emit);

}  // namespace slackwater::cli::doctor
