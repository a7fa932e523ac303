// rm, gc and pin: what they remove and keep, and what they refuse.
#include "cli/removal.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"
#include "support/fault_file_system.hpp"
#include "support/write_checkpoint.hpp"
#include "version/delete_notes.hpp"
#include "version/names.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
namespace stdfs = std::filesystem;

class RemovalTest : public CliTest {
 protected:
  [[nodiscard]] std::string path_of(const VersionName& version) const {
    return root_ + "/" + version_directory(version);
  }
  [[nodiscard]] std::string pin_path(const VersionName& version) const {
    return root_ + "/" + kControlDirectory + "/" + pin_file(version);
  }
  // "3.a1 9.a1": the versions that have a directory.
  [[nodiscard]] std::string there() const {
    std::set<VersionName> names;
    for (const auto& entry : stdfs::directory_iterator(root_))
      if (const auto name = parse_version_directory(entry.path().filename().string())) names.insert(*name);
    std::string text;
    for (const VersionName& name : names)
      text += (text.empty() ? "" : " ") + std::to_string(name.step) + ".a" + std::to_string(name.attempt);
    return text;
  }
  static std::uint64_t bytes_of(const std::string& directory) {
    std::uint64_t bytes = 0;
    for (const auto& entry : stdfs::recursive_directory_iterator(directory))
      if (entry.is_regular_file()) bytes += entry.file_size();
    return bytes;
  }
  State state() const { return state_of(tensors_); }
  void damage_manifest(const std::string& version) { write_file_text(version + "/" + kManifestName, "junk"); }
  // Steps 3 and 9 of attempt 1; attempt 2 goes on with 9 and has set 3 aside.
  void write_one_set_aside() {
    write_two();
    CheckpointWriter(root_, {{9, 1}}, {{{3, 1}, "a block differs"}});
  }
  // A killed run's step without a decision.
  void leave_debris(const VersionName& version) {
    stdfs::create_directory(path_of(version));
    write_file_text(path_of(version) + "/" + data_file(0, 0), std::string(5000, 'x'));
  }
};

TEST_F(RemovalTest, RmRemovesAStepAndSaysHowMuchThatWas) {
  write_two();
  const std::uint64_t bytes = bytes_of(paths_[0]);
  const json plan = run_json({"rm", root_, "3", "--dry-run", "--json"});
  EXPECT_EQ(plan["dry_run"], true);
  EXPECT_EQ(plan["removed"][0]["step"], 3);
  EXPECT_EQ(plan["freed_bytes"], bytes);
  EXPECT_THAT(run({"rm", root_, "3", "-n"}).out, HasSubstr("would remove step 3 (attempt 1), 1.15 MiB\n"));
  EXPECT_EQ(there(), "3.a1 9.a1") << "a dry run has removed something";

  const Outcome outcome = run({"rm", root_, "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "removed step 3 (attempt 1), 1.15 MiB\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(there(), "9.a1");
  EXPECT_EQ(run({"verify", root_}).code, 0);
}

TEST_F(RemovalTest, RmTakesSeveralStepsAndTheSpellingOfShow) {
  {
    CheckpointWriter writer(root_);
    for (const std::uint64_t step : {1, 2, 3, 4}) writer.write(step, state());
  }
  const Outcome both = run({"rm", root_, "2", "1", "2"});
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("removed step 1 (attempt 1)"));
  EXPECT_THAT(both.out, HasSubstr("2 versions removed, 2.3 MiB freed\n"));
  EXPECT_EQ(run({"rm", root_ + "@3"}).code, 0);
  EXPECT_EQ(there(), "4.a1");
  const Outcome none = run({"rm", root_});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("hint: slackwater ls"));
}

