// Several ranks exchange messages through files on a disk that is full to the last byte. They can still restore what is
// there, and the run continues as soon as there is space again.
#include <cerrno>
#include <filesystem>

#include "fault/carried_ranks.hpp"
#include "fault/ranks_fixture.hpp"
#include "support/ballast.hpp"
#include "support/small_mount.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

class RanksFullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  }
  [[nodiscard]] std::string reserve() const { return run_ + "/.slackwater/reserve"; }
  // As an earlier release leaves a directory: no reserve, and no session whose removal would give space back.
  void remove_what_gives_space() const {
    stdfs::remove(reserve());
    for (const auto& entry : std::vector(stdfs::directory_iterator(run_ + "/.slackwater"), {})) {
      if (entry.path().filename().string().starts_with("session-")) stdfs::remove_all(entry.path());
    }
  }
  // Time passes meanwhile, but so slowly that a busy machine is not taken for a late rank. A rank that waits in vain
  // gives up after about 60 s.
  [[nodiscard]] static std::uint64_t restore_all(Ranks& ranks) {
    const std::jthread time([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); move(ranks.clock, 0.0005))
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    return ranks.restore_all(1);
  }
  [[nodiscard]] static std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : stdfs::recursive_directory_iterator(directory)) names.push_back(entry.path().filename());
    return names;
  }

  SmallMount disk_{"tmpfs", "size=64m"};
  const std::string run_ = disk_ / "run";
};

TEST_F(RanksFullDiskTest, ARestoreFindsSpaceForItsMessagesInTheReserve) {
  Ranks(run_, 1).commit_all(1);
  ASSERT_TRUE(stdfs::exists(reserve()));
  {
    const Ballast ballast(disk_.path());
    Ranks ranks(run_, 1);
    EXPECT_EQ(restore_all(ranks), 1u);
    EXPECT_FALSE(stdfs::exists(reserve()));
    EXPECT_EQ(restore_all(ranks), 1u) << "again, with what is left of it";
  }
  Ranks ranks(run_, 1);
  EXPECT_EQ(restore_all(ranks), 1u);
  ranks.commit_all(2);
  EXPECT_TRUE(stdfs::exists(reserve()));
}

TEST_F(RanksFullDiskTest, WithoutAReserveMessagesAreTheNamesOfEmptyFiles) {
  Ranks(run_, 1).commit_all(1);
  remove_what_gives_space();
  Ballast ballast(disk_.path());
  Ranks ranks(run_, 1);
  for (int restore = 0; restore < 3; ++restore) EXPECT_EQ(restore_all(ranks), 1u);
  EXPECT_FALSE(stdfs::exists(reserve()));
  for (const auto& entry : stdfs::recursive_directory_iterator(run_ + "/.slackwater")) {
    if (entry.is_regular_file() && entry.path().string().find("/session-") != std::string::npos) {
      EXPECT_EQ(entry.file_size(), 0u) << entry.path();
    }
  }
}

// A rank that dies in the middle of a restore leaves pieces of messages. They go with the session, as all messages do.
TEST_F(RanksFullDiskTest, WhatIsLeftOfSuchMessagesGoesWithTheSession) {
  Ranks(run_, 1).commit_all(1);
  remove_what_gives_space();
  {
    Ballast ballast(disk_.path());
    Ranks ranks(run_, 1);
    EXPECT_EQ(restore_all(ranks), 1u);
  }
  Ranks ranks(run_, 1);
  EXPECT_EQ(restore_all(ranks), 1u);
  ranks.commit_all(2);
  for (const std::string& name : names_in(run_ + "/.slackwater")) EXPECT_EQ(name.find('='), std::string::npos) << name;
}

// The reserve comes back when there is space: rank 0 looks once a minute, after a decision.
TEST_F(RanksFullDiskTest, TheReserveIsMadeAgainOnceThereIsSpace) {
  Ranks ranks(run_, 1);
  ranks.commit_all(1);
  stdfs::remove(reserve());
  ranks.commit_all(2);
  EXPECT_FALSE(stdfs::exists(reserve())) << "not at every commit";
  ranks.clock += std::chrono::nanoseconds(std::chrono::seconds(61)).count();
  ranks.commit_all(3);
  ASSERT_TRUE(ranks[0].engine->wait(Level::kCommitted));
  EXPECT_TRUE(stdfs::exists(reserve()));
}

// Only rank 0 may delete. The disk of another rank is full with what an earlier run had no time to delete.
TEST(RanksNoSpaceTest, ARankWithoutSpaceHasRankZeroMakeSome) {
  const TempDir directory{TempDir::in_memory()};
  const std::string run = directory / "run";
  {
    CarriedRanks earlier(run, Carrier::kDirectory, [](Options& options) { options.keep = 3; });
    for (std::uint64_t step = 1; step <= 3; ++step) earlier.commit_all(step);
  }
  CarriedRanks ranks(run, Carrier::kDirectory, [](Options& options) { options.keep = 1; });
  ranks.restore_all(3);
  ranks[2].fs->fail(FsCall::kAllocate, ENOSPC, {.times = kAlways});
  for (Snapshot& snapshot : ranks.save_all(4)) ASSERT_FALSE(snapshot.wait(Level::kCommitted, kRealTimeLimit));
  EXPECT_EQ(ranks[0].engine->remove(999'999).error().kind, ErrorKind::kNotFound);  // waits for deletes under way
  EXPECT_FALSE(stdfs::exists(run + "/step-0000000001.a1"));
  EXPECT_FALSE(stdfs::exists(run + "/step-0000000002.a1"));
  ranks[2].fs->clear_faults();
  ranks.commit_all(5);
}

}  // namespace
}  // namespace slackwater::test
