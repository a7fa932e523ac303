// delete() while a lower tier is out of reach: the next run goes on with it, and until then nobody uses the version.
// (Power cuts: tests/crash/deletes_test.cpp.)
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tiers/tier_identity.hpp"
#include "unit/engine/deletes_fixture.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

TEST_F(DeletesTest, TheNextRunDeletesWhatATierHasMissed) {
  delete_unheard(2);
  EXPECT_EQ(live(upper()), "1 3");
  EXPECT_EQ(live(lower()), "1 2 3");
  EXPECT_EQ(notes().size(), 1u);
  run_once(4);
  EXPECT_EQ(live(lower()), "1 3 4");
  EXPECT_EQ(debris(lower()), "");
  EXPECT_TRUE(notes().empty());
}

TEST_F(DeletesTest, UntilThenARestoreDoesNotUseIt) {
  delete_unheard(3);
  Run run = start(kept_, 0, 1, 0);
  Reader reader;
  EXPECT_EQ(restore(*run, reader), 2u);
  EXPECT_NE(log().find("step 3 (attempt 1) is not used: it was deleted, and is still to be deleted on " + lower()),
            std::string::npos)
      << log();
  const auto asked_for = run->restore({.step = 3}, reader.plan());
  ASSERT_FALSE(asked_for);
  EXPECT_EQ(asked_for.error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(stdfs::exists(on(upper(), 3))) << "it was brought back";
}

// The run goes on from an earlier step, and finds the deleted one on the tier: nobody else deleted it.
TEST_F(DeletesTest, ADeletedStepIsNotSetAside) {
  delete_unheard(3);
  run_once(4);
  EXPECT_EQ(live(lower()), "1 2 4");
  EXPECT_FALSE(stdfs::exists(on(lower(), 3)));
  EXPECT_EQ(log().find("set aside"), std::string::npos) << log();
  EXPECT_TRUE(notes().empty());
}

TEST_F(DeletesTest, TheSameStepSavedAgainIsAnotherVersion) {
  delete_unheard(3);
  run_once(3);  // under the next attempt
  EXPECT_EQ(live(upper()), "1 2 3");
  EXPECT_EQ(live(lower()), "1 2 3");
  EXPECT_FALSE(stdfs::exists(on(lower(), 3)));
  EXPECT_TRUE(notes().empty());
}

TEST_F(DeletesTest, ATierFollowsOnce) {
  delete_unheard(2);
  run_once(4);
  ASSERT_FALSE(stdfs::exists(on(lower(), 2)));
  stdfs::copy(on(spare(), 2), on(lower(), 2), stdfs::copy_options::recursive);  // as by `slackwater copy`
  run_once(5);
  EXPECT_EQ(live(lower()), "1 2 3 4 5");
}

TEST_F(DeletesTest, WhatIsCopiedBackToTier0IsNotDeletedAnyMore) {
  delete_unheard(2);
  stdfs::copy(on(spare(), 2), on(upper(), 2), stdfs::copy_options::recursive);
  run_once(4);
  EXPECT_TRUE(notes().empty());
  EXPECT_TRUE(stdfs::exists(on(lower(), 2)));
  EXPECT_TRUE(stdfs::exists(on(upper(), 2)));
}

TEST_F(DeletesTest, ACheckpointThatAnotherRunSavedUnderTheNameStays) {
  delete_unheard(2);
  const std::string manifest = on(lower(), 2) + "/" + kManifestName;
  auto other = read_manifest(*real_, lower(), {2, 1});
  ASSERT_TRUE(other);
  other->run = random_id();
  std::ofstream(manifest, std::ios::binary) << serialize(*other);
  run_once(4);
  EXPECT_TRUE(stdfs::exists(manifest));
  EXPECT_TRUE(notes().empty());
}

// The restore cannot know that the step was deleted. From then on the run depends on it.
TEST_F(DeletesTest, WhatTheRunGoesOnFromIsNotDeletedThoughTheNoteCouldNotBeReadThen) {
  struct Case {
    const char* what;
    FsCall call;
    std::string path;
  };
  for (const Case& each : {Case{"tier 0 is away", FsCall::kList, upper()},
                           Case{"the note cannot be read", FsCall::kOpen, "/.slackwater/delete-"}}) {
    SCOPED_TRACE(each.what);
    delete_unheard(3);
    ASSERT_EQ(notes().size(), 1u);
    FaultFileSystem* tier_0 = nullptr;
    Run run = start_faulty(&tier_0);
    tier_0->fail(each.call, EIO, {.times = kAlways, .path = each.path});
    Reader reader;
    ASSERT_EQ(restore(*run, reader), 3u);
    tier_0->clear_faults();
    save_and_commit(*run, 4, model_);
    copied(run);
    ASSERT_TRUE(run->close());
    EXPECT_EQ(live(lower()), "1 2 3 4");
    EXPECT_TRUE(notes().empty());
    EXPECT_NE(log().find("this run goes on from it, so it is not deleted on " + lower()), std::string::npos) << log();
    run.engine.reset();
    for (const std::string& root : {upper(), lower()}) {
      stdfs::remove_all(root);
      stdfs::copy(spare(), root, stdfs::copy_options::recursive);
    }
  }
}

TEST_F(DeletesTest, UntilItIsKnownWhetherTheRestoredStepWasDeletedNothingIsSaved) {
  delete_unheard(3);
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  tier_0->fail(FsCall::kOpen, EIO, {.times = kAlways, .path = "/.slackwater/delete-"});
  tier_0->fail(FsCall::kUnlink, EIO, {.path = "/.slackwater/delete-"});
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  const Status failed = save(*run, 4, model_).wait(Level::kCommitted);
  ASSERT_FALSE(failed) << "an attempt was claimed that depends on what is still to be deleted";
  EXPECT_NE(failed.error().message.find("until it is known whether step 3 was deleted"), std::string::npos)
      << failed.error().to_string();
  static_cast<void>(run->wait(Level::kCommitted));  // told once is enough
  save_and_commit(*run, 5, model_);
  copied(run);
  EXPECT_EQ(live(lower()), "1 2 3 5");
  EXPECT_TRUE(run->close());
}

TEST_F(DeletesTest, WhatThisProcessHasDeletedIsNotRestoredThoughTier0IsAway) {
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  run.tier->fail(FsCall::kUnlink, EIO, {.times = kAlways});
  ASSERT_TRUE(run->remove(3));
  tier_0->fail(FsCall::kList, EIO, {.times = kAlways, .path = upper()});
  Reader reader;
  EXPECT_EQ(restore(*run, reader), 2u);
  static_cast<void>(run->close(std::chrono::milliseconds(1)));
}

TEST_F(DeletesTest, WhatIsDeletedAfterItWasRestoredStaysDeleted) {
  Run run = start(kept_, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  run.tier->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = on(lower(), 3)});
  ASSERT_TRUE(run->remove(3));
  save_and_commit(*run, 4, model_);
  until([&] { return run->tiers()[0].errors > 0; });
  EXPECT_EQ(notes().size(), 1u) << "the first save has taken it back";
  static_cast<void>(run->close(std::chrono::milliseconds(1)));
  run.engine.reset();
  run_once(5);
  EXPECT_EQ(live(lower()), "1 2 4 5");
  EXPECT_TRUE(notes().empty());
}

