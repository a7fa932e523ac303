// What only several hosts over NFS can do to a run. (The other suites of ranks run on such hosts too, as *_on_nfs.)
#include <cstdlib>
#include <functional>

#include <fmt/format.h>

#include "fault/ranks_fixture.hpp"
#include "os/durable.hpp"

namespace slackwater::test {
namespace {

class RanksNfsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(::setenv("SLACKWATER_TEST_NFS", "1", 1), 0); }
  // Rank 0 on this host, the others on the next ones.
  [[nodiscard]] std::unique_ptr<Ranks> start(std::uint64_t number, std::uint32_t first_host) {
    return std::make_unique<Ranks>(directory_ / "run", number, true, first_host);
  }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kRealTimeLimit;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "it hangs";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Until this rank has looked so many times more.
  static void until_polled(Rank& rank, std::uint64_t times) {
    const std::uint64_t before = rank.fs->count(FsCall::kList);
    until([&] { return rank.fs->count(FsCall::kList) >= before + times; });
  }

  TempDir directory_{TempDir::in_memory()};
};

// One rank is late, so its group leader and rank 0 look for a decision and find none. Once made, every host sees it.
TEST_F(RanksNfsTest, AfterAQuickRestartOnOtherHostsAllRanksRestoreTheNewestStep) {
  for (const std::uint32_t late : {1u, 2u, 3u}) {
    SCOPED_TRACE(fmt::format("rank {} was late", late));
    std::unique_ptr<Ranks> run = start(1, 0);
    std::uint64_t step = run->restore_all(1) + 1;
    run->commit_all(step);
    (*run)[late].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
    std::vector<Snapshot> snapshots = run->save_all(++step);
    (*run)[late].fs->wait_hung(1);
    until_polled((*run)[0], 40);
    if (late == 3) until_polled((*run)[2], 40);
    (*run)[late].fs->release_hung();
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_TRUE(status) << status.error().to_string();
    }
    run.reset();
    EXPECT_EQ(start(1, late)->restore_all(1), step);
  }
}

// Whoever asks for the versions while a step is being saved looks at one that is not decided yet.
TEST_F(RanksNfsTest, AskingForTheVersionsDuringAStepDoesNotHideItsCommit) {
  std::unique_ptr<Ranks> run = start(1, 0);
  run->commit_all(1);
  (*run)[3].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  std::vector<Snapshot> snapshots = run->save_all(2);
  (*run)[3].fs->wait_hung(1);
  for (std::uint32_t rank = 1; rank < kWorld; ++rank) EXPECT_EQ((*run)[rank].engine->versions().size(), 1u);
  (*run)[3].fs->release_hung();
  for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted, kRealTimeLimit));
  for (std::uint32_t rank = 1; rank < kWorld; ++rank) EXPECT_EQ((*run)[rank].engine->versions().size(), 2u);
  run.reset();
  EXPECT_EQ(start(1, 0)->restore_all(1), 2u);
}

// A rank that reaches its deadline writes the abort to the tier and sends nothing. Ranks that still wait for votes
// find it there.
TEST_F(RanksNfsTest, ADecisionOnTheTierIsSeenByWhoLookedForItInVain) {
  std::unique_ptr<Ranks> run = start(1, 0);
  run->commit_all(1);
  (*run)[3].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  (*run)[0].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  std::vector<Snapshot> snapshots = run->save_all(2);
  (*run)[0].fs->wait_hung(1);
  (*run)[3].fs->wait_hung(1);
  until_polled((*run)[2], 40);  // it has looked for the decision
  ASSERT_TRUE(publish_exclusively(*make_posix_file_system(), directory_ / "run/step-0000000002.a1", "manifest.json",
                                  "the decision of another rank, whatever it is", "test"));
  // And at once, on a clock that stands still: it votes against the step.
  until([&] { return !files_with(directory_ / "run/.slackwater", {"/votes-2-"}).empty(); });
  std::filesystem::remove(directory_ / "run/step-0000000002.a1/manifest.json");
  (*run)[0].fs->release_hung();
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    const Status status = snapshots[rank].wait(Level::kCommitted, kRealTimeLimit);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("rank 3: had not reported when the step was given up"), std::string::npos)
        << status.error().message;
  }
  (*run)[3].fs->release_hung();
}

// link() answers with an error though it has made the link: the reply was lost.
class RanksLostReplyTest : public RanksNfsTest, public ::testing::WithParamInterface<int> {
 protected:
  void lose(std::uint32_t rank, const std::string& name) {
    (*run_)[rank].storage.nfs().lose_link_reply(name, GetParam());
  }
  std::unique_ptr<Ranks> run_ = start(1, 0);
};

INSTANTIATE_TEST_SUITE_P(Answers, RanksLostReplyTest, ::testing::Values(EEXIST, EIO, ETIMEDOUT), [](const auto& each) {
  return each.param == EEXIST ? "EEXIST" : each.param == EIO ? "EIO" : "ETIMEDOUT";
});

TEST_P(RanksLostReplyTest, TheDecisionIsMadeByWhoMadeIt) {
  run_->commit_all(1);
  lose(0, "/manifest.json");
  run_->commit_all(2);
  EXPECT_TRUE(run_->visible(2));
  // An abort, by a rank whose leader does not decide: its own words reach everybody.
  (*run_)[0].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  for (const std::uint32_t rank : {1u, 2u, 3u}) lose(rank, "/manifest.json");
  std::vector<Snapshot> snapshots = run_->save_all(3);
  (*run_)[0].fs->wait_hung(1);
  for (const std::uint32_t rank : {1u, 2u, 3u}) {
    const Status status = run_->end_of(snapshots[rank]);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::kAborted) << status.error().to_string();
    EXPECT_NE(status.error().message.find("the deadline of rank"), std::string::npos) << status.error().message;
  }
  (*run_)[0].fs->release_hung();
  static_cast<void>(run_->end_of(snapshots[0]));
  run_->commit_all(4);
}

TEST_P(RanksLostReplyTest, AnAttemptIsClaimedOnce) {
  lose(0, "/attempt-0001.json");
  run_->commit_all(1);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "run/step-0000000001.a1"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "run/.slackwater/attempt-0002.json"));
}

TEST_P(RanksLostReplyTest, AMessageIsSaid) {
  for (const char* const channel : {"/joins/", "/attempts/", "/votes-1-"}) lose(3, channel);
  for (const char* const channel : {"/membership/", "/attempts/", "/outcomes/"}) lose(0, channel);
  lose(2, "/votes-2-");
  run_->commit_all(1);
  for (const char* const channel : {"/restore-offers", "/restore-verdicts"}) lose(3, channel);
  lose(0, "/restore-choices");
  EXPECT_EQ(run_->restore_all(1), 1u);
  run_->commit_all(2);
}

}  // namespace
}  // namespace slackwater::test
