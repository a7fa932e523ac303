#include "stage/pool.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/child_process.hpp"

namespace slackwater {
namespace {
namespace pool_test {  // kMiB: another file that this one may be compiled with has that name too

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr auto kLong = 60s;

std::unique_ptr<Pool> make_pool(std::uint32_t slabs, std::uint64_t slab_bytes = kMiB) {
  auto pool = Pool::create(slab_bytes, slabs);
  EXPECT_TRUE(pool.has_value());
  return std::move(*pool);
}

Lease acquire_now(Pool& pool) {
  auto lease = pool.acquire(kLong, {});
  EXPECT_TRUE(lease.has_value());
  return std::move(*lease);
}

void until_waiting(const Pool& pool, std::uint32_t count) {
  while (pool.waiting_count() != count) std::this_thread::yield();
}

TEST(Pool, SlabsAreDistinctWritableAndAligned) {
  const auto pool = make_pool(3, 2 * kMiB);
  std::set<std::byte*> seen;
  std::vector<Lease> leases;
  for (int i = 0; i < 3; ++i) {
    leases.push_back(acquire_now(*pool));
    const auto memory = leases.back().memory();
    EXPECT_EQ(memory.size(), 2 * kMiB);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % (2 * kMiB), 0u) << "not on a huge page";
    std::memset(memory.data(), i, memory.size());
    seen.insert(memory.data());
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(pool->free_count(), 0u);
  EXPECT_FALSE(pool->try_acquire().has_value());
}

TEST(Pool, SizesThatCannotWorkAreRefused) {
  EXPECT_EQ(Pool::create(kMiB, 1).error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(Pool::create(kMiB + 4096, 2).error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(Pool::create(0, 2).error().kind, ErrorKind::kInvalidArgument);
}

TEST(Pool, MoreThanTheMachineHasIsOutOfMemory) {
  EXPECT_EQ(Pool::create(std::uint64_t{1} << 46, 64).error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(Pool::create(std::uint64_t{1} << 60, 1u << 20).error().kind, ErrorKind::kOutOfMemory);
}

TEST(Pool, AnnouncementsPauseUnlessSomebodyWaitsForASlab) {
  std::atomic<int> announced = 0;
  TouchOptions touching;
  touching.threads = 2;
  touching.pause = [] { return std::chrono::hours(24); };
  auto pool = *Pool::create(kMiB, 6, [&](int, std::span<std::byte>) { ++announced; }, -1, touching);
  const Lease first = acquire_now(*pool);
  const Lease second = acquire_now(*pool);  // waits, so the pause ends
  EXPECT_EQ(announced, 2);
  const Lease third = acquire_now(*pool);
  EXPECT_EQ(announced, 3);
  pool->wait_touched();  // so does this caller
  EXPECT_EQ(announced, 6);
}

TEST(Pool, PauseBetweenAnnouncementsEndsWithThePool) {
  TouchOptions touching;
  touching.pause = [] { return std::chrono::hours(24); };
  const auto pool = *Pool::create(kMiB, 4, [](int, std::span<std::byte>) {}, -1, touching);
  const Lease first = acquire_now(*pool);
}

TEST(Pool, EverySlabIsAnnouncedBeforeItCanBeLeased) {
  std::mutex mutex;
  std::set<int> announced;
  auto pool = Pool::create(kMiB, 4, [&](int index, std::span<std::byte> memory) {
    EXPECT_EQ(memory.size(), kMiB);
    const std::lock_guard lock(mutex);
    announced.insert(index);
  });
  ASSERT_TRUE(pool.has_value());
  std::vector<Lease> leases;
  for (int i = 0; i < 4; ++i) {
    leases.push_back(acquire_now(**pool));
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(announced.contains(leases.back().index()));
  }
  (*pool)->wait_touched();
}

TEST(Pool, TheSlabThatCameBackLastIsLentFirst) {
  const auto pool = make_pool(4);
  pool->wait_touched();
  Lease a = acquire_now(*pool);
  Lease b = acquire_now(*pool);
  const int index = a.index();
  b.release();
  a.release();
  EXPECT_EQ(acquire_now(*pool).index(), index);
}

TEST(Pool, ALeaseReturnsItselfOnceHoweverItEnds) {
  const auto pool = make_pool(2);
  pool->wait_touched();
  {
    Lease lease = acquire_now(*pool);
    Lease moved = std::move(lease);
    EXPECT_FALSE(static_cast<bool>(lease));  // NOLINT(bugprone-use-after-move): a moved-from lease is empty
    EXPECT_TRUE(static_cast<bool>(moved));
    moved.release();
    moved.release();
    EXPECT_EQ(pool->free_count(), 2u);
    lease = acquire_now(*pool);
    moved = std::move(lease);
    lease = acquire_now(*pool);
    lease = std::move(moved);
    EXPECT_EQ(pool->free_count(), 1u) << "the slab assigned over came back";
  }
  EXPECT_EQ(pool->free_count(), 2u);
}

TEST(Pool, WaitersAreServedInTheOrderTheyCame) {
  const auto pool = make_pool(2);
  Lease first = acquire_now(*pool);
  Lease second = acquire_now(*pool);
  std::mutex mutex;
  std::vector<int> served;
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&, i] {
      const Lease lease = acquire_now(*pool);
      const std::lock_guard lock(mutex);
      served.push_back(i);
    });
    until_waiting(*pool, static_cast<std::uint32_t>(i) + 1);
  }
  first.release();
  waiters.clear();
  EXPECT_THAT(served, ElementsAre(0, 1, 2, 3));
}

TEST(Pool, NoSlabWithinTheStallTimeoutIsATimeout) {
  const auto pool = make_pool(2);
  const Lease first = acquire_now(*pool);
  const Lease second = acquire_now(*pool);
  const auto lease = pool->acquire(5ms, {});
  ASSERT_FALSE(lease.has_value());
  EXPECT_EQ(lease.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(lease.error().message, HasSubstr("came free for 5 ms"));
  EXPECT_EQ(pool->waiting_count(), 0u);
}

// Four users get the slab before the waiter under test, and each keeps it for a third of the stall timeout.
struct PatientWait {
  bool got_it = false;
  std::chrono::nanoseconds longest{};  // time in which no slab came free, or a little more
};
PatientWait wait_patiently(std::chrono::milliseconds stall_timeout) {
  using Clock = std::chrono::steady_clock;
  const auto pool = make_pool(2);
  Lease first = acquire_now(*pool);
  const Lease second = acquire_now(*pool);
  std::mutex mutex;
  Clock::time_point last;  // before the last release; guarded by mutex
  PatientWait wait;        // guarded by mutex
  const auto give_back = [&](Lease& lease) {
    const std::lock_guard lock(mutex);
    const auto before = Clock::now();
    lease.release();
    wait.longest = std::max<std::chrono::nanoseconds>(wait.longest, Clock::now() - last);
    last = before;
  };
  std::vector<std::jthread> users;
  for (std::uint32_t i = 0; i < 4; ++i) {
    users.emplace_back([&] {
      Lease lease = acquire_now(*pool);
      std::this_thread::sleep_for(stall_timeout / 3);
      give_back(lease);
    });
    until_waiting(*pool, i + 1);
  }
  last = Clock::now();
  auto patient = std::async(std::launch::async, [&] { return pool->acquire(stall_timeout, {}).has_value(); });
  until_waiting(*pool, 5);
  give_back(first);
  const bool got_it = patient.get();
  users.clear();
  wait.got_it = got_it;
  return wait;
}

TEST(Pool, AnySlabThatComesFreeRestartsTheStallTimeout) {
  // On a busy machine the users may sleep too long. That proves nothing, and the next try has more time.
  for (auto stall_timeout = 600ms; stall_timeout < 60s; stall_timeout *= 2) {
    const PatientWait wait = wait_patiently(stall_timeout);
    if (wait.got_it) return;
    ASSERT_GE(wait.longest, stall_timeout) << "gave up though slabs came free in time";
  }
  FAIL() << "this machine is far too busy";
}

TEST(Pool, AStopEndsTheWaitAndLetsTheNextOnePass) {
  const auto pool = make_pool(2);
  Lease first = acquire_now(*pool);
  const Lease second = acquire_now(*pool);
  std::stop_source stop;
  auto leaving = std::async(std::launch::async, [&] { return pool->acquire(kLong, stop.get_token()); });
  until_waiting(*pool, 1);
  auto staying = std::async(std::launch::async, [&] { return pool->acquire(kLong, {}); });
  until_waiting(*pool, 2);
  stop.request_stop();
  const auto left = leaving.get();
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().kind, ErrorKind::kClosed);
  first.release();
  EXPECT_TRUE(staying.get().has_value());
}

TEST(Pool, ATokenStoppedBeforehandGetsNothing) {
  const auto pool = make_pool(2);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(pool->acquire(kLong, stop.get_token()).error().kind, ErrorKind::kClosed);
}

// A slab that comes free belongs to the waiter, even in the moment before the waiter wakes up.
TEST(Pool, TryAcquireTakesNoSlabFromThoseWhoWait) {
  const auto pool = make_pool(2);
  const Lease other = acquire_now(*pool);
  for (int i = 0; i < 200; ++i) {
    Lease held = acquire_now(*pool);
    std::jthread waiting([&] { EXPECT_TRUE(pool->acquire(kLong, {}).has_value()); });
    until_waiting(*pool, 1);
    held.release();
    const auto taken = pool->try_acquire();
    EXPECT_TRUE(!taken || pool->waiting_count() == 0) << "jumped the queue in round " << i;
    if (HasFailure()) return;
  }
}

// The front waiter leaves empty-handed just as a slab comes free. The next one may have checked before that and found
// none, so it must be woken.
TEST(Pool, AWaiterThatLeavesWakesTheNextOne) {
  const auto pool = make_pool(2);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 400 && std::chrono::steady_clock::now() - began < 25s; ++i) {
    Lease first = acquire_now(*pool);
    const Lease second = acquire_now(*pool);
    std::stop_source stop;
    std::jthread front([&] { (void)pool->acquire(kLong, stop.get_token()); });
    until_waiting(*pool, 1);
    std::jthread next([&] {
      const auto asked = std::chrono::steady_clock::now();
      EXPECT_TRUE(pool->acquire(30s, {}).has_value());
      EXPECT_LT(std::chrono::steady_clock::now() - asked, 30s) << "it slept until its time was up";
    });
    until_waiting(*pool, 2);
    first.release();
    stop.request_stop();
  }
}

TEST(Pool, ASlabIsNotFreeBeforeItWasAnnounced) {
  std::atomic<Pool*> made = nullptr;
  std::vector<std::uint32_t> free_when_announced;
  auto pool = Pool::create(kMiB, 4, [&](int, std::span<std::byte>) {
    while (made == nullptr) std::this_thread::yield();
    free_when_announced.push_back(made.load()->free_count());
  });
  ASSERT_TRUE(pool.has_value());
  made = pool->get();
  (*pool)->wait_touched();
  EXPECT_THAT(free_when_announced, ElementsAre(0u, 1u, 2u, 3u));
}

TEST(Pool, CanBeDestroyedWhileItIsBeingTouched) {
  for (int i = 0; i < 20; ++i) {
    const auto pool = make_pool(8);
    EXPECT_EQ(pool->slab_count(), 8u);
  }
}

TEST(Pool, AForkedChildHasNeitherTheMemoryNorADutyToReturnIt) {
  const auto pool = make_pool(2);
  pool->wait_touched();
  Lease lease = acquire_now(*pool);
  const int exit_code = test::run_in_child([&] {
    unsigned char resident = 0;
    if (::mincore(lease.memory().data(), 4096, &resident) == 0 || errno != ENOMEM) return 1;
    // Past the sanitizers, which take the parent's thread for one the child has lost.
    return static_cast<int>(::syscall(SYS_exit_group, 0));
  });
  EXPECT_EQ(exit_code, 0);
  EXPECT_EQ(pool->free_count(), 1u);
}

}  // namespace pool_test
}  // namespace
}  // namespace slackwater
