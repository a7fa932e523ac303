// What VersionStore deletes, in which order, and what it never deletes.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store_fixture.hpp"
#include "support/manual_clock.hpp"

namespace slackwater::test {
namespace {

using DeletionTest = StoreTest;

TEST_F(DeletionTest, RemovesAVersionWithItsPin) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ASSERT_TRUE(store->pin({1, 1}).has_value());
  ASSERT_TRUE(store->remove({1, 1}, "a test").has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
  EXPECT_FALSE(exists(control() + "/" + pin_file({1, 1})));
  EXPECT_EQ(store->remove({1, 1}, "a test").error().kind, ErrorKind::kNotFound);
}

TEST_F(DeletionTest, TheDecisionGoesFirstAndForGood) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kUnlink, EIO, {.path = kManifestName});
  EXPECT_FALSE(store->remove({1, 1}, "a test").has_value());
  EXPECT_EQ(live(), "1.a1");
  fs_.fail(FsCall::kSyncDirectory, EIO);
  EXPECT_FALSE(store->remove({1, 1}, "a test").has_value());
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" +
                     data_file(0, 0)));  // the decision may come back after a power cut: so must the data
  ASSERT_TRUE(store->remove({1, 1}, "a test").has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
}

TEST_F(DeletionTest, NoRecordOutlivesTheDataThatItVouchesFor) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  write(path_of({1, 1}) + "/" + data_file(0, 1), "a second part, which is listed before the record");
  fs_.fail(FsCall::kUnlink, EIO, {.path = ".safetensors"});  // as if it were killed there
  EXPECT_FALSE(store->remove({1, 1}, "a test").has_value());
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(0, 1)));
  EXPECT_FALSE(exists(path_of({1, 1}) + "/" + record_file(0)));
}

// The sync that belongs to the unlink may have failed last time, or the process may have died before it.
TEST_F(DeletionTest, AVersionFoundWithoutItsDecisionIsSyncedBeforeItsDataGoes) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ASSERT_TRUE(std::filesystem::remove(path_of({1, 1}) + "/" + kManifestName));
  const std::size_t before = fs_.calls().size();
  ASSERT_TRUE(store->remove({1, 1}, "a test").has_value());
  std::vector<FsCall> calls = fs_.calls();
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  std::erase_if(calls, [](FsCall call) { return call != FsCall::kUnlink && call != FsCall::kSyncDirectory; });
  ASSERT_GE(calls.size(), 4u);
  EXPECT_EQ(calls[0], FsCall::kUnlink);  // the decision, in vain
  EXPECT_EQ(calls[1], FsCall::kUnlink);  // its second name
  EXPECT_EQ(calls[2], FsCall::kSyncDirectory);
  EXPECT_EQ(calls[3], FsCall::kUnlink);
}

TEST_F(DeletionTest, APinSetWhileTheVersionIsBeingDeletedHolds) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto other = open_store(VersionStore::Role::kMember);  // another rank: no lock of this process keeps it away
  fs_.hang(FsCall::kUnlink, {.path = path_of({1, 1}) + "/" + kManifestName});
  Result<std::vector<VersionInfo>> cleaned;
  {
    const std::jthread cleaner([&] { cleaned = store->clean_up({.keep = 1}); });
    fs_.wait_hung(1);
    EXPECT_TRUE(other->pin({1, 1}).has_value());
    fs_.release_hung();
  }
  ASSERT_TRUE(cleaned.has_value());
  EXPECT_EQ(cleaned->size(), 2u);
  EXPECT_EQ(live(), "1.a1 2.a1");
  EXPECT_EQ(read(path_of({1, 1}) + "/" + data_file(0, 0)), "data of step 1");
  EXPECT_TRUE(logged("step 1 (attempt 1) is kept: it was pinned meanwhile"));
}

// Where there is no lock, somebody may publish a version that looks like debris.
TEST_F(DeletionTest, DebrisThatIsPublishedBeforeItsFirstFileGoesStays) {
  const std::string manifest = path_of({1, 1}) + "/" + kManifestName;
  auto store = open_store();
  commit(*store, claim(*store), 1);
  const std::string text = read(manifest);
  ASSERT_TRUE(std::filesystem::remove(manifest));
  claim(*store);
  fs_.hang(FsCall::kSyncDirectory, {.path = version_directory({1, 1})});
  {
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1})); });
    fs_.wait_hung(1);
    write(manifest, text);
    fs_.release_hung();
  }
  EXPECT_EQ(read(manifest), text);
  EXPECT_EQ(read(path_of({1, 1}) + "/" + data_file(0, 0)), "data of step 1");
}

