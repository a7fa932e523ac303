// Two runs that have not seen each other: a job moves from node A to node B and back while the shared tier is out of
// A's reach. Both use the same attempt numbers and the same names. Nothing that either has committed may be deleted.
#include <fstream>
#include <set>

#include "support/write_checkpoint.hpp"
#include "unit/engine/promotion_fixture.hpp"

namespace slackwater::test {
namespace {

class BranchesTest : public PromotionTest {
 protected:
  enum class Tier : std::uint8_t { kReachable, kDown };

  [[nodiscard]] std::string node(char name) const { return directory_.path() + "/node-" + name; }

  Run start_on(char name, Tier state, TierOptions tier = {.keep = 0}, std::uint64_t keep = 0) {
    tier.location = lower();
    Options with = options();
    with.path = node(name);
    with.keep = keep;
    with.copy_timeout = std::chrono::seconds(60);
    with.tiers = {tier};
    auto faulty = std::make_unique<FaultFileSystem>(*real_);
    Run run{.tier = faulty.get(), .engine = {}};
    if (state == Tier::kDown) take_down(run);
    EngineDependencies parts;
    parts.tiers.emplace_back(tier, lower(), std::move(faulty));
    auto opened = open_engine(std::move(with), std::move(parts));
    if (!opened) throw std::runtime_error(opened.error().to_string());
    run.engine = std::make_unique<Engine>(std::move(*opened));
    return run;
  }
  static void take_down(const Run& run) {
    for (const FsCall call : {FsCall::kList, FsCall::kOpen, FsCall::kStatus, FsCall::kMakeDirectory})
      run.tier->fail(call, EIO, {.times = kAlways});
  }
  // What a node saves at a step is made of both.
  static Model content(char name, std::uint64_t step) {
    Model model(static_cast<unsigned>(name) * 1000 + static_cast<unsigned>(step));
    model.add("w", 1000);
    return model;
  }
  static void train(const Run& run, char name, const std::vector<std::uint64_t>& steps) {
    for (const std::uint64_t step : steps) save_and_commit(*run, step, content(name, step));
  }
  static void expect_restored(const Run& run, char name, std::uint64_t step, std::optional<std::uint64_t> asked = {}) {
    Reader reader;
    ASSERT_EQ(restore(*run, reader, asked), step);
    EXPECT_EQ(reader.read, content(name, step).copy()) << "step " << step << " is of another run";
  }
  static void close(Run& run) {
    const Status closed = run->close();
    EXPECT_TRUE(closed) << closed.error().to_string();
    run.engine.reset();  // gives up the lock of the lower tier
  }
  static void copied_and_closed(Run& run) {
    copied(run);
    close(run);
  }
  // The tier came back, and is refused.
  static void expect_refused(Run& run) {
    run.tier->clear_faults();
    until([&] { return run->tiers()[0].last_error.find("another run") != std::string::npos; });
    const Status copied = run->wait_copied();
    ASSERT_FALSE(copied) << "wait_copied() says that all is well";
    EXPECT_NE(copied.error().message.find("another run has used this tier"), std::string::npos)
        << copied.error().to_string();
    const Status closed = run->close();
    ASSERT_FALSE(closed) << "close() says that all is well";
    EXPECT_NE(closed.error().message.find("checkpoints were not copied"), std::string::npos)
        << closed.error().to_string();
    run.engine.reset();
  }
  // The versions of a tier that are set aside, each read to its last byte.
  [[nodiscard]] std::string aside(const std::string& root) const {
    const auto catalog = scan_catalog(*real_, root);
    if (!catalog) return catalog.error().to_string();
    std::string text;
    for (const CatalogEntry& entry : catalog->entries) {
      if (entry.state != VersionState::kSetAside) continue;
      const auto report = verify_version({.fs = real_.get()}, root, entry.name, {});
      const bool good = report && report->damages.empty();
      text += (text.empty() ? "" : " ") + std::to_string(entry.name.step) + (good ? "" : "(damaged)");
    }
    return text;
  }
  // The next attempt is claimed at another time, as the clock of the machine shows it.
  static void next_millisecond() {
    const auto now = [] {
      return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
    };
    until([&, before = now()] { return now() > before; });
  }

