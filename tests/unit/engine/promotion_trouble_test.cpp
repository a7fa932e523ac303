// Trouble on a lower tier, or with what is to be copied there: deletes that fail or hang, copies of others, a rank that
// cannot read its files, a slow link. None of it keeps other versions from the tier.
#include <fstream>

#include "unit/engine/promotion_fixture.hpp"

namespace slackwater::test {
namespace {

class PromotionTroubleTest : public PromotionTest {
 protected:
  static void commit(std::vector<Run>& runs, std::vector<Model>& models, std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (std::size_t rank = 0; rank < runs.size(); ++rank) snapshots.push_back(save(*runs[rank], step, models[rank]));
    for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  }
  std::vector<Run> start_ranks(std::uint32_t world, std::vector<Model>& models, std::uint64_t size_bytes) {
    std::vector<Run> runs;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      runs.push_back(start({.keep = 0}, rank, world, 0));
      models.emplace_back(rank + 1).add("w", size_bytes);
    }
    return runs;
  }
  static void close_all(std::vector<Run>& runs) {
    for (const Run& run : runs) {
      const Status closed = run->close();
      EXPECT_TRUE(closed) << closed.error().to_string();
    }
  }
  [[nodiscard]] std::string version(const std::string& root, std::uint64_t step) const {
    return root + "/" + version_directory({step, newest_attempt(upper())});
  }
};

TEST_F(PromotionTroubleTest, AnExceptionWhileTheTierIsListedEndsNothing) {
  Run run = start({}, 0, 1, 2, [](FaultFileSystem& tier) { tier.raise(FsCall::kList); });
  Model model;
  model.add("w", 1000);
  save_and_commit(*run, 1, model);
  copied(run);
  EXPECT_EQ(run->tiers()[0].errors, 1u);
  EXPECT_EQ(live(lower()), "1");
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTroubleTest, DeletesThatFailStopNoCopyAndAreDoneOnceTheyWork) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 1});
  run.tier->fail(FsCall::kUnlink, EACCES, {.times = kAlways, .path = "step-"});  // a place that is written once
  for (std::uint64_t step = 1; step <= 3; ++step) {
    save_and_commit(*run, step, model);
    copied(run);
  }
  EXPECT_EQ(live(lower()), "1 2 3");
  until([&] { return run->tiers()[0].last_error.find("injected") != std::string::npos; });
  EXPECT_NE(log().find("deleting old checkpoints on " + lower() + " failed and will be retried"), std::string::npos)
      << log();
  // Nobody waits for the next try: a copy is done although no delete was tried again. (A try may come by chance.)
  std::uint64_t step = 3;
  until([&] {
    const std::uint64_t tries = run->tiers()[0].errors;
    save_and_commit(*run, ++step, model);
    copied(run);
    return run->tiers()[0].errors == tries;
  });
  run.tier->clear_faults();
  until([&] { return live(lower()) == std::to_string(step); });
  until([&] { return run->tiers()[0].last_error.empty(); });
  EXPECT_TRUE(run->close());
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTroubleTest, ADeleteThatHangsDelaysNoCopy) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 1});
  run.tier->hang(FsCall::kUnlink, {.path = std::string("/") + kManifestName});
  save_and_commit(*run, 1, model);
  save_and_commit(*run, 2, model);
  until([&] { return run->tiers()[0].newest_step == 2u; });
  save_and_commit(*run, 3, model);
  until([&] { return run->tiers()[0].newest_step == 3u; });
  run.tier->wait_hung(1);
  save_and_commit(*run, 4, model);
  until([&] { return run->tiers()[0].newest_step == 4u; });
  run.tier->release_hung();
  EXPECT_TRUE(run->close());
  EXPECT_EQ(live(lower()), "4");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTroubleTest, ADirectoryThatCannotBeRemovedStopsNoCopy) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 1});
  run.tier->fail(FsCall::kRemoveDirectory, EIO, {.times = kAlways});  // one old directory that cannot be removed
  for (std::uint64_t step = 1; step <= 3; ++step) {
    save_and_commit(*run, step, model);
    copied(run);
  }
  until([&] { return live(lower()) == "3"; });  // deleted at the next try
  run.tier->clear_faults();
  EXPECT_TRUE(run->close());
}

// An object store has no lock that would keep `slackwater copy` out.
TEST_F(PromotionTroubleTest, ACopyThatThisRunDidNotBeginIsLeftAlone) {
  Model model;
  model.add("w", 1000);
  {
    Run run = start({.every = 2, .keep = 2}, 0, 1, 0);
    save_and_commit(*run, 1, model);
    save_and_commit(*run, 2, model);
    copied(run);
    // Half a copy of step 1, which is not due.
    const std::string theirs = version(lower(), 1);
    std::filesystem::create_directory(theirs);
    std::filesystem::copy(version(upper(), 1) + "/index", theirs + "/index");
    std::filesystem::copy(version(upper(), 1) + "/" + data_file(0, 0), theirs + "/" + data_file(0, 0));
    save_and_commit(*run, 4, model);
    copied(run);
    save_and_commit(*run, 6, model);
    copied(run);
    EXPECT_EQ(live(lower()), "4 6") << "clean-ups ran";
    EXPECT_TRUE(std::filesystem::exists(theirs + "/" + data_file(0, 0)));
    EXPECT_TRUE(run->close());
  }
  // What is left of it is debris for the next run.
  Run next = start({.every = 2, .keep = 2}, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*next, reader), 6u);
  save_and_commit(*next, 7, model);
  copied(next);
  EXPECT_TRUE(next->close());
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTroubleTest, FilesThatVanishBehindTheirRecordAreCopiedAgainByTheirRank) {
  std::vector<Model> models;
  std::vector<Run> runs = start_ranks(2, models, 1000);
  runs[0].tier->hang(FsCall::kOpen, {.path = data_file(0, 0)});
  commit(runs, models, 1);
  runs[0].tier->wait_hung(1);
  const std::string theirs = version(lower(), 1);
  until([&] { return std::filesystem::exists(theirs + "/" + record_file(1)); });
  until([&] { return !runs[1]->tiers()[0].copying; });
  std::filesystem::remove(theirs + "/" + data_file(1, 0));
  runs[0].tier->release_hung();
  for (const Run& run : runs) copied(run);
  EXPECT_EQ(live(lower()), "1");
  close_all(runs);
}