TEST_F(DeletionTest, DebrisThatIsPublishedWhileItsFilesGoLosesItsManifestToo) {
  const std::string manifest = path_of({1, 1}) + "/" + kManifestName;
  auto store = open_store();
  commit(*store, claim(*store), 1);
  const std::string text = read(manifest);
  ASSERT_TRUE(std::filesystem::remove(manifest));
  claim(*store);
  fs_.hang(FsCall::kUnlink, {.path = data_file(0, 0)});
  {
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1})); });
    fs_.wait_hung(1);
    write(manifest, text);
    fs_.release_hung();
  }
  EXPECT_FALSE(exists(path_of({1, 1}))) << "a live version without its files";
}

TEST_F(DeletionTest, APinSetBeforeTheDeletionBeginsLeavesTheManifestUntouched) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto other = open_store(VersionStore::Role::kMember);
  fs_.hang(FsCall::kStatus, {.path = path_of({1, 1})});  // chosen, and not begun
  const std::uint64_t unlinked = fs_.count(FsCall::kUnlink);
  {
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(1);
    EXPECT_TRUE(other->pin({1, 1}).has_value());
    fs_.release_hung();
  }
  EXPECT_EQ(fs_.count(FsCall::kUnlink), unlinked);
  EXPECT_EQ(live(), "1.a1 2.a1");
}

// A pin that comes while it is being deleted must find it put back: so there must be something to put back.
TEST_F(DeletionTest, AVersionWhoseManifestCannotBeRememberedStays) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  ASSERT_TRUE(store->clean_up({.keep = 0}).has_value());  // from now on it knows them by heart
  fs_.fail(FsCall::kOpen, EIO, {.times = kAlways, .path = path_of({1, 1}) + "/" + kManifestName});
  const auto cleaned = store->clean_up({.keep = 1});
  fs_.clear_faults();
  ASSERT_FALSE(cleaned.has_value());
  EXPECT_EQ(cleaned.error().kind, ErrorKind::kIo);
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, ADirectoryThatCannotBeRemovedIsAnErrorAndGoesTheNextTime) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kRemoveDirectory, EIO);
  const Status removed = store->remove({1, 1}, "a test");
  ASSERT_FALSE(removed.has_value());
  EXPECT_EQ(removed.error().kind, ErrorKind::kIo);
  EXPECT_FALSE(logged("not Slackwater's"));
  ASSERT_TRUE(store->remove({1, 1}, "a test").has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
}

TEST_F(DeletionTest, AVersionThatSomebodyElseRemovesFirstIsNoError) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 3; ++step) commit(*store, attempt, step);
  fs_.hang(FsCall::kStatus, {.path = path_of({1, 1})});
  Result<std::vector<VersionInfo>> cleaned;
  {
    const std::jthread cleaner([&] { cleaned = store->clean_up({.keep = 1}); });
    fs_.wait_hung(1);
    std::filesystem::remove_all(path_of({1, 1}));
    fs_.release_hung();
  }
  ASSERT_TRUE(cleaned.has_value()) << cleaned.error().to_string();
  EXPECT_EQ(cleaned->size(), 1u);
  EXPECT_EQ(live(), "3.a1");
}

TEST_F(DeletionTest, APinThatComesTooLateIsRefusedAndLeavesNothing) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto other = open_store(VersionStore::Role::kMember);
  fs_.hang(FsCall::kUnlink, {.path = path_of({1, 1}) + "/" + data_file(0, 0)});
  fs_.hang(FsCall::kOpen, {.path = pin_file({1, 1})});
  Status pinned;
  {
    // It finds the manifest, and makes its pin only when the manifest is gone and no pin was seen.
    const std::jthread pinning([&] { pinned = other->pin({1, 1}); });
    fs_.wait_hung(1);
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(2);
    fs_.release_hung();
  }
  ASSERT_FALSE(pinned.has_value());
  EXPECT_EQ(pinned.error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(live(), "2.a1");
  EXPECT_FALSE(exists(control() + "/" + pin_file({1, 1})));
}