  // Steps 1 and 2 of node A are on the tier. B goes on from there and copies `b`. Then A, which cannot reach the tier,
  // goes on from step 2 as well and commits `a`. Both have attempt 2.
  void fork(const std::vector<std::uint64_t>& b, const std::vector<std::uint64_t>& a) {
    Run first = start_on('a', Tier::kReachable);
    train(first, 'a', {1, 2});
    copied_and_closed(first);
    Run second = start_on('b', Tier::kReachable);
    expect_restored(second, 'a', 2);
    train(second, 'b', b);
    copied_and_closed(second);
    next_millisecond();
    Run third = start_on('a', Tier::kDown);
    expect_restored(third, 'a', 2);
    train(third, 'a', a);
    expect_refused(third);
  }
};

TEST_F(BranchesTest, WithTheSameNumberTheLaterRunIsContinuedAndTheOtherIsSetAside) {
  fork({3, 9}, {4, 5});
  Run run = start_on('a', Tier::kReachable, {.keep = 1}, 1);
  expect_restored(run, 'a', 5);
  EXPECT_NE(log().find("two runs went on separately"), std::string::npos) << log();
  EXPECT_NE(log().find("steps 3, 9 on " + lower() + " are set aside and kept"), std::string::npos) << log();
  train(run, 'a', {6, 7});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "7");
  EXPECT_EQ(aside(lower()), "3 9") << "what the other run had committed is gone";
  EXPECT_EQ(live(node('a')), "7");
}

// Node A's step 2 was left behind on the tier by a rollback. The run on node B adopts a step 2 of its own, which has
// the same name.
TEST_F(BranchesTest, ACheckpointOfThatNameOnTheTierIsNotTakenForACopy) {
  Run first = start_on('a', Tier::kReachable);
  train(first, 'a', {1, 2});
  copied_and_closed(first);
  {
    const CheckpointWriter rolled_back(lower(), {{1, 1}});
  }
  next_millisecond();
  Run second = start_on('b', Tier::kDown);
  train(second, 'b', {1, 2});
  static_cast<void>(second->close(std::chrono::milliseconds(100)));
  second.engine.reset();

  Run run = start_on('b', Tier::kReachable);
  expect_restored(run, 'b', 2);
  train(run, 'b', {3});
  copied(run);
  EXPECT_NE(log().find("step 2 will not be copied to " + lower() + ": the tier has a checkpoint of that name"),
            std::string::npos)
      << "the user is told that it was copied; " << log();
  EXPECT_EQ(run->tiers()[0].skipped, 2u);
  close(run);
}

TEST_F(BranchesTest, TheBranchThatWasSetAsideCanBeRestoredByItsStep) {
  fork({3, 9}, {4, 5});
  Run run = start_on('a', Tier::kReachable);
  expect_restored(run, 'b', 9, 9);
  train(run, 'a', {10});
  copied_and_closed(run);
  Run again = start_on('a', Tier::kReachable);
  expect_restored(again, 'a', 10);
  close(again);
}

TEST_F(BranchesTest, ALowerNumberWinsIfItsRunWasStartedLater) {
  {
    Run first = start_on('a', Tier::kReachable);
    train(first, 'a', {1, 2});
    copied_and_closed(first);
    for (const std::uint64_t step : {3u, 4u}) {  // two starts: attempts 2 and 3
      Run other = start_on('b', Tier::kReachable);
      expect_restored(other, step == 3 ? 'a' : 'b', step - 1);
      train(other, 'b', {step});
      copied_and_closed(other);
    }
    next_millisecond();
    Run third = start_on('a', Tier::kDown);
    expect_restored(third, 'a', 2);
    train(third, 'a', {5, 6});
    expect_refused(third);
  }
  Run run = start_on('a', Tier::kReachable, {.keep = 1}, 1);
  expect_restored(run, 'a', 6);
  train(run, 'a', {7, 8});
  copied_and_closed(run);
  EXPECT_EQ(live(node('a')), "8");
  EXPECT_EQ(live(lower()), "8");
  EXPECT_EQ(aside(lower()), "3 4");
}

TEST_F(BranchesTest, TheOlderBranchOnTier0IsSetAsideAndKept) {
  {
    Run first = start_on('a', Tier::kReachable);
    train(first, 'a', {1, 2});
    copied_and_closed(first);
    Run second = start_on('a', Tier::kDown);  // not seen by anybody else
    expect_restored(second, 'a', 2);
    train(second, 'a', {3, 4});
    static_cast<void>(second->close(std::chrono::milliseconds(100)));
    second.engine.reset();
    next_millisecond();
    Run third = start_on('b', Tier::kReachable);
    expect_restored(third, 'a', 2);
    train(third, 'b', {4, 5, 6});
    copied_and_closed(third);
  }
  Run run = start_on('a', Tier::kReachable, {.keep = 0}, 1);
  expect_restored(run, 'b', 6);
  EXPECT_NE(log().find("step 3 on " + node('a') + " is set aside and kept"), std::string::npos) << log();
  train(run, 'b', {7, 8});
  copied_and_closed(run);
  EXPECT_EQ(live(node('a')), "8");
  EXPECT_EQ(aside(node('a')), "3 4") << "what node A had committed is gone";
}

TEST_F(BranchesTest, WhatOnlyAnAbandonedNodeHasIsSetAsideWhenTheJobComesBack) {
  {
    Run first = start_on('a', Tier::kReachable, {.every = 2, .keep = 0});
    train(first, 'a', {1, 2, 3});  // 3 is on node A alone
    copied_and_closed(first);
    Run second = start_on('b', Tier::kReachable);
    expect_restored(second, 'a', 2);
    train(second, 'b', {4});
    copied_and_closed(second);
  }
  Run run = start_on('a', Tier::kReachable, {.keep = 0}, 1);
  expect_restored(run, 'b', 4);
  train(run, 'b', {5, 6});
  copied_and_closed(run);
  EXPECT_EQ(live(node('a')), "6");
  EXPECT_EQ(aside(node('a')), "1 3") << "a rollback that nobody asked for has deleted it";
}

TEST_F(BranchesTest, ATierThatComesBackBetweenRestoreAndSaveKeepsTheOtherRunsVersions) {
  {
    Run first = start_on('a', Tier::kReachable);
    train(first, 'a', {1, 2});
    copied_and_closed(first);
    Run second = start_on('b', Tier::kReachable);
    expect_restored(second, 'a', 2);
    train(second, 'b', {3, 9});
    copied_and_closed(second);
  }
  Run run = start_on('a', Tier::kDown, {.keep = 1}, 1);
  expect_restored(run, 'a', 2);
  run.tier->clear_faults();
  train(run, 'a', {3, 4, 5});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "5");
  EXPECT_EQ(aside(lower()), "3 9") << "what the other run had committed is gone";
}

