#include "base/thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(StartThread, NamesTheThread) {
  std::string name;
  start_thread("sw-copy-0", [&](std::stop_token) {
    std::array<char, 16> text{};
    pthread_getname_np(pthread_self(), text.data(), text.size());
    name = text.data();
  }).join();
  EXPECT_EQ(name, "sw-copy-0");
}

TEST(StartThread, CutsANameThatIsTooLong) {
  std::string name;
  start_thread("a-name-of-more-than-15", [&](std::stop_token) {
    std::array<char, 16> text{};
    pthread_getname_np(pthread_self(), text.data(), text.size());
    name = text.data();
  }).join();
  EXPECT_EQ(name, "a-name-of-more-");
}

TEST(StartThread, LowersThePriorityOfAThreadAndOfThoseThatItStartsAlone) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  const int before = niceness();
  int inside = 0;
  int below = 0;
  start_thread("low", [&](std::stop_token) {
    lower_priority();
    inside = niceness();
    start_thread("lower", [&](std::stop_token) { below = niceness(); }).join();
  }).join();
  EXPECT_EQ(inside, std::max(before, 10));
  EXPECT_EQ(below, inside);
  EXPECT_EQ(niceness(), before);
}

TEST(StartThread, BlocksSignalsInTheThreadAndNotInItsMaker) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  sigset_t inside;
  start_thread("masked", [&](std::stop_token) { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  EXPECT_EQ(sigismember(&inside, SIGTERM), 1);
  EXPECT_EQ(sigismember(&inside, SIGINT), 1);
  EXPECT_EQ(sigismember(&inside, SIGSEGV), 0);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

TEST(StartThread, IsAskedToStopAndJoinedByItsDestructor) {
  bool stopped = false;
  {
    const auto thread = start_thread("stops", [&](std::stop_token stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      stopped = true;
    });
  }
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace slackwater