// The pin was acknowledged while the manifest was still there. Then the deleting run dies before it checks the pins.
TEST_F(DeletionTest, APinnedVersionIsPutBackAfterACrashDuringItsDeletion) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto other = open_store(VersionStore::Role::kMember);
  fs_.hang(FsCall::kUnlink, {.path = path_of({1, 1}) + "/" + kManifestName});
  {
    const std::jthread cleaner([&] { EXPECT_FALSE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(1);
    EXPECT_TRUE(other->pin({1, 1}).has_value());
    fs_.fail(FsCall::kList, EIO, {.times = kAlways, .path = control()});  // here it ends
    fs_.release_hung();
  }
  fs_.clear_faults();
  ASSERT_FALSE(exists(path_of({1, 1}) + "/" + kManifestName));
  other.reset();
  store.reset();
  store = open_store();
  EXPECT_EQ(live(), "1.a1 2.a1");
  EXPECT_EQ(read(path_of({1, 1}) + "/" + data_file(0, 0)), "data of step 1");
  EXPECT_TRUE(logged("step 1 (attempt 1) is kept after all"));
}

TEST_F(DeletionTest, AVersionThatHasLostFilesIsNotPutBackEvenIfPinned) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  fs_.fail(FsCall::kUnlink, EIO, {.path = path_of({1, 1}) + "/" + data_file(0, 0)});
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value());
  ASSERT_FALSE(exists(path_of({1, 1}) + "/" + kIndexName));
  write(control() + "/" + pin_file({1, 1}), "pinned\n");  // it came too late
  store.reset();
  store = open_store();
  EXPECT_EQ(live(), "2.a1");
}

// Names of files are synced, so that no power cut brings the second name of the manifest back when files are gone.
TEST_F(DeletionTest, TheSecondNameOfAManifestIsGoneForGoodBeforeAnyFileGoes) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.nth = 2, .times = 2, .path = path_of({1, 1})});
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1}) + "/.manifest.json.deleted.tmp")) << "the sync came before the name had gone";
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(0, 0)));
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value()) << "again, though the name is gone";
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(0, 0)));
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
}

// A lock that holds on one host only: an undecided version is chosen to go, and its run, which lives, commits it.
TEST_F(DeletionTest, AVersionThatIsCommittedMeanwhileStays) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ManifestCache cache;
  VersionRemover elsewhere(fs_, root(), Log(sink()), cache);
  const auto removed = elsewhere.remove({1, 1}, "a test", VersionRemover::Pinned::kStaysIfConfirmed);
  ASSERT_TRUE(removed.has_value());
  EXPECT_FALSE(*removed);
  EXPECT_EQ(live(), "1.a1");
}

// The link is made, but the call returns an error: nobody can know which it was.
TEST_F(DeletionTest, ACommitThatMayBeVisibleAlthoughItFailedReplacesNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  auto manifest = prepare(*store, fs_, attempt, 2);
  ASSERT_TRUE(manifest.has_value());
  const std::string text = serialize(*manifest);
  fs_.fail(FsCall::kLink, EIO);
  EXPECT_FALSE(store->decide(std::move(*manifest)).has_value());
  write(path_of({2, 1}) + "/" + kManifestName, text);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, ARunThatIsOverStopsDeleting) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 3; ++step) commit(*store, attempt, step);
  fs_.hang(FsCall::kRemoveDirectory, {.path = path_of({1, 1})});
  {
    const std::jthread cleaner([&] { EXPECT_EQ(store->clean_up({.keep = 1}).error().kind, ErrorKind::kAborted); });
    fs_.wait_hung(1);
    write(control() + "/" + attempt_file(2), serialize(Attempt{.number = 2, .run = "other", .members = {"x"}}));
    fs_.release_hung();
  }
  EXPECT_TRUE(exists(path_of({2, 1}) + "/" + kManifestName));
}

// It was killed between the link and the sync. If the sync cannot be made up for, older ones stay.
TEST_F(DeletionTest, AnAdoptedVersionThatCannotBeSyncedReplacesNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 2; ++step) commit(*store, attempt, step);
  store.reset();
  store = open_store();
  fs_.fail(FsCall::kOpen, ENOSPC, {.times = 2, .path = "/.attempt-"});
  fs_.fail(FsCall::kSyncDirectory, EIO, {.times = kAlways, .path = path_of({2, 1})});
  EXPECT_FALSE(store->attempt().claim("test", {{1, 1}, {2, 1}}, {}, {}, {.keep = 1}).has_value());
  ASSERT_TRUE(store->attempt().claim("test", {{1, 1}, {2, 1}}, {}, {}, {.keep = 1}).has_value());
  ASSERT_TRUE(store->clean_up({.keep = 1}, Need::kSpace).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, ADeletionInterruptedBeforeItRemovedTheManifestStartsAgain) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  fs_.fail(FsCall::kUnlink, EIO, {.path = path_of({1, 1}) + "/" + kManifestName});
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1");
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
}