TEST_F(DeletesTest, ARepairThatComesLateDoesNotPutBackWhatWasDeleted) {
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  run.tier->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = on(lower(), 3)});
  run.tier->hang(FsCall::kOpen, {.path = "manifest.json"});  // tier 0 has it: only a repair reads it
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  run.tier->wait_hung(1);
  ASSERT_TRUE(run->remove(3));
  run.tier->release_hung();
  const auto said = [&](const char* words) { return log().find(words) != std::string::npos; };
  until([&] { return said("step 3 is not put back on") || said("step 3 was repaired on"); });
  EXPECT_EQ(live(upper()), "1 2");
  EXPECT_EQ(notes().size(), 1u);
  static_cast<void>(run->close(std::chrono::milliseconds(1)));
}

TEST_F(DeletesTest, ADamagedNoteDeletesNothingAndIsNamed) {
  delete_unheard(3);
  ASSERT_EQ(notes().size(), 1u);
  stdfs::resize_file(notes()[0], 10);
  run_once(4);
  EXPECT_EQ(live(lower()), "1 2 3 4");
  EXPECT_NE(log().find("of a delete() is ignored, so the step may still be live on a lower tier"), std::string::npos)
      << log();
}

TEST_F(DeletesTest, ATierThatIsStillAwayIsNamedByTheNextRunToo) {
  delete_unheard(2);
  Run run = start(kept_, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  cut_off(run);
  save_and_commit(*run, 4, model_);
  until([&] { return run->tiers()[0].errors > 0; });
  const Status closed = run->close(std::chrono::milliseconds(300));
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.error().message.find("steps 2 were deleted, but not on " + lower() + " yet"), std::string::npos)
      << closed.error().to_string();
  EXPECT_EQ(notes().size(), 1u);
}