TEST_F(RemovalTest, RmRemovesNothingIfOneOfTheStepsIsMissing) {
  write_two();
  const Outcome outcome = run({"rm", root_, "3", "4"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("no checkpoint of step 4"));
  EXPECT_THAT(outcome.err, HasSubstr("hint: there are steps 9, 3"));
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_EQ(run({"rm", root_, "three"}).code, 2);
}

TEST_F(RemovalTest, RmAndGcRefuseWhileARunHoldsTheDirectoryAndNameIt) {
  write_two();
  leave_debris({12, 1});
  const CheckpointWriter writer(root_);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"rm", root_, "3"},
                                             {"rm", root_, "3", "--yes", "--pinned", "--no-lock"},
                                             {"rm", root_, "3", "--dry-run"},
                                             {"gc", root_, "--delete"},
                                             {"gc", root_, "--delete", "--no-lock", "--yes"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("process " + std::to_string(::getpid()) + " on "));
    EXPECT_THAT(outcome.err, HasSubstr("attempt 2, run 'test'"));
    EXPECT_THAT(outcome.err, HasSubstr("hint: end that run first"));
  }
  EXPECT_EQ(there(), "3.a1 9.a1 12.a1");
}

TEST_F(RemovalTest, RmAndGcSayWhenItIsAKeeperThatHoldsTheDirectory) {
  write_two();
  const auto lock = make_posix_file_system()->try_lock(lock_path(root_)).value();
  lock->explain("a memory keeper is writing the last step of a trainer that died", "wait until it is done");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"rm", root_, "3"}, {"gc", root_}, {"gc", root_, "--delete"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("error: a memory keeper is writing the last step of a trainer that died, so "
                                       "nothing was removed: " +
                                       root_ + " (process " + std::to_string(::getpid()) + " on "));
    EXPECT_THAT(outcome.err, HasSubstr("hint: wait until it is done\n"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("a run uses")));
  }
}