TEST_F(DeletionTest, AFullDiskDoesNotStopAPinnedVersionFromBeingPutBack) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto other = open_store(VersionStore::Role::kMember);
  fs_.hang(FsCall::kUnlink, {.path = path_of({1, 1}) + "/" + kManifestName});
  {
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(1);
    EXPECT_TRUE(other->pin({1, 1}).has_value());
    fs_.fail(FsCall::kOpen, ENOSPC, {.times = kAlways, .path = "/.manifest.json"});
    fs_.release_hung();
  }
  fs_.clear_faults();
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, ADiskWithoutRoomForANameCanStillBeFreed) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  fs_.fail(FsCall::kLink, ENOSPC, {.times = kAlways});
  EXPECT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "2.a1");
}

// The first rank has written the pin and looks for the manifest too late. The second has found pin and manifest.
TEST_F(DeletionTest, ARankThatPinsTooLateKeepsTheOtherRanksPin) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto second = open_store(VersionStore::Role::kMember);
  FaultFileSystem slow(*real_);
  auto first = VersionStore::open(slow, clock_, root(), Log(sink()), VersionStore::Role::kMember, {});
  ASSERT_TRUE(first.has_value());
  slow.hang(FsCall::kList, {.path = path_of({1, 1})});
  fs_.hang(FsCall::kUnlink, {.path = path_of({1, 1}) + "/" + kManifestName});
  {
    const std::jthread late([&] { EXPECT_TRUE((*first)->pin({1, 1}).has_value()); });
    slow.wait_hung(1);
    ASSERT_TRUE(second->pin({1, 1}).has_value());
    std::filesystem::rename(control() + "/" + pin_file({1, 1}), temp_ / "pin");  // so that the delete begins
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(1);
    std::filesystem::rename(temp_ / "pin", control() + "/" + pin_file({1, 1}));
    fs_.release_hung_until(FsCall::kList, {.path = control()});
    fs_.wait_hung(2);  // the manifest is gone, and no pin was looked for
    const std::uint64_t looks = slow.count(FsCall::kList);
    slow.release_hung();
    while (slow.count(FsCall::kList) == looks) std::this_thread::yield();  // it has looked, and found no manifest
    fs_.release_hung();
  }
  EXPECT_EQ(live(), "1.a1 2.a1");
  EXPECT_TRUE(exists(control() + "/" + pin_file({1, 1})));
}

// A run was killed between a commit and the delete that belongs to it.
TEST_F(DeletionTest, AClaimThatFindsNoSpaceDeletesWhatRetentionWouldHave) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 4; ++step) commit(*store, attempt, step);
  store.reset();
  store = open_store();
  fs_.fail(FsCall::kOpen, ENOSPC, {.times = 2, .path = "/.attempt-"});
  // After a rollback to step 3: step 4 is not adopted, and takes nobody's place.
  const auto claimed = store->attempt().claim("test", {{1, 1}, {2, 1}, {3, 1}}, {}, {}, {.keep = 2});
  ASSERT_TRUE(claimed.has_value()) << claimed.error().to_string();
  EXPECT_EQ(live(), "2.a1 3.a1");
  EXPECT_TRUE(exists(path_of({4, 1}) + "/" + kManifestName)) << "not before the first commit";
}

