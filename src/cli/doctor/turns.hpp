// "interference: copy turns" of one GPU: what each length of turns (copy_turn) costs, and whether one meets both goals
// of docs/decisions/0014-copies-ahead.md. The engine's own copy threads and streams stage a state, with a pool but
// without a disk, while the trainer's small copies are timed.
// Thread rule: one thread; turns_check() any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/check.hpp"
#include "cli/doctor/settings.hpp"
#include "device/cuda/inspection.hpp"

namespace slackwater::cli::doctor {

struct TurnCost {
  std::uint64_t turn_bytes = 0;      // copy_turn; 0: no turns
  double p99_over_idle = 0;          // of a small copy while a state leaves; idle: the median
  double staging_over_no_turns = 0;  // of the time until the state is staged
};

struct TurnCosts {
  double idle_p50_us = 0;  // a small copy while nothing else is copied
  double idle_p99_us = 0;
  double no_turns_gbs = 0;
  std::vector<TurnCost> turns;  // that of the default is among them
};

// Microseconds that a turn costs besides its bytes, by the shortest turns measured. Never negative.
[[nodiscard]] double turn_cost_us(const TurnCosts& costs, std::uint64_t slab_bytes);
[[nodiscard]] Check turns_check(std::string name, const TurnCosts& costs);

// Takes at most `seconds` or a little more. `most_bytes` limits the state.
[[nodiscard]] Check copy_turns_check(const Settings& settings, cuda::CudaScratch& scratch, std::uint64_t most_bytes,
                                     double seconds);
// Where there is no GPU that can be used.
[[nodiscard]] Check no_copy_turns_check(std::string why);

}  // namespace slackwater::cli::doctor
