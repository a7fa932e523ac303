// The common frame of the C++ benchmarks: settings, alternated runs, and the report as JSON and as a table.
// Thread rule: everything belongs to the main thread. The schema of the JSON is described in docs/benchmarks.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "slackwater/engine.hpp"
#include "statistics.hpp"

namespace slackwater::bench {

struct Settings {
  std::string directory;                   // on the disk to be measured; everything made in it is removed again
  bool quick = false;                      // few and small runs: shows that it works, proves nothing
  unsigned pairs = 21;                     // engine and reference, alternated
  std::uint64_t state_bytes = 1ull << 30;  // of the large states
  unsigned queue_depth = 16;               // writes in flight, engine and reference alike
  std::uint64_t slab_bytes = 8ull << 20;   // engine's slab, reference's request
  double pause_seconds = 0.3;              // between runs, after old files are gone and the file system is synced
};

enum class Comparison : std::uint8_t { kAtLeast, kAtMost };

struct Goal {
  Comparison comparison = Comparison::kAtMost;
  double value = 0;
};
[[nodiscard]] inline Goal at_least(double value) { return {Comparison::kAtLeast, value}; }
[[nodiscard]] inline Goal at_most(double value) { return {Comparison::kAtMost, value}; }

// One figure: the median of `samples` with its 90 % interval, judged against the goal if there is one.
struct Line {
  std::string name;
  std::string unit;  // "ratio", "ms", "MiB", "GB/s", ...
  std::vector<double> samples;
  std::optional<Goal> goal;
};

struct Report {
  std::string benchmark;
  Json setup = Json::object();  // what was measured: sizes, threads, backend
  std::vector<Line> lines;
};

[[nodiscard]] Json to_json(const Report& report);
[[nodiscard]] std::string table(const Report& report);

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// User and system time of all threads of this process so far.
[[nodiscard]] double process_cpu_seconds();

// Runs ours and theirs in turn, ABBA, so that neither has the better place in a drift or in the disk's own rhythm. One
// pair of each first, unmeasured. Returns (ours, theirs) of each pair.
template <class Ours, class Theirs>
[[nodiscard]] auto alternate(unsigned pairs, Ours&& ours, Theirs&& theirs)
    -> Result<std::vector<std::pair<typename decltype(ours())::value_type, typename decltype(theirs())::value_type>>> {
  using Pair = std::pair<typename decltype(ours())::value_type, typename decltype(theirs())::value_type>;
  SW_ASSIGN([[maybe_unused]] auto warm_ours, ours());
  SW_ASSIGN([[maybe_unused]] auto warm_theirs, theirs());
  std::vector<Pair> measured;
  for (unsigned pair = 0; pair < pairs; ++pair) {
    if (pair % 2 == 0) {
      SW_ASSIGN(auto first, ours());
      SW_ASSIGN(auto second, theirs());
      measured.emplace_back(std::move(first), std::move(second));
    } else {
      SW_ASSIGN(auto first, theirs());
      SW_ASSIGN(auto second, ours());
      measured.emplace_back(std::move(second), std::move(first));
    }
  }
  return measured;
}

// Lets the disk finish what earlier runs left it: journal, discards of deleted files.
[[nodiscard]] Status settle(const Settings& settings);

// Drops the clean pages of every file below `directory` from the page cache.
[[nodiscard]] Status drop_cache(const std::string& directory);

// Options every benchmark starts from; a fresh directory below the settings' one.
[[nodiscard]] Options engine_options(const Settings& settings, const std::string& name, std::uint64_t pool_bytes);

// Backend and fallbacks the engine ended up with, for Report::setup.
[[nodiscard]] Json describe(const EngineStats& stats);

}  // namespace slackwater::bench