// The commit becomes visible, and its last sync fails, while the clean-up is looking.
TEST_F(DeletionTest, ACommitThatIsNotYetSafeReplacesNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  auto manifest = prepare(*store, fs_, attempt, 2);
  ASSERT_TRUE(manifest.has_value());
  fs_.hang(FsCall::kList, {.path = kControlDirectory});
  {
    const std::jthread cleaner([&] { EXPECT_TRUE(store->clean_up({.keep = 1}).has_value()); });
    fs_.wait_hung(1);
    fs_.fail(FsCall::kSyncDirectory, EIO, {.path = version_directory({2, 1})});
    EXPECT_EQ(store->decide(std::move(*manifest)).error().kind, ErrorKind::kInDoubt);
    fs_.release_hung();
  }
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, AVersionInDoubtThatWasRestoredIsNotDeletedForSpace) {
  auto store = open_store();
  const Attempt first = claim(*store);
  commit(*store, first, 1);
  auto manifest = prepare(*store, fs_, first, 2);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.times = 3, .path = version_directory({2, 1})});
  ASSERT_EQ(store->decide(std::move(*manifest)).error().kind, ErrorKind::kInDoubt);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.times = kAlways, .path = version_directory({2, 1})});
  static_cast<void>(claim(*store, {{1, 1}, {2, 1}}));
  ASSERT_TRUE(store->clean_up({.keep = 2}, Need::kSpace).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeletionTest, WhatCouldNotBeRemovedIsTriedAgain) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ASSERT_TRUE(prepare(*store, fs_, attempt, 2).has_value());
  fs_.fail(FsCall::kUnlink, EIO, {.path = path_of({2, 1}) + "/" + data_file(0, 0)});
  EXPECT_FALSE(store->remove({2, 1}, "it could not be committed").has_value());
  ASSERT_TRUE(exists(path_of({2, 1})));
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({2, 1})));
  EXPECT_EQ(live(), "1.a1");
}

TEST_F(DeletionTest, ManifestsAreReadOnceHoweverManyCleanUpsRun) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  const auto opens_of_a_clean_up = [&] {
    const std::uint64_t before = fs_.count(FsCall::kOpen) + fs_.count(FsCall::kList);
    EXPECT_TRUE(store->clean_up({.keep = 0}).has_value());
    return fs_.count(FsCall::kOpen) + fs_.count(FsCall::kList) - before;
  };
  for (std::uint64_t step = 1; step <= 3; ++step) commit(*store, attempt, step);
  static_cast<void>(opens_of_a_clean_up());
  const std::uint64_t with_three = opens_of_a_clean_up();
  for (std::uint64_t step = 4; step <= 40; ++step) commit(*store, attempt, step);
  static_cast<void>(opens_of_a_clean_up());
  EXPECT_EQ(opens_of_a_clean_up(), with_three);
}

TEST_F(DeletionTest, PrivateNamesOfClaimsThatACrashCutShortGo) {
  auto store = open_store();
  const std::string left = control() + "/.attempt-0007.json.f00d.tmp";
  const std::string foreign = control() + "/notes.tmp";
  write(left, "{");
  write(foreign, "mine");
  static_cast<void>(claim(*store));
  EXPECT_FALSE(exists(left));
  EXPECT_TRUE(exists(foreign));
}

TEST_F(DeletionTest, LocksOfFetchesThatWereKilledGo) {
  auto store = open_store();
  const std::string left = control() + "/fetch-step-0000000042.a1-00003.lock";
  write(left, "");
  static_cast<void>(claim(*store));
  EXPECT_FALSE(exists(left));
}

TEST_F(DeletionTest, WithoutTheLockPrivateNamesMayBeOfAClaimThatIsUnderWay) {
  fs_.fail(FsCall::kTryLock, ENOLCK);
  auto store = open_store();
  const std::string left = control() + "/.attempt-0007.json.f00d.tmp";
  write(left, "{");
  static_cast<void>(claim(*store));
  EXPECT_TRUE(exists(left));
}

TEST_F(DeletionTest, AClaimLeavesTheFileOfARunThatTakesOverMeanwhile) {
  fs_.fail(FsCall::kTryLock, ENOLCK, {.times = kAlways});
  auto store = open_store();
  auto other = open_store();
  fs_.hang(FsCall::kList, {.nth = 2, .path = control()});  // the listing that looks for old attempt files
  {
    const std::jthread claiming([&] { EXPECT_EQ(claim(*store).number, 1u); });
    fs_.wait_hung(1);
    EXPECT_EQ(claim(*other).number, 2u);
    fs_.release_hung();
  }
  EXPECT_TRUE(exists(control() + "/" + attempt_file(2)));
}

