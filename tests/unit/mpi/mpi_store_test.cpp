// The store over MPI, with four real ranks. Each rank runs every test. A failure on one of them fails the run.
#include <time.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/mpi.hpp"

namespace slackwater {
namespace {

using Values = std::vector<std::optional<std::string>>;

int this_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int all_ranks() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void meet() { MPI_Barrier(MPI_COMM_WORLD); }

std::shared_ptr<KeyValueStore> open_store(std::chrono::milliseconds timeout = kMpiStoreTimeout) {
  auto store = mpi_store(MPI_COMM_WORLD, timeout);
  EXPECT_TRUE(store) << store.error().to_string();
  return store ? *store : nullptr;
}

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(MpiStore, EveryRankGetsWhatAnyRankHasSet) {
  const auto store = open_store();
  std::vector<std::string> keys{"missing"};
  Values expected{std::nullopt};
  for (int rank = 0; rank < all_ranks(); ++rank) {
    keys.push_back("of-" + std::to_string(rank));
    expected.push_back("again " + std::to_string(rank));
  }
  const std::string own = keys[static_cast<std::size_t>(this_rank()) + 1];
  EXPECT_TRUE(store->set(own, "first"));
  EXPECT_TRUE(store->set(own, "again " + std::to_string(this_rank())));
  meet();
  auto got = store->get(keys);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(*got, expected);
  meet();
  store->remove({own, "missing"});
  meet();
  got = store->get(keys);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(*got, Values(keys.size()));
}

TEST(MpiStore, LongValuesComeWhole) {
  const auto store = open_store();
  const std::string value(std::size_t{8} << 20, static_cast<char>('a' + this_rank()));
  EXPECT_TRUE(store->set(std::to_string(this_rank()), value));
  meet();
  const int other = (this_rank() + 1) % all_ranks();
  const auto got = store->get({std::to_string(other)});
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->front(), std::string(value.size(), static_cast<char>('a' + other)));
}

TEST(MpiStore, SeveralThreadsOfARankEachGetTheirOwnAnswers) {
  const auto store = open_store();
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&store, thread] {
      const std::string key = std::to_string(this_rank()) + "." + std::to_string(thread);
      for (int round = 0; round < 50; ++round) {
        const std::string value = key + "=" + std::to_string(round);
        EXPECT_TRUE(store->set(key, value));
        const auto got = store->get({key, "missing"});
        EXPECT_TRUE(got && *got == (Values{value, std::nullopt})) << value;
      }
    });
  }
}

TEST(MpiStore, RankZeroServesUntilTheOthersHaveClosed) {
  auto store = open_store();
  meet();
  if (this_rank() == 0) {
    store.reset();  // comes back when the others have gone
  } else {
    for (int round = 0; round < 100; ++round) ASSERT_TRUE(store->set(std::to_string(this_rank()), "still here"));
  }
  store.reset();
  meet();
}

TEST(MpiStore, ARankZeroThatHasGoneIsAnErrorAndNotAHang) {
  auto store = open_store(std::chrono::milliseconds(100));
  if (this_rank() == 0) store.reset();  // gives up on the others, which say nothing
  meet();
  if (this_rank() != 0) {
    const auto got = store->get({"key"});
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().kind, ErrorKind::kTimeout);
    EXPECT_TRUE(got.error().message.contains("rank 0 did not answer")) << got.error().message;
    EXPECT_FALSE(store->set("key", "value"));
  }
  store.reset();
  meet();
}

TEST(MpiStore, AnIdleStoreLeavesTheCoresToTheProgram) {
  const auto store = open_store();
  meet();
  const auto began = std::chrono::steady_clock::now();
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));  // not to wait for anything: the time that is measured
  const double used = cpu_seconds() - before;
  // Relative to the time that has really passed, because a second may take longer on a busy machine.
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_LT(used, 0.2 * passed);  // one that polls without a pause takes all of it
  std::printf("rank %d: %.2f ms of CPU in an idle second\n", this_rank(), used / passed * 1e3);
  meet();
}

int run_without_threads(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  const auto store = mpi_store(MPI_COMM_WORLD);
  const bool refused = !store && store.error().kind == ErrorKind::kUnsupported;
  MPI_Finalize();
  return refused ? 0 : 1;
}

// A store that was not closed. MPI_Finalize() closes it, and later calls fail without harm.
int run_all(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  const auto forgotten = open_store();
  const bool worked = forgotten && forgotten->set("key", "value").has_value();
  MPI_Finalize();
  const auto got = forgotten->get({"key"});
  const bool closed = !got && got.error().kind == ErrorKind::kClosed;
  if (!worked || !closed) std::fprintf(stderr, "a store left open over MPI_Finalize() is not closed\n");
  return worked && closed ? code : 1;
}

}  // namespace
}  // namespace slackwater

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--without-threads") return slackwater::run_without_threads(argc, argv);
  return slackwater::run_all(argc, argv);
}
