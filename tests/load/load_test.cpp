// Load: run after run in one process, each with a state, a size and options drawn at random; nothing may be wrong, and
// nothing may grow.
#include <malloc.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/units.hpp"
#include "load/process_facts.hpp"
#include "slackwater/engine.hpp"
#include "support/effort.hpp"
#include "support/pattern_state.hpp"
#include "support/tally.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kMaxStateBytes = 12u << 20;
constexpr std::uint64_t kWarmUpRuns = 5;
constexpr std::uint64_t kGrowthAllowedBytes = 48u << 20;

struct Counts {
  std::uint64_t runs = 0;
  std::uint64_t saves = 0;
  std::uint64_t skipped = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wrong = 0;
};

class Load {
 public:
  explicit Load(std::uint64_t seed) : random_(seed) {}

  // Opens, compares what the run before left, trains some steps, closes.
  void run() {
    ++counts.runs;
    const Options options = draw_options();
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine) << engine.error().to_string();
    if (last_) {
      const auto restored = engine->restore({}, last_->plan());
      ASSERT_TRUE(restored) << restored.error().to_string();
      ASSERT_TRUE(*restored) << "the checkpoints of the run before are gone";
      if (last_->number() != step_ || last_->difference()) {
        ++counts.wrong;
        ADD_FAILURE() << "step " << step_ << " was saved, step " << last_->number()
                      << " found: " << last_->difference().value_or("whole");
      }
    }
    last_ = std::make_unique<PatternState>(draw_state());
    const std::uint64_t saves = 1 + below(6);
    for (std::uint64_t i = 0; i < saves; ++i) save(*engine, i + 1 == saves);
    const Status closed = engine->close();
    ASSERT_TRUE(closed) << closed.error().to_string();
    keep_ = options.keep;
  }

  [[nodiscard]] const std::string path() const { return directory_ / "run"; }
  [[nodiscard]] std::uint64_t disk_bound() const { return (keep_ + 1) * (kMaxStateBytes + (1u << 20)) + (4u << 20); }

  Counts counts;

 private:
  void save(Engine& engine, bool last) {
    static_cast<void>(engine.fence());
    // The last one of a run is the one that is looked at: nothing may be in its way.
    if (last) {
      const Status idle = engine.wait(Level::kCommitted);
      ASSERT_TRUE(idle) << idle.error().to_string();
    }
    last_->fill(step_ + 1);
    auto saved = engine.save(step_ + 1, last_->state());
    ASSERT_TRUE(saved) << saved.error().to_string();
    ++step_;
    ++counts.saves;
    if (!*saved) {
      ++counts.skipped;
      return;
    }
    if (last || below(3) == 0) {
      const Status committed = (*saved)->wait(Level::kCommitted);
      ASSERT_TRUE(committed) << committed.error().to_string();
      counts.bytes += (*saved)->stats().total_bytes;
    }
  }

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool coin() { return below(2) == 0; }

  Options draw_options() {
    Options options;
    options.path = path();
    options.slab_bytes = (1 + below(2)) << 20;
    options.pool_bytes = options.slab_bytes * (2 + below(4));
    options.copy_threads = static_cast<unsigned>(1 + below(3));
    options.queue_depth = static_cast<unsigned>(1 + below(8));
    options.in_flight = static_cast<unsigned>(1 + below(3));
    options.on_busy = coin() ? OnBusy::kWait : OnBusy::kSkip;
    options.keep = 1 + below(3);
    options.paranoid = below(4) == 0;
    options.io_backend = coin() ? IoBackend::kAuto : IoBackend::kThreads;
    options.direct_io = coin();
    options.log = [](LogLevel, std::string_view) {};
    return options;
  }

  PatternState draw_state() {
    std::vector<PatternState::Part> parts;
    std::uint64_t left = kMaxStateBytes >> below(8);
    const std::uint64_t tensors = 1 + below(40);
    for (std::uint64_t i = 0; i < tensors; ++i) {
      const std::uint64_t size = i % 7 == 6 ? below(3) : below(left / 4 + 1);  // empty ones and single bytes, too
      parts.push_back({fmt::format("layer.{}.weight", i), size});
      left -= size;
    }
    return PatternState(parts);
  }

  TempDir directory_;
  std::mt19937_64 random_;
  std::unique_ptr<PatternState> last_;
  std::uint64_t step_ = 0;
  std::uint64_t keep_ = 1;
};

TEST(LoadTest, RunAfterRunNothingIsWrongAndNothingGrows) {
  const auto end = SteadyClock::now() + std::chrono::seconds(effort("SLACKWATER_LOAD_SECONDS", kSanitized ? 30 : 3));
  Load load(harness_seed());
  const std::uint64_t threads = thread_count();
  const std::uint64_t descriptors = descriptor_count();
  std::uint64_t resident_first = 0;
  std::uint64_t resident_last = 0;
  std::uint64_t disk_most = 0;
  while (load.counts.runs <= kWarmUpRuns || SteadyClock::now() < end) {
    ASSERT_NO_FATAL_FAILURE(load.run());
    ASSERT_TRUE(thread_count_falls_to(threads)) << "run " << load.counts.runs << " left threads behind";
    ASSERT_EQ(descriptor_count(), descriptors) << "run " << load.counts.runs << " left descriptors open";
    const std::uint64_t disk = bytes_on_disk(load.path());
    ASSERT_LE(disk, load.disk_bound()) << "run " << load.counts.runs << " left more on disk than it was to keep";
    disk_most = std::max(disk_most, disk);
    if (load.counts.runs != kWarmUpRuns && load.counts.runs % 64 != 0) continue;
    ::malloc_trim(0);
    resident_last = resident_bytes();
    if (resident_first == 0) resident_first = resident_last;
  }
  ::malloc_trim(0);
  resident_last = resident_bytes();
  fmt::print("\nLoad, seed {}\n{:>7} | {:>7} | {:>7} | {:>10} | {:>12} | {:>11} | {:>10} | {:>7} | {:>11} | {:>4}\n",
             harness_seed(), "runs", "saves", "skipped", "committed", "memory first", "memory last", "disk most",
             "threads", "descriptors", "lost");
  fmt::print("{:>7} | {:>7} | {:>7} | {:>10} | {:>12} | {:>11} | {:>10} | {:>7} | {:>11} | {:>4}\n", load.counts.runs,
             load.counts.saves, load.counts.skipped, format_bytes(load.counts.bytes), format_bytes(resident_first),
             format_bytes(resident_last), format_bytes(disk_most), thread_count(), descriptor_count(),
             load.counts.wrong);
  report_tally("load: saves", load.counts.saves, load.counts.wrong);
  EXPECT_EQ(load.counts.wrong, 0u);
  // A sanitizer keeps what was freed for a while.
  if (!kSanitized) {
    EXPECT_LT(resident_last, resident_first + kGrowthAllowedBytes) << "memory grows";
  }
}

}  // namespace
}  // namespace slackwater::test