TEST_F(DeletionTest, AClaimThatFindsNoSpaceSweepsOnlyWithTheLock) {
  auto store = open_store();
  ASSERT_TRUE(prepare(*store, fs_, claim(*store), 1).has_value());
  fs_.fail(FsCall::kTryLock, ENOLCK);
  auto other = open_store();
  fs_.fail(FsCall::kOpen, ENOSPC, {.path = "/.attempt-"});
  const auto refused = other->attempt().claim("test", {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kNoSpace);
  EXPECT_TRUE(exists(path_of({1, 1})));

  other.reset();
  store.reset();
  store = open_store();
  fs_.fail(FsCall::kOpen, ENOSPC, {.path = "/.attempt-"});
  EXPECT_EQ(claim(*store).number, 2u);
  EXPECT_FALSE(exists(path_of({1, 1})));
}

// Step 1 may go only after step 2 was reported as safe.
TEST_F(DeletionTest, AVersionThatIsBeingDecidedReplacesNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  auto manifest = prepare(*store, fs_, attempt, 2);
  ASSERT_TRUE(manifest.has_value());
  fs_.hang(FsCall::kSyncDirectory, {.path = path_of({2, 1})});
  {
    const std::jthread deciding([&] { EXPECT_TRUE(store->decide(*manifest).has_value()); });
    fs_.wait_hung(1);
    EXPECT_TRUE(store->clean_up({.keep = 1}).has_value());
    EXPECT_EQ(live(), "1.a1 2.a1");
    fs_.release_hung();
  }
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "2.a1");
}

TEST_F(DeletionTest, ForeignFilesAndLinksStay) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  const std::string outside = temp_ / "precious";
  write(outside, "data");
  write(path_of({1, 1}) + "/notes.txt", "mine");
  std::filesystem::create_symlink(outside, path_of({1, 1}) + "/" + data_file(7, 0));
  ASSERT_TRUE(store->scan_cached().has_value());
  ASSERT_TRUE(store->remove({1, 1}, "a test").has_value());
  EXPECT_EQ(read(path_of({1, 1}) + "/notes.txt"), "mine");
  EXPECT_EQ(read(outside), "data");
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(7, 0)));
  EXPECT_FALSE(exists(path_of({1, 1}) + "/" + data_file(0, 0)));
  EXPECT_EQ(live(), "");
  const auto cached = store->scan_cached();
  ASSERT_TRUE(cached.has_value());
  EXPECT_TRUE(cached->live_versions().empty());
  EXPECT_TRUE(logged("not Slackwater's"));
}

TEST_F(DeletionTest, ALinkInPlaceOfAVersionIsNotFollowed) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  const std::string elsewhere = temp_ / "elsewhere";
  std::filesystem::rename(path_of({1, 1}), elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, path_of({1, 1}));
  EXPECT_FALSE(store->remove({1, 1}, "a test").has_value());
  EXPECT_TRUE(exists(elsewhere + "/" + kManifestName));
}

TEST_F(DeletionTest, RetentionKeepsWhatItShould) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 8; ++step) {
    commit(*store, attempt, step);
    if (step == 2) {
      ASSERT_TRUE(store->pin({2, 1}).has_value());
    }
    ASSERT_TRUE(store->clean_up({.keep = 2, .keep_every = 5}).has_value());
  }
  EXPECT_EQ(live(), "2.a1 5.a1 7.a1 8.a1");
  EXPECT_EQ(scan().entries.size(), 4u);
}

TEST_F(DeletionTest, ARollbackReplacesAndKeepsUntilTheFirstCommit) {
  auto store = open_store();
  const Attempt first = claim(*store);
  for (std::uint64_t step = 38; step <= 45; ++step) commit(*store, first, step);
  const Attempt second = claim(*store, names_up_to(40));
  EXPECT_EQ(live(), "38.a1 39.a1 40.a1");
  EXPECT_EQ(state_of({41, 1}), VersionState::kReplaced);
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_TRUE(exists(path_of({38, 1})));  // retention too waits for the first commit
  EXPECT_TRUE(exists(path_of({45, 1})));

  commit(*store, second, 41);
  EXPECT_EQ(live(), "38.a1 39.a1 40.a1 41.a2");
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_EQ(live(), "40.a1 41.a2");
  EXPECT_EQ(scan().entries.size(), 2u);
}

TEST_F(DeletionTest, PinnedVersionsSurviveARollback) {
  auto store = open_store();
  const Attempt first = claim(*store);
  commit(*store, first, 1);
  commit(*store, first, 2);
  ASSERT_TRUE(store->pin({2, 1}).has_value());
  const Attempt second = claim(*store, {{1, 1}});
  commit(*store, second, 2);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "2.a2");
  EXPECT_EQ(state_of({2, 1}), VersionState::kReplaced);
}

