#include "base/fork_guard.hpp"

#include <atomic>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "base/thread.hpp"
#include "support/child_process.hpp"

namespace slackwater {
namespace {

TEST(ForkGuard, CallsBackInTheChildOnly) {
  int calls = 0;
  const ForkGuard guard([&] { ++calls; });
  EXPECT_EQ(test::run_in_child([&] { return calls; }), 1);
  EXPECT_EQ(calls, 0);
}

TEST(ForkGuard, CallsBackInGrandchildrenToo) {
  int calls = 0;
  const ForkGuard guard([&] { ++calls; });
  EXPECT_EQ(test::run_in_child([&] { return test::run_in_child([&] { return calls; }); }), 2);
}

TEST(ForkGuard, ADestroyedGuardIsNotCalled) {
  int calls = 0;
  std::optional<ForkGuard> gone([&] { calls += 10; });
  const ForkGuard stays([&] { ++calls; });
  gone.reset();
  EXPECT_EQ(test::run_in_child([&] { return calls; }), 1);
}

TEST(ForkGuard, CanBeDestroyedAndMadeInTheChild) {
  auto guard = std::make_unique<ForkGuard>([] {});
  EXPECT_EQ(test::run_in_child([&] {
              guard.reset();
              int calls = 0;
              const ForkGuard another([&] { ++calls; });
              return test::run_in_child([&] { return calls; });
            }),
            1);
}

// Another thread may hold the mutex of the registry at the moment of the fork.
TEST(ForkGuard, DestroyingInTheChildDoesNotHangWhileOtherThreadsMakeGuards) {
  std::atomic<bool> running = false;
  const auto churn = start_thread("churn", [&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      const ForkGuard guard([] {});
      running = true;
    }
  });
  while (!running) std::this_thread::yield();
  for (int round = 0; round < 20; ++round) {
    auto guard = std::make_unique<ForkGuard>([] {});
    EXPECT_EQ(test::run_in_child([&] {
                guard.reset();
                return 7;
              }),
              7);
  }
}

}  // namespace
}  // namespace slackwater
