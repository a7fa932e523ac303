// The figures of the DataStates-LLM paper (HPDC'24, arXiv 2406.10707) that `slackwater_bench lazy` is laid beside, and
// the scale at which it repeats them. Constants and pure functions.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

namespace slackwater::bench {

// The paper's four systems, in the order of its tables.
enum class PaperSystem : std::uint8_t { kDeepSpeed, kAsyncCopy, kTorchSnapshot, kDataStates };
inline constexpr std::size_t kPaperSystems = 4;

inline constexpr std::array<unsigned, 6> kPaperIntervals{10, 5, 4,
                                                         3,  2, 1};  // iterations from checkpoint to checkpoint
inline constexpr unsigned kPaperIterations = 50;

// 50 iterations end to end, in seconds, by interval.
struct PaperRuns {
  std::array<std::array<double, kPaperIntervals.size()>, kPaperSystems> seconds;
};

struct PaperModel {
  std::string_view name;
  unsigned gpus;
  double checkpoint_gb;  // over all GPUs
  double forward_s;
  double backward_s;
  double update_s;
  std::array<double, kPaperSystems> gb_per_s;     // checkpoint bytes / time that training is blocked
  std::array<double, kPaperSystems> iteration_s;  // with a checkpoint at every one
  const PaperRuns* runs;                          // null where the paper has none

  [[nodiscard]] double state_bytes() const { return checkpoint_gb * 1e9 / gpus; }
  [[nodiscard]] double compute_s() const { return forward_s + backward_s; }
  [[nodiscard]] double plain_iteration_s() const { return compute_s() + update_s; }
  [[nodiscard]] double paper_blocked_s(PaperSystem system) const {
    return checkpoint_gb / gb_per_s[static_cast<std::size_t>(system)];
  }
};

[[nodiscard]] std::span<const PaperModel> paper_models();
[[nodiscard]] const PaperModel& paper_model(std::string_view name);  // one of the above

// Of one GPU. Four of them share a node, its 64 GB of host buffer, and the 6 to 7 GB/s its flushes sustained.
inline constexpr double kPaperCopyBytesPerS = 25e9;
inline constexpr double kPaperFlushBytesPerS = 6.5e9 / 4;
inline constexpr double kPaperPoolBytes = 64e9 / 4;

// One factor for bytes and bandwidths, so that every proportion of times stays. And one for all times, which takes as
// much from the bytes again: bandwidths stay as they are.
struct Scale {
  double bytes = 1;
  double time = 1;

  [[nodiscard]] std::uint64_t size(double paper_bytes) const {
    return static_cast<std::uint64_t>(paper_bytes / bytes / time);
  }
  [[nodiscard]] double bandwidth(double paper_bytes_per_s) const { return paper_bytes_per_s / bytes; }
  [[nodiscard]] std::chrono::nanoseconds duration(double paper_s) const {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(paper_s / time * 1e9));
  }
  [[nodiscard]] double paper_seconds(double measured_s) const { return measured_s * time; }
};

}  // namespace slackwater::bench
