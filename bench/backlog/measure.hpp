// `slackwater_bench backlog`: how long a small copy of the trainer waits while a state leaves the GPU, and what it
// costs to let it pass. Plain values; measure_backlog() is called on one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/lazy/simulated_gpu.hpp"
#include "bench/verdict.hpp"
#include "cli/json_output.hpp"

namespace slackwater::bench {

inline constexpr std::uint64_t kMiB = 1u << 20;

// One way to run the engine. Bytes are those of a real GPU; they are scaled down for the run.
struct BacklogSetting {
  std::uint64_t copies_ahead_bytes = 0;  // 0: no limit
  std::uint64_t copy_turn_bytes = 0;     // 0: no turns
  bool operator==(const BacklogSetting&) const = default;
};

// What is simulated, and how much is done. Times, bytes and bandwidths are those of a real GPU. Bytes are divided by
// `scale` for the run. Times are multiplied by `slow`, because the simulated GPU needs a processor for every copy.
struct BacklogPlan {
  double state_bytes = 4e9;
  double bytes_per_s = 25e9;
  double scale = 8;
  double slow = 4;
  std::uint64_t slab_bytes = 8 * kMiB;
  std::chrono::nanoseconds engine_time{2'000};  // that each copy takes on the copy engine besides its bytes
  std::chrono::nanoseconds call_time{8'000};    // that a small copy takes elsewhere: the call, and the wait for its end
  std::vector<BacklogSetting> settings;         // the first is the reference: everything queued at once
  unsigned repeats = 3;
  unsigned saves = 2;  // counted ones per repeat; one more comes first
  unsigned idle_copies = 300;

  [[nodiscard]] std::uint64_t scaled(double bytes) const { return static_cast<std::uint64_t>(bytes / scale); }
  [[nodiscard]] static BacklogPlan full();
  [[nodiscard]] static BacklogPlan quick();
};

// How long small copies took, from the call until they were over.
struct Waits {
  std::size_t count = 0;
  double p50_s = 0;
  double p99_s = 0;
  double max_s = 0;
  [[nodiscard]] static std::optional<Waits> of(const std::vector<double>& samples_s);
};

struct BacklogRow {
  BacklogSetting setting;
  std::optional<Waits> waits;    // while the state leaves; none if all were held up
  std::vector<double> staged_s;  // from the start of save(), by repeat
  double median_staged_s = 0;
  double median_of_reference = 0;  // of the ratios to the reference, by repeat
};

struct BacklogFigures {
  BacklogPlan plan;
  std::uint64_t state_bytes = 0;  // as run
  Waits idle;                     // when nothing else is copied
  std::vector<BacklogRow> rows;
  std::vector<Verdict> verdicts;
  std::uint64_t compared = 0;  // checkpoints read back and found right
  std::uint64_t held_up = 0;   // small copies that were not counted, because the machine held the thread up
};

// `directory` must exist. `on_run` is told before each run what it will be.
[[nodiscard]] Result<BacklogFigures> measure_backlog(const SimulatedGpu& gpu, const std::string& directory,
                                                     const BacklogPlan& plan,
                                                     const std::function<void(const std::string&)>& on_run);

void print_figures(const BacklogFigures& figures);
[[nodiscard]] cli::OrderedJson figures_json(const BacklogFigures& figures);
[[nodiscard]] BacklogSetting default_setting();  // of the engine
[[nodiscard]] std::string setting_text(const BacklogSetting& setting);

}  // namespace slackwater::bench
