// Copies to a lower tier: what gets there, in which order, what retention does on both tiers, and what a restart does.
#include <fstream>
#include <thread>

#include "unit/engine/promotion_fixture.hpp"
#include "version/pins.hpp"

namespace slackwater::test {
namespace {

TEST_F(PromotionTest, DueVersionsArriveWithTheSameNamesAndBytes) {
  Model model;
  model.add("w", 3 * kMiB + 5);
  Run run = start({.every = 2, .keep = 0});
  for (std::uint64_t step = 1; step <= 5; ++step) save_and_commit(*run, step, model);
  copied(run);
  EXPECT_EQ(live(lower()), "2 4");
  const std::string version = "/" + version_directory({4, newest_attempt(upper())});
  for (const auto& entry : std::filesystem::directory_iterator(upper() + version)) {
    const std::string name = "/" + entry.path().filename().string();
    EXPECT_EQ(read_file(upper() + version + name), read_file(lower() + version + name)) << name;
  }
  const std::vector<TierStatus> tiers = run->tiers();
  ASSERT_EQ(tiers.size(), 1u);
  EXPECT_EQ(tiers[0].location, lower());
  EXPECT_EQ(tiers[0].newest_step, 4u);
  EXPECT_TRUE(tiers[0].waiting.empty());
  EXPECT_EQ(tiers[0].skipped, 0u);
  EXPECT_GE(tiers[0].sent_bytes, 6 * kMiB);
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTest, EachTierKeepsItsOwn) {
  Model model;
  model.add("w", 1000);
  Run run = start({.every = 2, .keep = 3});
  for (std::uint64_t step = 1; step <= 12; ++step) {
    save_and_commit(*run, step, model);
    if (step % 2 == 0) copied(run);
  }
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(upper()), "11 12");
  EXPECT_EQ(live(lower()), "8 10 12");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTest, RetentionLeavesAVersionAloneThatIsStillToBeCopied) {
  Model model;
  model.add("w", 1000);
  Run run = start({.every = 5, .keep = 0}, 0, 1, 1);
  run.tier->hang(FsCall::kOpen, {.times = kAlways, .path = "index"});
  for (std::uint64_t step = 1; step <= 12; ++step) save_and_commit(*run, step, model);
  run.tier->wait_hung(1);
  ASSERT_TRUE(run->wait(Level::kCommitted));
  until([&] { return live(upper()) == "5 10 12"; });  // held, held, kept
  run.tier->release_hung();
  copied(run);
  EXPECT_EQ(live(lower()), "5 10");
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(upper()), "12");
}

TEST_F(PromotionTest, NewestGoesFirstAndOldestIsSkippedAndCounted) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 0, .backlog = 2});
  run.tier->fail(FsCall::kMakeDirectory, EIO, {.times = kAlways});
  for (std::uint64_t step = 1; step <= 6; ++step) save_and_commit(*run, step, model);
  until([&] { return run->tiers()[0].errors > 0; });
  EXPECT_EQ(run->tiers()[0].waiting, (std::vector<std::uint64_t>{5, 6}));
  EXPECT_EQ(run->tiers()[0].skipped, 4u);
  EXPECT_NE(run->tiers()[0].last_error.find("injected"), std::string::npos);
  run.tier->clear_faults();
  copied(run);
  EXPECT_EQ(live(lower()), "5 6");
  EXPECT_TRUE(run->tiers()[0].last_error.empty());
  EXPECT_NE(log().find("step 1 will not be copied to"), std::string::npos) << log();
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTest, CloseNamesWhatIsLeftAndTheNextRunContinues) {
  Model model;
  model.add("w", 9 * kMiB);
  {
    Run run = start({.keep = 0});
    run.tier->fail(FsCall::kWriteAt, EIO, {.nth = 2, .times = kAlways, .path = ".safetensors"});
    save_and_commit(*run, 1, model);
    until([&] { return run->tiers()[0].errors > 0; });
    const Status closed = run->close(std::chrono::milliseconds(200));
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().kind, ErrorKind::kTimeout);
    EXPECT_NE(closed.error().message.find("steps 1 were not copied to " + lower()), std::string::npos)
        << closed.error().to_string();
  }
  EXPECT_EQ(live(lower()), "");
  Run run = start({.keep = 0});
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 1u);
  save_and_commit(*run, 2, model);
  copied(run);
  EXPECT_EQ(live(lower()), "1 2");
  EXPECT_EQ(debris(lower()), "");
  EXPECT_EQ(newest_attempt(lower()), newest_attempt(upper()));
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTest, TheLockOfTheTierIsFreeWhenCloseReturns) {
  Model model;
  model.add("w", 1000);
  const Run first = start();
  save_and_commit(*first, 1, model);
  copied(first);
  EXPECT_FALSE(real_->try_lock(lock_path(lower())));
  ASSERT_TRUE(first->close());
  EXPECT_TRUE(real_->try_lock(lock_path(lower())));

  const Run second = start();  // while the first is still there
  Reader reader;
  ASSERT_EQ(restore(*second, reader), 1u);
  save_and_commit(*second, 2, model);
  copied(second);
  EXPECT_EQ(live(lower()), "1 2");
  EXPECT_EQ(first->tiers()[0].newest_step, 1u) << "its status can still be read";
  EXPECT_TRUE(second->close());
}

