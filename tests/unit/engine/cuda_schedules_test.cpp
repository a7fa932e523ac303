// An update before the copies are done, over random schedules. Whatever the sizes, the pool, the speed of the copy
// engine and the number of snapshots in flight, the saved bytes are those from before the update.
#include <cstdio>
#include <deque>
#include <random>

#include "support/effort.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

class CudaSchedules : public EngineOnCuda {
 protected:
  std::uint64_t below(std::uint64_t limit) {
    return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random_);
  }

  void run_one(int number) {
    tensors_.clear();
    const std::uint64_t count = 1 + below(5);
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t size = 4 * (below(3) == 0 ? 1 + below(1000) : 1 + below(kMiB / 4));
      total += size;
      add("t" + std::to_string(i), size, 0, below(6) == 0);
    }
    Options options = this->options();
    options.path = in_memory_.path() + "/schedule-" + std::to_string(number);
    options.pool_bytes = (2 + below(4)) * kMiB;
    options.in_flight = static_cast<unsigned>(1 + below(3));
    options.copy_threads = static_cast<unsigned>(1 + below(3));
    const std::uint64_t fastest = 2000u << 20;
    set_d2h_speed(
        below(4) == 0 ? 0 : std::max<std::uint64_t>(total * 250, fastest >> below(6)));  // at most 4 ms a copy of all
    Engine engine = open(options);
    const std::uint64_t steps = 1 + below(3);
    std::map<std::uint64_t, std::map<std::string, Bytes>> expected_at;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      expected_at[step] = expected();
      Snapshot snapshot = save(engine, step);
      if (below(4) == 0) must(swsim_launch_delay(streams_.at(0), below(3'000'000)));
      // Volatile tensors may change at once; the others behind the fence.
      for (Entry& entry : tensors_) {
        if (entry.at_once) queue_update(entry);
      }
      ASSERT_TRUE(below(4) == 0 ? snapshot.fence() : snapshot.fence(streams()));
      for (Entry& entry : tensors_) {
        if (!entry.at_once) queue_update(entry);
      }
    }
    const Status status = engine.close();
    ASSERT_TRUE(status) << status.error().to_string();
    for (const auto& [step, bytes] : expected_at) {
      auto checkpoint = Checkpoint::open(options.path, step);
      ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
      Reader reader;
      ASSERT_TRUE(checkpoint->read(*reader.plan()(*checkpoint)));
      ASSERT_EQ(reader.read, bytes) << "schedule " << number << ", step " << step << " of " << steps;
      ++compared_;
    }
    synchronize();
    std::filesystem::remove_all(options.path);
  }

  TempDir in_memory_{TempDir::in_memory()};
  std::mt19937_64 random_{20261116};
  int compared_ = 0;
};

TEST_F(CudaSchedules, BytesSavedAreAlwaysThoseOfBeforeTheUpdate) {
  const int schedules = static_cast<int>(effort("SLACKWATER_SCHEDULES", 1000));
  for (int number = 0; number < schedules && !HasFatalFailure(); ++number) run_one(number);
  std::printf("%d schedules, %d checkpoints compared, 0 differ\n", schedules, compared_);
  EXPECT_GE(compared_, schedules);
}

}  // namespace
}  // namespace slackwater::test
