// `slackwater_bench lazy`: what is measured, and what of it is reported. Times are scaled back to the paper's size
// here. Plain values; measure() is called on one thread, and starts others.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/lazy/training_run.hpp"
#include "bench/verdict.hpp"
#include "cli/json_output.hpp"

namespace slackwater::bench {

enum class DiskSpeed : std::uint8_t { kPaper, kOfThisMachine };
inline constexpr std::array kDisks{DiskSpeed::kPaper, DiskSpeed::kOfThisMachine};
[[nodiscard]] std::string_view disk_name(DiskSpeed disk);

inline constexpr std::size_t kLanes = 6;  // runs side by side, at most

// How much is done.
struct LazyPlan {
  std::string sections = "abc";
  std::vector<std::string_view> blocked_models{"3B", "7B", "13B", "30B", "70B"};
  std::vector<std::string_view> run_models{"7B", "13B"};
  std::vector<double> pool_shares{1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2, 1, 2};
  std::vector<unsigned> intervals{kPaperIntervals.begin(), kPaperIntervals.end()};
  Scale blocked_scale{.bytes = 20, .time = 32};
  Scale run_scale{.bytes = 20, .time = 32};
  Scale pool_scale{.bytes = 20, .time = 16};
  unsigned run_iterations = kPaperIterations;
  unsigned repeats = 3;             // of the engine's runs that goals are set for
  std::size_t blocked_at_once = 1;  // runs side by side
  std::size_t runs_at_once = kLanes;

  [[nodiscard]] static LazyPlan full() { return {}; }
  [[nodiscard]] static LazyPlan quick();
};

// Section a: 5 iterations, a checkpoint at every one.
struct BlockedRow {
  const PaperModel* model = nullptr;
  DiskSpeed disk = DiskSpeed::kPaper;
  Way way = Way::kNone;
  std::uint64_t state_bytes = 0;  // as run
  std::vector<double> blocked_s;  // by checkpoint
  double median_blocked_s = 0;
  double iteration_s = 0;
  double cpu_share = 0;    // CPU time of save and fence / iteration, at the scale of the run
  double calls_share = 0;  // time inside them / iteration
  std::uint64_t compared = 0;
  std::uint64_t host_fences = 0;
  std::uint64_t device_fences = 0;
  double committed_s = 0;  // from the start of save(), median; 0 for the models

  [[nodiscard]] double gb_per_s() const { return model->checkpoint_gb / median_blocked_s; }
};

// Section b: one point of a curve.
struct TrainRow {
  const PaperModel* model = nullptr;
  DiskSpeed disk = DiskSpeed::kPaper;
  Way way = Way::kNone;
  unsigned every = 0;  // 0: no checkpoints
  double train_s = 0;
  double complete_s = 0;
  std::uint64_t checkpoint_bytes = 0;  // of all of them, at the paper's size
  std::uint64_t compared = 0;
};

// Section c.
struct PoolRow {
  const PaperModel* model = nullptr;
  unsigned every = 1;
  double pool_share = 0;  // of the state
  double median_blocked_s = 0;
  double predicted_s = 0;  // (state - pool) / bandwidth - (forward + backward), or 0
  std::uint64_t compared = 0;
};

struct LazyFigures {
  LazyPlan plan;
  std::vector<BlockedRow> blocked;
  std::vector<TrainRow> train;
  std::vector<PoolRow> pool;
  SpinProbe spin;
  std::vector<Verdict> verdicts;
  std::uint64_t compared = 0;  // checkpoints of the engine read back and found right
  unsigned runs = 0;
  unsigned late_runs = 0;  // whose simulated GPU fell far behind its own clock: others were using the machine
};

// `lanes`: at least one, each on a GPU of its own. `on_run` is told before each run what it will be, by one thread at a
// time.
[[nodiscard]] Result<LazyFigures> measure(std::span<const std::unique_ptr<Runner>> lanes, const LazyPlan& plan,
                                          const std::function<void(const std::string&)>& on_run);

void print_figures(const LazyFigures& figures);
[[nodiscard]] cli::OrderedJson figures_json(const LazyFigures& figures);

}  // namespace slackwater::bench