TEST_F(PromotionTest, WhatIsThereInPartAndNotWantedAnyMoreIsRemoved) {
  Model model;
  model.add("w", 9 * kMiB);
  {
    Run run = start({.keep = 1});
    run.tier->fail(FsCall::kWriteAt, EIO, {.nth = 2, .times = kAlways, .path = ".safetensors"});
    save_and_commit(*run, 1, model);
    until([&] { return run->tiers()[0].errors > 0; });
    EXPECT_FALSE(run->close(std::chrono::milliseconds(200)));
  }
  ASSERT_NE(debris(lower()), "");
  Run run = start({.keep = 1}, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 1u);
  run.tier->hang(FsCall::kTryLock);  // until newer versions wait
  save_and_commit(*run, 2, model);
  run.tier->wait_hung(1);
  save_and_commit(*run, 3, model);
  run.tier->release_hung();
  copied(run);
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(lower()), "3");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTest, ADamagedVersionIsNotCopied) {
  Model model;
  model.add("w", 3 * kMiB);
  Run run = start({.keep = 0});
  run.tier->hang(FsCall::kOpen, {.path = "index"});
  save_and_commit(*run, 1, model);
  run.tier->wait_hung(1);
  const std::string file = upper() + "/" + version_directory({1, newest_attempt(upper())}) + "/" + data_file(0, 0);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(2 * kMiB).put('x').put('y');
  run.tier->release_hung();
  until([&] { return run->tiers()[0].skipped == 1; });
  EXPECT_NE(log().find("not those that were saved"), std::string::npos) << log();
  save_and_commit(*run, 2, model);
  copied(run);
  EXPECT_EQ(live(lower()), "2");
  EXPECT_TRUE(run->close());
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTest, PinnedVersionsArePinnedOnEveryTier) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 1});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    save_and_commit(*run, step, model);
    if (step == 1) {
      ASSERT_TRUE(run->pin(1));
    }
    copied(run);
  }
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(lower()), "1 3");
  EXPECT_EQ(list_pins(*real_, lower())->size(), 1u);
}

TEST_F(PromotionTest, DeleteDeletesOnEveryTier) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 0}, 0, 1, 0);
  for (std::uint64_t step = 1; step <= 3; ++step) save_and_commit(*run, step, model);
  copied(run);
  ASSERT_TRUE(run->remove(2));
  copied(run);
  EXPECT_EQ(live(upper()), "1 3");
  EXPECT_EQ(live(lower()), "1 3");
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTest, ARollbackHoldsOnEveryTier) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 0}, 0, 1, 0);
  for (std::uint64_t step = 1; step <= 4; ++step) save_and_commit(*run, step, model);
  copied(run);
  Reader reader;
  ASSERT_EQ(restore(*run, reader, 2), 2u);
  save_and_commit(*run, 3, model);
  copied(run);
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(upper()), "1 2 3");
  EXPECT_EQ(live(lower()), "1 2 3");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTest, VersionsOfATierThatWasOutOfReachStayLive) {
  Model model;
  model.add("w", 1000);
  {
    Run run = start({.keep = 0}, 0, 1, 1);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      save_and_commit(*run, step, model);
      copied(run);
    }
    EXPECT_TRUE(run->close());
  }
  ASSERT_EQ(live(upper()), "3");
  {
    Run run = start({.keep = 0}, 0, 1, 1);
    run.tier->fail(FsCall::kList, EIO, {.times = kAlways});  // dead while the attempt is claimed
    save_and_commit(*run, 4, model);
    until([&] { return run->tiers()[0].errors > 0; });
    run.tier->clear_faults();
    copied(run);
    EXPECT_TRUE(run->close());
  }
  EXPECT_EQ(live(lower()), "1 2 3 4");
}