TEST_F(RemovalTest, RmKeepsAPinnedStepUnlessToldOtherwise) {
  write_two();
  ASSERT_EQ(run({"pin", root_, "3"}).code, 0);
  const Outcome refused = run({"rm", root_, "3", "--yes"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("step 3 (attempt 1) is pinned"));
  EXPECT_THAT(refused.err, HasSubstr("hint: --pinned"));
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_EQ(run({"rm", root_, "3", "--pinned"}).code, 0);
  EXPECT_EQ(there(), "9.a1");
  EXPECT_FALSE(stdfs::exists(pin_path({3, 1})));
}

// Somebody called delete(), and it was killed before it removed anything.
TEST_F(RemovalTest, RmRemovesAStepHereAndLeavesNoNoteThatWouldRemoveItElsewhere) {
  write_two();
  ASSERT_EQ(run({"pin", root_, "9"}).code, 0);
  const auto fs = make_posix_file_system();
  std::vector<std::string> notes;
  for (const VersionName& version : {VersionName{3, 1}, VersionName{9, 1}}) {
    ASSERT_TRUE(write_delete_note(*fs, root_, {.version = version, .run = "", .tier = "s3://bucket/run"}));
    notes.push_back(root_ + "/" + kControlDirectory + "/" + delete_note_file(version, "s3://bucket/run"));
  }
  EXPECT_EQ(run({"rm", root_, "3", "--dry-run"}).code, 0);
  EXPECT_TRUE(stdfs::exists(notes[0]));
  EXPECT_EQ(run({"rm", root_, "3"}).code, 0);
  EXPECT_FALSE(stdfs::exists(notes[0]));
  EXPECT_TRUE(stdfs::exists(notes[1]));
  EXPECT_EQ(run({"rm", root_, "9", "--pinned", "--yes"}).code, 0);
  EXPECT_FALSE(stdfs::exists(notes[1]));
}

TEST_F(RemovalTest, RmRemovesTheLastGoodCheckpointOnlyWithYes) {
  write_two();
  EXPECT_THAT(run({"rm", root_, "3", "9", "--dry-run"}).err, HasSubstr("without --yes"));
  const Outcome refused = run({"rm", root_, "3", "9"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("would leave no checkpoint that can be restored"));
  EXPECT_THAT(refused.err, HasSubstr("hint: add --yes"));
  EXPECT_EQ(there(), "3.a1 9.a1");

  damage_manifest(paths_[0]);  // not one to rely on
  EXPECT_EQ(run({"rm", root_, "9"}).code, 2);
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_EQ(run({"rm", root_, "9", "--yes"}).code, 0);
  EXPECT_EQ(there(), "3.a1");
  EXPECT_EQ(run({"rm", root_, "3"}).code, 2) << "it may be readable tomorrow, and is the only one";
  EXPECT_EQ(run({"rm", root_, "3", "-y"}).code, 0);
  EXPECT_EQ(there(), "");
}

TEST_F(RemovalTest, OnATerminalItAsksBeforeTheLastGoodCheckpointGoes) {
  write_two();
  for (const char* typed : {"n\n", "\n"}) {
    const Outcome refused = run_on_terminal({"rm", root_, "3", "9"}, typed);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("Remove? [y/N]"));
    EXPECT_THAT(refused.err, HasSubstr("nothing was removed"));
    EXPECT_EQ(there(), "3.a1 9.a1");
  }
  const Outcome confirmed = run_on_terminal({"rm", root_, "3", "9"}, "y\n");
  EXPECT_EQ(confirmed.code, 0) << confirmed.err;
  EXPECT_THAT(confirmed.out, HasSubstr("2 versions removed"));
  EXPECT_EQ(there(), "");
}

TEST_F(RemovalTest, RmRemovesAVersionThatWasSetAsideAndSaysSo) {
  write_one_set_aside();
  const Outcome outcome = run({"rm", root_, "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("it was set aside: a block differs"));
  EXPECT_EQ(there(), "9.a1");
}

TEST_F(RemovalTest, OfAStepThatIsThereTwiceTheDamagedVersionGoesFirstAndAlone) {
  write_two();
  CheckpointWriter(root_, {{9, 1}}, {{{3, 1}, "a block differs"}}).write(3, state());
  ASSERT_EQ(there(), "3.a1 3.a2 9.a1");
  const Outcome first = run({"rm", root_, "3"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("removed step 3 (attempt 1)"));
  EXPECT_THAT(first.err, HasSubstr("note: step 3 (attempt 2) stays (live); rm 3 again"));
  EXPECT_EQ(there(), "3.a2 9.a1");
  EXPECT_EQ(run({"rm", root_, "3"}).code, 0);
  EXPECT_EQ(there(), "9.a1");
}

TEST_F(RemovalTest, RmRemovesAVersionWhoseManifestCannotBeRead) {
  write_two();
  damage_manifest(paths_[0]);
  const Outcome outcome = run({"rm", root_, "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("its manifest could not be read"));
  EXPECT_EQ(there(), "9.a1");
}

TEST_F(RemovalTest, RmLeavesFilesOfOthersAlone) {
  write_two();
  write_file_text(paths_[0] + "/notes.txt", "mine");
  const Outcome outcome = run({"rm", root_, "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning:"));
  EXPECT_THAT(outcome.err, HasSubstr("not Slackwater's"));
  EXPECT_EQ(read_file_text(paths_[0] + "/notes.txt"), "mine");
  EXPECT_EQ(std::distance(stdfs::directory_iterator(paths_[0]), {}), 1);
  EXPECT_EQ(run_json({"gc", root_, "--delete", "--json"})["removed"].size(), 0u) << "there is nothing left of ours";
}

TEST_F(RemovalTest, RmAndGcFollowNoLinks) {
  write_two();
  const std::string outside = directory_ / "outside";
  stdfs::create_directory(outside);
  write_file_text(outside + "/" + data_file(0, 0), "not ours");
  stdfs::create_directory_symlink(outside, paths_[0] + "/g0000");
  stdfs::create_directory_symlink(outside, path_of({5, 1}));
  EXPECT_EQ(run({"rm", root_, "5"}).code, 2);
  EXPECT_EQ(run({"gc", root_, "--delete"}).code, 0);
  EXPECT_EQ(run({"rm", root_, "3"}).code, 0);
  EXPECT_EQ(read_file_text(outside + "/" + data_file(0, 0)), "not ours");

  const std::string lock = root_ + "/" + kControlDirectory + "/" + kLockName;
  stdfs::remove(lock);
  stdfs::create_symlink(outside + "/" + data_file(0, 0), lock);
  EXPECT_EQ(run({"rm", root_, "9", "--yes"}).code, 2);
  EXPECT_EQ(read_file_text(outside + "/" + data_file(0, 0)), "not ours");
  EXPECT_TRUE(stdfs::exists(paths_[1]));
}

TEST_F(RemovalTest, InADirectoryThatMayNotBeWrittenItSaysSoAndRemovesNothing) {
  write_two();
  ::chmod(root_.c_str(), 0555);
  ::chmod((root_ + "/" + kControlDirectory).c_str(), 0555);
  ::chmod((root_ + "/" + kControlDirectory + "/" + kLockName).c_str(), 0444);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"rm", root_, "3"}, {"gc", root_, "--delete"}, {"pin", root_, "3"}}) {
    const Outcome outcome = run_as_nobody(words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("error:"));
    EXPECT_THAT(outcome.err, HasSubstr("ermission"));
    EXPECT_THAT(outcome.err, HasSubstr("hint: run this as a user who may"));
  }
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_FALSE(stdfs::exists(pin_path({3, 1})));
  ::chmod(root_.c_str(), 0755);
  ::chmod((root_ + "/" + kControlDirectory).c_str(), 0755);
}

TEST_F(RemovalTest, ACopiedCheckpointWithoutAControlDirectoryIsNotTouched) {
  write_two();
  stdfs::remove_all(root_ + "/" + kControlDirectory);
  const Outcome outcome = run({"rm", root_, "3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no folder .slackwater"));
  EXPECT_THAT(outcome.err, HasSubstr("hint:"));
  EXPECT_EQ(there(), "3.a1 9.a1");
}

TEST_F(RemovalTest, GcRemovesWhatWasNeverCommittedAndNothingElse) {
  write_one_set_aside();
  leave_debris({12, 1});
  leave_debris({13, 2});
  {
    CheckpointWriter writer(root_, {{9, 1}}, {{{3, 1}, "a block differs"}});
    must(writer.store().make_version(11));
    must(writer.store().decide({.run = writer.attempt().run,
                                .step = 11,
                                .attempt = writer.attempt().number,
                                .decision = Decision::kAbort,
                                .reason = "a test"}));
  }
  const std::string unreadable = [&] {
    CheckpointWriter writer(root_, {{9, 1}}, {{{3, 1}, "a block differs"}});
    return writer.write(10, state());
  }();
  damage_manifest(unreadable);
  ASSERT_EQ(there(), "3.a1 9.a1 10.a4 11.a3 12.a1 13.a2");
  const Outcome shown = run({"gc", root_});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, HasSubstr("would remove step 12"));
  EXPECT_THAT(shown.err, HasSubstr("--delete removes it"));
  EXPECT_EQ(there(), "3.a1 9.a1 10.a4 11.a3 12.a1 13.a2") << "gc deletes only when it is told to";
  EXPECT_EQ(run({"gc", root_, "-n", "--delete"}).code, 0);
  EXPECT_EQ(there(), "3.a1 9.a1 10.a4 11.a3 12.a1 13.a2") << "a dry run has removed something";

  const Outcome outcome = run({"gc", root_, "--delete"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("removed step 12 (attempt 1), 4.88 KiB: it was never committed"));
  EXPECT_THAT(outcome.out, HasSubstr("removed step 11 (attempt 3)"));
  EXPECT_THAT(outcome.out, HasSubstr("3 versions removed"));
  EXPECT_THAT(outcome.err, HasSubstr("kept 1 version that a restore set aside; --set-aside removes it"));
  EXPECT_EQ(there(), "3.a1 9.a1 10.a4");
  const Outcome again = run({"gc", root_, "--delete"});
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.out, "");
  EXPECT_THAT(again.err, HasSubstr("nothing to remove"));
}

TEST_F(RemovalTest, GcRemovesWhatWasSetAsideOnlyWhenAsked) {
  write_one_set_aside();
  EXPECT_EQ(run_json({"gc", root_, "--delete", "--json"})["removed"].size(), 0u);
  EXPECT_EQ(there(), "3.a1 9.a1");
  const json document = run_json({"gc", root_, "--delete", "--set-aside", "--json"});
  ASSERT_EQ(document["removed"].size(), 1u);
  EXPECT_EQ(document["removed"][0]["state"], "set aside");
  EXPECT_THAT(document["removed"][0]["why"].get<std::string>(), HasSubstr("a block differs"));
  EXPECT_EQ(there(), "9.a1");
}

TEST_F(RemovalTest, GcKeepsADamagedCheckpointThatIsPinnedOrAllThereIs) {
  write_two();
  write_file_text(pin_path({3, 1}), "pinned\n");
  CheckpointWriter(root_, {}, {{{3, 1}, "a block differs"}, {{9, 1}, "a block differs"}});
  const Outcome refused = run({"gc", root_, "--delete", "--set-aside"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("pinned and stays"));
  EXPECT_THAT(refused.err, HasSubstr("hint: add --yes"));
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_EQ(run({"gc", root_, "--delete", "--set-aside", "--yes"}).code, 0);
  EXPECT_EQ(there(), "3.a1");
}

TEST_F(RemovalTest, GcRemovesWhatARollbackLeftBehindOnceTheRunThatWentOnHasCommitted) {
  write_two();
  {
    CheckpointWriter back(root_, {{3, 1}});
  }
  EXPECT_EQ(run({"gc", root_, "--delete"}).code, 0);
  EXPECT_EQ(there(), "3.a1 9.a1") << "the rollback has not led to anything yet";
  CheckpointWriter(root_, {{3, 1}}).write(4, state());
  const Outcome outcome = run({"gc", root_, "--delete"});
  EXPECT_THAT(outcome.out, HasSubstr("removed step 9 (attempt 1)"));
  EXPECT_EQ(there(), "3.a1 4.a3");
}

TEST_F(RemovalTest, GcGuessesNothingWhereTheNewestAttemptCannotBeRead) {
  write_two();
  CheckpointWriter(root_, {{3, 1}}).write(4, state());
  write_file_text(root_ + "/" + kControlDirectory + "/" + attempt_file(2), "junk");
  leave_debris({12, 1});
  const Outcome outcome = run({"gc", root_, "--delete"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("warning:"));
  EXPECT_EQ(there(), "3.a1 4.a2 9.a1");
}

TEST_F(RemovalTest, PinKeepsAStepBesideARunThatDeletes) {
  CheckpointWriter writer(root_);
  for (const std::uint64_t step : {1, 2, 3}) writer.write(step, state());
  const Outcome outcome = run({"pin", root_, "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "step 1 (attempt 1) is pinned\n");
  EXPECT_THAT(run({"pin", root_ + "@1"}).out, HasSubstr("was already pinned"));
  must(writer.store().clean_up({.keep = 1}));
  EXPECT_EQ(there(), "1.a1 3.a1");
  const json document = run_json({"pin", root_, "3", "--json"});
  EXPECT_EQ(document["pinned"][0]["step"], 3);
  EXPECT_EQ(document["pinned"][0]["already"], false);
  EXPECT_EQ(run_json({"ls", root_, "--json"})["versions"][1]["pinned"], true);
}

TEST_F(RemovalTest, PinSaysWhatCannotBePinned) {
  write_one_set_aside();
  const Outcome missing = run({"pin", root_, "9", "10"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no checkpoint of step 10"));
  EXPECT_FALSE(stdfs::exists(pin_path({9, 1}))) << "one is missing: none is pinned";
  const Outcome aside = run({"pin", root_, "3"});
  EXPECT_EQ(aside.code, 2);
  EXPECT_THAT(aside.err, HasSubstr("set aside"));
  EXPECT_THAT(aside.err, HasSubstr("hint: it needs no pin"));
  damage_manifest(paths_[1]);
  const Outcome unreadable = run({"pin", root_, "9"});
  EXPECT_EQ(unreadable.code, 2);
  EXPECT_THAT(unreadable.err, HasSubstr("manifest.json"));
  EXPECT_THAT(unreadable.err, HasSubstr("hint:"));
}

TEST_F(RemovalTest, PinKeepsWhatARollbackLeftBehind) {
  write_two();
  CheckpointWriter writer(root_, {{3, 1}});
  ASSERT_EQ(run({"pin", root_, "9"}).code, 0);
  writer.write(4, state());
  must(writer.store().clean_up({.keep = 1}));
  EXPECT_EQ(there(), "4.a2 9.a1");
}

constexpr int kFine = 0;
constexpr int kFailed = 2;

// From inside: what no binary can be made to meet.
class RemovalInsideTest : public RemovalTest {
 protected:
  cli::LockedTier lock() { return *cli::lock_tier(fs_, root_, options_, "advice"); }
  int remove(const cli::LockedTier& tier, VersionRemover::Pinned pinned = VersionRemover::Pinned::kStays) {
    return cli::remove_chosen(fs_, root_, tier, {{tier.catalog.entries.at(0), "a test"}}, pinned, options_);
  }

  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  cli::RemovalOptions options_;
};

TEST_F(RemovalInsideTest, WithoutLocksItGoesOnOnlyWhenTold) {
  write_two();
  fs_.fail(FsCall::kTryLock, ENOLCK, {.times = 3});
  testing::internal::CaptureStderr();
  EXPECT_FALSE(cli::lock_tier(fs_, root_, options_, "advice").has_value());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("hint: make sure that no run uses it"));
  options_.no_lock = true;
  const auto tier = cli::lock_tier(fs_, root_, options_, "advice");
  ASSERT_TRUE(tier.has_value());
  EXPECT_EQ(tier->catalog.live_versions().size(), 2u);
}

TEST_F(RemovalInsideTest, ARunThatHasStartedMeanwhileStopsIt) {
  write_two();
  cli::LockedTier tier = lock();
  tier.lock.reset();  // as over NFS, where another host does not see it
  {
    CheckpointWriter other(root_);
  }
  EXPECT_EQ(remove(tier), kFailed);
  EXPECT_EQ(there(), "3.a1 9.a1");
}

TEST_F(RemovalInsideTest, AStepThatIsPinnedMeanwhileStays) {
  write_two();
  const cli::LockedTier tier = lock();
  ASSERT_EQ(run({"pin", root_, "3"}).code, 0);
  EXPECT_EQ(remove(tier), kFailed);
  EXPECT_EQ(there(), "3.a1 9.a1");
  EXPECT_EQ(run({"verify", root_}).code, 0);
  EXPECT_EQ(remove(tier, VersionRemover::Pinned::kGoesToo), kFine);
  EXPECT_EQ(there(), "9.a1");
}

TEST_F(RemovalInsideTest, WhatFailsIsSaidAndTheDecisionGoesBeforeTheFiles) {
  write_two();
  const cli::LockedTier tier = lock();
  fs_.fail(FsCall::kUnlink, EIO, {.path = kManifestName});
  EXPECT_EQ(remove(tier), kFailed);
  EXPECT_EQ(run({"verify", root_}).code, 0) << "nothing may go before the manifest";
  fs_.fail(FsCall::kSyncDirectory, EIO);
  EXPECT_EQ(remove(tier), kFailed);
  EXPECT_TRUE(stdfs::exists(paths_[0] + "/" + data_file(0, 0))) << "the manifest may come back: so must the data";
}

}  // namespace
}  // namespace slackwater::test