TEST_F(PromotionTroubleTest, AnotherVersionThatAppearsUnderTheNameOfACopyStaysAsItIs) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 0}, 0, 1, 0);
  save_and_commit(*run, 1, model);
  copied(run);
  const std::string there = version(lower(), 2);
  run.tier->hang(FsCall::kOpen, {.path = there + "/" + kManifestName});  // while it looks for it
  save_and_commit(*run, 2, model);
  run.tier->wait_hung(1);
  Manifest manifest = *read_manifest(*real_, upper(), {2, newest_attempt(upper())});
  manifest.run = random_id();
  std::filesystem::create_directory(there);
  const std::string text = serialize(manifest);
  std::ofstream(there + "/" + kManifestName) << text;
  run.tier->release_hung();
  copied(run);
  EXPECT_NE(log().find("step 2 will not be copied to " + lower()), std::string::npos) << log();
  EXPECT_EQ(read_file_text(there + "/" + kManifestName), text);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(there), {}), 1) << "something was written beside it";
  save_and_commit(*run, 3, model);
  copied(run);
  EXPECT_TRUE(std::filesystem::exists(version(lower(), 3) + "/" + kManifestName)) << "it holds newer ones up";
  EXPECT_TRUE(run->close());
}

TEST_F(PromotionTroubleTest, ADamagedFileOfARankIsNamedAndNewerVersionsDoNotWait) {
  std::vector<Model> models;
  std::vector<Run> runs = start_ranks(2, models, kMiB);
  runs[0].tier->hang(FsCall::kOpen, {.path = "index"});
  commit(runs, models, 1);
  runs[0].tier->wait_hung(1);
  std::fstream(version(upper(), 1) + "/" + data_file(1, 0), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(kMiB / 2)
      .put('x')
      .put('y');
  runs[0].tier->release_hung();
  until([&] { return runs[0]->tiers()[0].skipped == 1 && runs[1]->tiers()[0].skipped == 1; });
  EXPECT_NE(log().find("rank 1 cannot copy its files"), std::string::npos) << log();
  EXPECT_NE(log().find("not those that were saved"), std::string::npos) << log();
  commit(runs, models, 2);
  for (const Run& run : runs) copied(run);
  close_all(runs);
  EXPECT_EQ(live(lower()), "2");
  EXPECT_EQ(debris(lower()), "");
}

TEST_F(PromotionTroubleTest, AFileThatCannotBeReadDoesNotKeepNewerVersionsFromTheTier) {
  Options with = options();
  with.keep = 0;
  with.tiers = {{.location = lower(), .keep = 0}};
  auto faulty = std::make_unique<FaultFileSystem>(*real_);
  FaultFileSystem* const disk = faulty.get();
  auto engine = open_engine(std::move(with), {.fs = std::move(faulty), .clock = nullptr});
  ASSERT_TRUE(engine) << engine.error().to_string();
  Model model;
  model.add("w", 1000);
  disk->fail(FsCall::kReadAt, EIO, {.times = kAlways, .path = "run/" + version_directory({1, 1}) + "/rank"});
  save_and_commit(*engine, 1, model);
  until([&] { return engine->tiers()[0].skipped == 1; });
  save_and_commit(*engine, 2, model);
  ASSERT_TRUE(engine->wait_copied());
  EXPECT_TRUE(engine->close());
  EXPECT_EQ(live(lower()), "2");
}

// No whole part is finished for longer than copy_timeout, but bytes go as fast as the cap allows.
TEST_F(PromotionTroubleTest, ACapIsNoStall) {
  Options with = options();
  with.copy_timeout = std::chrono::milliseconds(1500);  // a busy machine may let a thread wait for a while
  with.tiers = {{.location = lower(), .bandwidth_bytes = 8 * kMiB}};
  Engine engine = open(with);
  Model model;
  model.add("w", 20 * kMiB);
  save_and_commit(engine, 1, model);
  const Status closed = engine.close();
  EXPECT_TRUE(closed) << closed.error().to_string();
  EXPECT_EQ(live(lower()), "1");
}

TEST_F(PromotionTroubleTest, ADeleteThatATierMissedIsNamed) {
  Model model;
  model.add("w", 1000);
  Run run = start({.keep = 0}, 0, 1, 0);
  for (std::uint64_t step = 1; step <= 2; ++step) save_and_commit(*run, step, model);
  copied(run);
  run.tier->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = "step-"});
  ASSERT_TRUE(run->remove(1));
  const Status closed = run->close(std::chrono::milliseconds(300));
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.error().message.find("steps 1 were deleted, but not on " + lower() + " yet"), std::string::npos)
      << closed.error().to_string();
}

}  // namespace
}  // namespace slackwater::test