TEST_F(BranchesTest, TwoCheckpointsOfOneNameStayWhatTheyAre) {
  fork({3, 4}, {3, 4});
  {
    Run run = start_on('a', Tier::kReachable);
    expect_restored(run, 'a', 4);
    train(run, 'a', {5});
    copied_and_closed(run);  // a repair has ended too
  }
  EXPECT_NE(log().find("steps 3, 4 on " + lower() + " are kept, but have the names of other checkpoints"),
            std::string::npos)
      << log();
  EXPECT_EQ(live(node('a')), "1 2 3 4 5");
  EXPECT_EQ(live(lower()), "1 2 5");
  EXPECT_EQ(aside(lower()), "3 4");
  // Also for the next runs, which see one history.
  for (const std::uint64_t step : {6u, 7u}) {
    Run run = start_on('a', Tier::kReachable);
    expect_restored(run, 'a', step - 1);
    expect_restored(run, 'a', 4, 4);
    train(run, 'a', {step});
    copied_and_closed(run);
    EXPECT_EQ(aside(lower()), "3 4");
  }
}

// Steps 1 to 3 are on the lower tier. Tier 0 has lost the steps after 1, as a new disk has them.
class UnseenBelowTest : public BranchesTest {
 protected:
  void SetUp() override {
    save_three();
    for (const std::uint64_t step : {2u, 3u})
      std::filesystem::remove_all(node('a') + "/" + version_directory({step, 1}));
  }
  void save_three() {
    Run run = start_on('a', Tier::kReachable);
    train(run, 'a', {1, 2, 3});
    copied_and_closed(run);
  }
  // A run that never reaches the tier.
  void run_without_tier(const std::vector<std::uint64_t>& steps, std::optional<std::uint64_t> asked = {}) {
    Run run = start_on('a', Tier::kDown);
    expect_restored(run, 'a', 1, asked);
    train(run, 'a', steps);
    static_cast<void>(run->close(std::chrono::milliseconds(100)));
    run.engine.reset();
  }
  void expect_kept() {
    EXPECT_EQ(aside(lower()), "2 3") << "a rollback that nobody asked for has deleted what the tier had";
    Run run = start_on('a', Tier::kReachable);
    expect_restored(run, 'a', 3, 3);
    close(run);
  }
};

