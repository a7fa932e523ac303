// How the pages of a pool come: by several threads, and with huge pages only while they are worth it. Time is moved by
// hand.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage/pool.hpp"

namespace slackwater {
namespace {
namespace pool_touch_test {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1u << 20;

class HandClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(Duration(now_.load())); }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return 0; }
  void advance(Duration duration) { now_ += duration.count(); }

 private:
  std::atomic<std::int64_t> now_ = 0;
};

struct Line {
  std::mutex mutex;
  std::vector<std::string> lines;  // guarded by mutex
  Log log() {
    return Log([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(line);
    });
  }
};

// Which slabs got huge pages, if a slab takes this long with huge pages and with plain ones.
std::vector<bool> touch_all(std::uint32_t slabs, const std::function<Duration(int slab, bool huge)>& takes) {
  HandClock clock;
  std::vector<bool> huge_slabs;
  TouchOptions touching{.threads = 1, .clock = &clock};
  touching.touch = [&](std::span<std::byte>, bool huge) {
    clock.advance(takes(static_cast<int>(huge_slabs.size()), huge));
    huge_slabs.push_back(huge);
  };
  auto pool = Pool::create(kMiB, slabs, {}, -1, touching);
  EXPECT_TRUE(pool.has_value());
  (*pool)->wait_touched();
  return huge_slabs;
}

TEST(PoolTouch, SlowHugePagesAreGivenUpForTheRestOfThePool) {
  const auto huge = touch_all(20, [](int, bool with_huge) { return with_huge ? 10ms : 1ms; });
  EXPECT_TRUE(huge[0] && huge[1]);
  EXPECT_THAT(std::vector<bool>(huge.begin() + 2, huge.end()), Each(false));
}

TEST(PoolTouch, HugePagesThatAreAsFastAsPlainOnesStay) {
  const auto huge = touch_all(20, [](int, bool) { return 10ms; });
  EXPECT_EQ(std::ranges::count(huge, false), 2) << "two slabs are tried with plain pages";
  EXPECT_TRUE(huge.back());
}

// Every checkpoint is written from them, and the pool is touched once.
TEST(PoolTouch, HugePagesThatTakeThreeTimesAsLongStay) {
  const auto huge = touch_all(20, [](int, bool with_huge) { return with_huge ? 30ms : 10ms; });
  EXPECT_EQ(std::ranges::count(huge, false), 2);
  EXPECT_TRUE(huge.back());
}

// 7 ms per MiB are 150 MB/s, as on a virtual machine that has never used this memory before.
TEST(PoolTouch, HugePagesAreNotQuestionedIfTheyReachAnEighthOfAGigabytePerSecond) {
  EXPECT_THAT(touch_all(20, [](int, bool huge) { return huge ? 7ms : 1us; }), Each(true));
}

TEST(PoolTouch, OneSlowSlabProvesNothing) {
  EXPECT_THAT(touch_all(20, [](int slab, bool) { return slab % 5 == 1 ? 1000ms : 100us; }), Each(true));
}

TEST(PoolTouch, HugePagesThatBecomeSlowLaterAreGivenUpThen) {
  const auto huge = touch_all(40, [](int slab, bool with_huge) -> Duration {
    if (!with_huge) return 1ms;
    return slab < 20 ? 100us : 10ms;
  });
  EXPECT_THAT(std::vector<bool>(huge.begin(), huge.begin() + 20), Each(true));
  EXPECT_THAT(std::vector<bool>(huge.begin() + 22, huge.end()), Each(false));
}

// Each thread waits inside its first slab for the other one: a single thread would wait for ever.
TEST(PoolTouch, SeveralThreadsTouchAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> threads;
  TouchOptions touching{.threads = 2};
  bool alone = false;
  touching.touch = [&](std::span<std::byte>, bool) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    changed.notify_all();
    if (!changed.wait_for(lock, 30s, [&] { return threads.size() == 2 || alone; })) alone = true;
  };
  auto pool = Pool::create(kMiB, 8, {}, -1, touching);
  ASSERT_TRUE(pool.has_value());
  (*pool)->wait_touched();
  EXPECT_FALSE(alone);
  EXPECT_EQ((*pool)->free_count(), 8u);
}

// While the second slab is being touched, the first is lent again and again: nobody waits for the whole pool.
TEST(PoolTouch, ASlabThatCameBackIsLentBeforeTheNextOneIsTouched) {
  std::atomic<bool> go_on = false;
  std::atomic<int> touched = 0;
  TouchOptions touching;
  touching.touch = [&](std::span<std::byte>, bool) {
    if (touched++ > 0) go_on.wait(false);
  };
  auto pool = Pool::create(kMiB, 4, {}, -1, touching);
  ASSERT_TRUE(pool.has_value());
  for (int i = 0; i < 5; ++i) {
    const auto lease = (*pool)->acquire(60s, {});
    ASSERT_TRUE(lease.has_value());
    EXPECT_EQ(lease->index(), 0);
  }
  EXPECT_EQ((*pool)->touched_count(), 1u);
  EXPECT_FALSE((*pool)->wait_touched_for(0ms));
  go_on = true;
  go_on.notify_all();
  EXPECT_TRUE((*pool)->wait_touched_for(60s));
}

TEST(PoolTouch, LogSaysWhenItBeginsHowFarItIsAndWhenItEnds) {
  HandClock clock;
  Line line;
  TouchOptions touching{.threads = 1, .clock = &clock, .log = line.log()};
  touching.touch = [&](std::span<std::byte>, bool) { clock.advance(3s); };
  auto pool = Pool::create(kMiB, 4, {}, -1, touching);
  ASSERT_TRUE(pool.has_value());
  (*pool)->wait_touched();
  const std::lock_guard lock(line.mutex);
  EXPECT_THAT(line.lines.front(), HasSubstr("touching the 4 MiB of the pool"));
  EXPECT_THAT(line.lines, Contains(HasSubstr("2 MiB of 4 MiB after 6")));
  EXPECT_THAT(line.lines.back(), HasSubstr("4 MiB touched in 12"));
}

TEST(PoolTouch, TellsOnWhichNodeItsMemoryIs) {
  unsigned node = 0;
  ASSERT_EQ(::getcpu(nullptr, &node), 0);
  const auto here = static_cast<int>(node);
  auto pool = Pool::create(kMiB, 20, {}, here);
  ASSERT_TRUE(pool.has_value());
  (*pool)->wait_touched();
  if (!(*pool)->mostly_on(here)) GTEST_SKIP() << "the kernel does not tell where memory is";
  EXPECT_TRUE(*(*pool)->mostly_on(here));
  EXPECT_FALSE(*(*pool)->mostly_on(here + 1));
}

TEST(PoolTouch, OfWhichNothingIsTouchedIsOnNoNode) {
  std::atomic<bool> go_on = false;
  TouchOptions touching;
  touching.touch = [&](std::span<std::byte>, bool) { go_on.wait(false); };
  auto pool = Pool::create(kMiB, 4, {}, -1, touching);
  ASSERT_TRUE(pool.has_value());
  EXPECT_FALSE((*pool)->mostly_on(0).value_or(true));
  go_on = true;
  go_on.notify_all();
}

}  // namespace pool_touch_test
}  // namespace
}  // namespace slackwater