TEST_F(PromotionTest, ATierThatANewerRunHasTakenIsLeftAlone) {
  Model model;
  model.add("w", 1000);
  Run zombie = start({.keep = 0});
  save_and_commit(*zombie, 1, model);
  copied(zombie);
  // Another run, with the same lower tier and another tier 0.
  const std::uint32_t ours = newest_attempt(lower());
  Attempt newer{.number = ours + 5, .run = random_id(), .members = {random_id()}};
  std::ofstream(lower() + "/.slackwater/" + attempt_file(newer.number)) << serialize(newer);
  save_and_commit(*zombie, 2, model);
  until([&] { return zombie->tiers()[0].skipped == 1; });
  EXPECT_NE(zombie->tiers()[0].last_error.find("another run"), std::string::npos) << zombie->tiers()[0].last_error;
  const Status closed = zombie->close();
  ASSERT_FALSE(closed) << "it says that everything was copied";
  EXPECT_EQ(closed.error().kind, ErrorKind::kAborted);
  EXPECT_NE(closed.error().message.find("another run"), std::string::npos) << closed.error().to_string();
  EXPECT_EQ(debris(lower()).find("step-0000000002"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(lower() + "/" + version_directory({1, ours})));
}

TEST_F(PromotionTest, TheAttemptIsAboveTheNewestOfEveryTier) {
  Model model;
  model.add("w", 1000);
  {
    Run run = start({.keep = 0});
    save_and_commit(*run, 1, model);
    copied(run);
    EXPECT_TRUE(run->close());
  }
  const std::uint32_t first = newest_attempt(lower());
  std::filesystem::remove_all(upper());  // the node is lost, with its disk
  Run run = start({.keep = 0});
  save_and_commit(*run, 2, model);
  copied(run);
  EXPECT_TRUE(run->close());
  EXPECT_GT(newest_attempt(upper()), first);
  EXPECT_EQ(newest_attempt(lower()), newest_attempt(upper()));
  EXPECT_EQ(live(lower()), "1 2");
}

TEST_F(PromotionTest, SeveralRanksCopyTheirOwnFiles) {
  constexpr std::uint32_t kWorld = 3;
  std::vector<Run> runs;
  std::vector<Model> models;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    runs.push_back(start({.keep = 2}, rank, kWorld));
    models.emplace_back(rank + 1).add("w", kMiB + rank);
  }
  for (std::uint64_t step = 1; step <= 4; ++step) {
    std::vector<Snapshot> snapshots;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) snapshots.push_back(save(*runs[rank], step, models[rank]));
    for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    for (const Run& run : runs) copied(run);
  }
  for (const Run& run : runs) {
    EXPECT_GT(run->tiers()[0].sent_bytes, kMiB);
    EXPECT_EQ(run->tiers()[0].newest_step, 4u);
  }
  for (const Run& run : runs) {
    const Status closed = run->close();
    EXPECT_TRUE(closed) << closed.error().to_string();
  }
  EXPECT_EQ(live(lower()), "3 4");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTest, AVersionIsInvisibleUntilEveryRankHasCopiedItsPart) {
  std::vector<Run> runs;
  std::vector<Model> models;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    runs.push_back(start({.keep = 0}, rank, 2));
    models.emplace_back(rank + 1).add("w", 1000);
  }
  runs[1].tier->hang(FsCall::kOpen, {.path = ".safetensors"});
  std::vector<Snapshot> snapshots;
  for (std::uint32_t rank = 0; rank < 2; ++rank) snapshots.push_back(save(*runs[rank], 1, models[rank]));
  for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  runs[1].tier->wait_hung(1);
  until([&] { return runs[0]->tiers()[0].sent_bytes > 0; });
  EXPECT_EQ(live(lower()), "");
  runs[1].tier->release_hung();
  for (const Run& run : runs) copied(run);
  EXPECT_EQ(live(lower()), "1");
  for (const Run& run : runs) EXPECT_TRUE(run->close());
}

TEST_F(PromotionTest, TwoTiersWithOneLocationAreRefused) {
  Options with = options();
  with.tiers = {{.location = with.path + "/"}};
  const auto engine = Engine::open(with);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().kind, ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace slackwater::test