TEST_F(DeletesTest, AnEmptyDirectoryInThePlaceOfAMountHasDeletedNothing) {
  Run run = start(kept_, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  save_and_commit(*run, 4, model_);
  copied(run);
  const std::string away = lower() + ".away";
  stdfs::rename(lower(), away);
  stdfs::create_directory(lower());
  ASSERT_TRUE(run->remove(2));
  until([&] { return run->tiers()[0].errors > 0; });
  EXPECT_EQ(notes().size(), 1u);
  stdfs::remove_all(lower());
  stdfs::rename(away, lower());
  until([&] { return notes().empty(); });
  EXPECT_EQ(live(lower()), "1 3 4");
  EXPECT_TRUE(run->close());
}

// From then on the mount point has attempts of its own, so the second run must not take it for the tier either.
TEST_F(DeletesTest, ATierThatIsNotMountedWhenARunStartsHasDeletedNothing) {
  delete_unheard(2);
  const std::string away = lower() + ".away";
  stdfs::rename(lower(), away);
  stdfs::create_directory(lower());
  for (const std::uint64_t step : {4u, 5u}) {
    run_once(step);
    EXPECT_EQ(notes().size(), 1u) << "step " << step;
  }
  EXPECT_EQ(live(lower()), "1 3 4 5") << "copies go on";
  EXPECT_NE(log().find(lower() + " is not the place that this run has copied to before: it is not mounted, or it was "
                                 "emptied"),
            std::string::npos)
      << log();
  EXPECT_NE(log().find("(steps 2)"), std::string::npos) << log();
  stdfs::remove_all(lower());
  stdfs::rename(away, lower());
  run_once(6);
  EXPECT_EQ(live(lower()), "1 3 4 5 6");
  EXPECT_TRUE(notes().empty());
}

TEST_F(DeletesTest, ATierThatWasEmptiedIsANewOneOnceTheUserSaysSo) {
  delete_unheard(2);
  stdfs::remove_all(lower());
  run_once(4);
  EXPECT_EQ(notes().size(), 1u);
  const std::string known = control_path(upper()) + "/" + known_tier_file(lower());
  ASSERT_NE(log().find("or remove " + known + " if it is gone for good"), std::string::npos) << log();
  stdfs::remove(known);
  for (const std::uint64_t step : {5u, 6u}) run_once(step);
  EXPECT_EQ(live(lower()), "1 3 4 5 6");
  EXPECT_TRUE(notes().empty());
  const std::string text = log();
  EXPECT_EQ(text.find("is not the place"), text.rfind("is not the place")) << text;
}

TEST_F(DeletesTest, ATierThatFollowsAtOnceLeavesNoNote) {
  Run run = start(kept_, 0, 1, 0);
  Reader reader;
  ASSERT_EQ(restore(*run, reader), 3u);
  save_and_commit(*run, 4, model_);
  copied(run);
  run.tier->watch(FsCall::kList, control_path(lower()));
  ASSERT_TRUE(run->remove(2));
  copied(run);
  EXPECT_EQ(run.tier->watched_calls(), 1u) << "the newest attempt is asked for once";
  EXPECT_EQ(live(lower()), "1 3 4");
  EXPECT_TRUE(notes().empty());
  EXPECT_TRUE(run->close());
}

TEST_F(DeletesTest, WhatCannotBeNotedIsNotDeleted) {
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  tier_0->fail(FsCall::kSyncAll, EIO, {.path = "/.delete-"});
  const Status removed = run->remove(2);
  ASSERT_FALSE(removed);
  EXPECT_NE(removed.error().message.find("step 2 was not deleted, because the note for the lower tiers"),
            std::string::npos)
      << removed.error().to_string();
  EXPECT_EQ(live(upper()), "1 2 3");
  EXPECT_TRUE(notes().empty());
  EXPECT_TRUE(run->close(std::chrono::seconds(60)));
}

TEST_F(DeletesTest, OnAFullDiskTheNoteComesBehind) {
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  cut_off(run);
  tier_0->fail(FsCall::kOpen, ENOSPC, {.path = "/.delete-"});
  const Status removed = run->remove(2);
  ASSERT_TRUE(removed) << removed.error().to_string();
  EXPECT_EQ(live(upper()), "1 3");
  EXPECT_EQ(notes().size(), 1u);
  static_cast<void>(run->close(std::chrono::milliseconds(1)));
}

TEST_F(DeletesTest, ADeleteThatFailsOnTier0LeavesNoNote) {
  FaultFileSystem* tier_0 = nullptr;
  Run run = start_faulty(&tier_0);
  tier_0->fail(FsCall::kUnlink, EIO, {.path = "step-0000000002.a1/manifest"});
  ASSERT_FALSE(run->remove(2));
  EXPECT_EQ(live(upper()), "1 2 3");
  EXPECT_TRUE(notes().empty());
  EXPECT_TRUE(run->close(std::chrono::seconds(60)));
}

}  // namespace
}  // namespace slackwater::test