TEST_F(UnseenBelowTest, ATierThatComesBackBeforeTheFirstSaveKeepsWhatTheRestoreDidNotSee) {
  Run run = start_on('a', Tier::kDown, {.keep = 1}, 1);
  expect_restored(run, 'a', 1);
  run.tier->clear_faults();
  train(run, 'a', {4, 5});
  copied_and_closed(run);
  EXPECT_NE(log().find("steps 2, 3 on a lower tier are set aside and kept: restore(step=...)"), std::string::npos)
      << log();
  EXPECT_EQ(live(lower()), "5");
  expect_kept();
}

TEST_F(UnseenBelowTest, ATierThatComesBackLaterKeepsItToo) {
  Run run = start_on('a', Tier::kDown, {.keep = 1}, 1);
  expect_restored(run, 'a', 1);
  train(run, 'a', {4});
  run.tier->clear_faults();
  train(run, 'a', {5});
  copied_and_closed(run);
  EXPECT_NE(log().find("steps 2, 3 on " + lower() + " are set aside and kept: restore(step=...)"), std::string::npos)
      << log();
  EXPECT_EQ(live(lower()), "5");
  expect_kept();
}

TEST_F(UnseenBelowTest, ATierThatComesBackInTheNextRunKeepsItToo) {
  run_without_tier({4});
  Run run = start_on('a', Tier::kReachable, {.keep = 1}, 1);
  expect_restored(run, 'a', 4);
  EXPECT_NE(log().find("steps 2, 3 on " + lower() + " are set aside and kept: restore(step=...)"), std::string::npos)
      << log();
  train(run, 'a', {5, 6});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "6");
  expect_kept();
}

TEST_F(UnseenBelowTest, ATierThatTheRestoreOfTheNextRunMissesTooKeepsIt) {
  run_without_tier({4});
  Run run = start_on('a', Tier::kDown, {.keep = 1}, 1);
  expect_restored(run, 'a', 4);
  run.tier->clear_faults();
  train(run, 'a', {5, 6});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "6");
  expect_kept();
}

TEST_F(UnseenBelowTest, ARollbackDoesNotReachWhatItDidNotSee) {
  run_without_tier({4}, 1);
  Run run = start_on('a', Tier::kReachable, {.keep = 1}, 1);
  expect_restored(run, 'a', 4);
  train(run, 'a', {5, 6});
  copied_and_closed(run);
  expect_kept();
}

TEST_F(UnseenBelowTest, ARollbackThatSawItLeavesItBehind) {
  Run run = start_on('a', Tier::kReachable);
  expect_restored(run, 'a', 1, 1);
  train(run, 'a', {4});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "1 4");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(UnseenBelowTest, AfterARollbackInTheSameProcessNothingIsSetAsideThatRetentionHasDeleted) {
  Run run = start_on('a', Tier::kReachable, {.keep = 1}, 1);
  expect_restored(run, 'a', 3);
  ASSERT_TRUE(run->pin(1));
  train(run, 'a', {4, 5});
  copied(run);  // steps 2 and 3 are gone
  expect_restored(run, 'a', 1, 1);
  train(run, 'a', {6});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "1 6");
  EXPECT_EQ(log().find("set aside"), std::string::npos) << log();
}

TEST_F(UnseenBelowTest, ARollbackThatTheTierMissedHoldsThereToo) {
  for (const std::uint64_t step : {2u, 3u}) {  // tier 0 has them again
    const std::string name = "/" + version_directory({step, 1});
    std::filesystem::copy(lower() + name, node('a') + name, std::filesystem::copy_options::recursive);
  }
  run_without_tier({4}, 1);
  Run run = start_on('a', Tier::kReachable);
  expect_restored(run, 'a', 4);
  train(run, 'a', {5});
  copied_and_closed(run);
  EXPECT_EQ(live(lower()), "1 4 5");
  EXPECT_EQ(debris(lower()), "") << "a rollback has left it behind";
}

}  // namespace
}  // namespace slackwater::test