TEST_F(DeletionTest, DebrisOfOlderAttemptsGoesEvenBeforeACommit) {
  auto store = open_store();
  const Attempt first = claim(*store);
  commit(*store, first, 1);
  ASSERT_TRUE(prepare(*store, fs_, first, 2).has_value());
  auto aborted = prepare(*store, fs_, first, 3);
  aborted->decision = Decision::kAbort;
  ASSERT_TRUE(store->decide(*aborted).has_value());

  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_TRUE(exists(path_of({2, 1})));  // its own, still under way
  EXPECT_FALSE(exists(path_of({3, 1})));

  const Attempt second = claim(*store, {{1, 1}});
  ASSERT_TRUE(prepare(*store, fs_, second, 2).has_value());
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({2, 1})));
  EXPECT_TRUE(exists(path_of({2, 2})));
  EXPECT_EQ(live(), "1.a1");
}

TEST_F(DeletionTest, UnreadableManifestsAreNeverDeleted) {
  auto store = open_store();
  const Attempt first = claim(*store);
  for (std::uint64_t step = 1; step <= 4; ++step) commit(*store, first, step);
  flip_byte(path_of({1, 1}) + "/" + kManifestName);
  const Attempt second = claim(*store, {{2, 1}});
  flip_byte(path_of({4, 1}) + "/" + kManifestName);
  commit(*store, second, 3);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(state_of({1, 1}), VersionState::kUnreadable);
  EXPECT_EQ(state_of({4, 1}), VersionState::kUnreadable);
  EXPECT_EQ(live(), "3.a2");
  EXPECT_TRUE(logged("manifest cannot be read"));
  const std::size_t lines = log_lines_.size();
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(log_lines_.size(), lines);  // said once
}

TEST_F(DeletionTest, NothingIsDeletedByGuesswork) {
  auto store = open_store();
  const Attempt first = claim(*store);
  for (std::uint64_t step = 1; step <= 3; ++step) commit(*store, first, step);
  flip_byte(control() + "/" + attempt_file(1));
  const auto cleaned = store->clean_up({.keep = 1});
  ASSERT_FALSE(cleaned.has_value());
  EXPECT_EQ(cleaned.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(live(), "1.a1 2.a1 3.a1");
}

TEST_F(DeletionTest, AVersionThatCannotBeRemovedDoesNotKeepTheOthers) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 4; ++step) commit(*store, attempt, step);
  fs_.fail(FsCall::kUnlink, EACCES, {.path = "step-0000000001"});
  const auto cleaned = store->clean_up({.keep = 1});
  ASSERT_FALSE(cleaned.has_value());
  EXPECT_EQ(cleaned.error().kind, ErrorKind::kPermission);
  EXPECT_EQ(live(), "1.a1 4.a1");
}

// Space may come back a little later than a delete returns: a save that finds none waits for it, but not for ever.
TEST_F(DeletionTest, ADeletionIsRememberedForTwoSeconds) {
  ManualClock clock;
  auto store = VersionStore::open(fs_, clock, root(), Log(sink()));
  ASSERT_TRUE(store.has_value());
  const Attempt attempt = claim(**store);
  commit(**store, attempt, 1);
  commit(**store, attempt, 2);
  EXPECT_FALSE((*store)->removed_lately());
  ASSERT_TRUE((*store)->clean_up({.keep = 1}).has_value());
  EXPECT_EQ((*store)->removed_count(), 1u);
  clock.pass(std::chrono::milliseconds(1999));
  EXPECT_TRUE((*store)->removed_lately());
  clock.pass(std::chrono::milliseconds(1));
  EXPECT_FALSE((*store)->removed_lately());
}

TEST_F(DeletionTest, BeforeAClaimTheLockHolderMayDelete) {
  {
    auto store = open_store();
    const Attempt attempt = claim(*store);
    commit(*store, attempt, 1);
    commit(*store, attempt, 2);
  }
  auto store = open_store();
  EXPECT_TRUE(store->remove({1, 1}, "a test").has_value());
  EXPECT_EQ(live(), "2.a1");
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value());
}

}  // namespace
}  // namespace slackwater::test
