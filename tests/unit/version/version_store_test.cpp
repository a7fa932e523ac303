#include "version/version_store.hpp"

#include <cerrno>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "store_fixture.hpp"
#include "support/child_process.hpp"

namespace slackwater::test {
namespace {

using VersionStoreTest = StoreTest;

TEST_F(VersionStoreTest, OpenMakesTheLastPartOfThePathOnly) {
  {
    auto store = open_store();
    EXPECT_TRUE(exists(control()));
  }
  auto store = VersionStore::open(fs_, clock_, temp_ / "no/such/run", Log(sink()));
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(store.error().message.find("create it first"), std::string::npos) << store.error().to_string();
}

TEST_F(VersionStoreTest, OpenSyncsWhatItMade) {
  fs_.fail(FsCall::kSyncDirectory, EIO, {.nth = 2});  // first the root, then its parent
  const auto store = VersionStore::open(fs_, clock_, root(), Log(sink()));
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().path, temp_.path());
}

TEST_F(VersionStoreTest, AFileInTheWayIsAnError) {
  write(root(), "not a directory");
  const auto store = VersionStore::open(fs_, clock_, root(), Log(sink()));
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message.find("in the way"), std::string::npos) << store.error().to_string();
  EXPECT_FALSE(VersionStore::open(fs_, clock_, "", Log(sink())).has_value());
}

TEST_F(VersionStoreTest, TrailingSlashesDoNotMatter) {
  const auto store = VersionStore::open(fs_, clock_, root() + "//", Log(sink()));
  ASSERT_TRUE(store.has_value());
  EXPECT_EQ((*store)->root(), root());
}

TEST_F(VersionStoreTest, ASecondRunOnTheDirectoryIsBusy) {
  {
    const auto first = open_store();
    const auto second = VersionStore::open(fs_, clock_, root(), Log(sink()));
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().kind, ErrorKind::kBusy);
    EXPECT_NE(second.error().message.find("another run"), std::string::npos) << second.error().to_string();
  }
  EXPECT_NE(open_store(), nullptr);
}

TEST_F(VersionStoreTest, AFileSystemWithoutLocksIsUsedWithAWarning) {
  fs_.fail(FsCall::kTryLock, ENOLCK);
  EXPECT_NE(open_store(), nullptr);
  EXPECT_TRUE(logged("no locks"));
}

TEST_F(VersionStoreTest, AttemptsAreNumberedOneAfterTheOther) {
  auto store = open_store();
  EXPECT_EQ(claim(*store).number, 1u);
  const Attempt second = claim(*store);
  EXPECT_EQ(second.number, 2u);
  EXPECT_EQ(second.members.size(), 1u);
  const Catalog catalog = scan();
  ASSERT_TRUE(catalog.newest_attempt.has_value());
  EXPECT_EQ(catalog.newest_attempt->run, second.run);
}

TEST_F(VersionStoreTest, ALostRaceForANumberTakesTheNextOne) {
  auto store = open_store();
  // A rival publishes between our listing and our link: link returns EEXIST although the name was free before.
  fs_.fail(FsCall::kLink, EEXIST);
  EXPECT_EQ(claim(*store).number, 1u);
  EXPECT_EQ(fs_.count(FsCall::kLink), 2u);
}

TEST_F(VersionStoreTest, ANumberIsNotUsedAgainEvenIfItsFileIsGone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  std::filesystem::remove(control() + "/" + attempt_file(1));
  EXPECT_EQ(claim(*store).number, 2u);
}

TEST_F(VersionStoreTest, ACommittedVersionIsLive) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 42);
  EXPECT_EQ(live(), "42.a1");
  const VersionInfo info = scan().live_versions().front();
  EXPECT_EQ(info.directory, "step-0000000042.a1");
  EXPECT_EQ(info.world, 1u);
  EXPECT_EQ(info.tensor_count, 1u);
  EXPECT_GT(info.size_bytes, 0u);
  const auto record = parse_record(read(path_of({42, 1}) + "/" + record_file(0)), "record");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->run, attempt.run);
}

TEST_F(VersionStoreTest, AStepIsMadeOnce) {
  auto store = open_store();
  EXPECT_EQ(store->make_version(1).error().kind, ErrorKind::kInternal);
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  const auto again = store->make_version(1);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().kind, ErrorKind::kAlreadyExists);
}

TEST_F(VersionStoreTest, WritingARecordSyncsTheVersionAndTheRoot) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = "step-0000000001"});
  EXPECT_FALSE(prepare(*store, fs_, attempt, 1).has_value());
  fs_.clear_faults();
  fs_.fail(FsCall::kSyncDirectory, EIO, {.nth = 2});
  const auto second = prepare(*store, fs_, attempt, 2);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().path, root());
}

TEST_F(VersionStoreTest, ARecordThatFoundNoSpaceCanBeWrittenAgain) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  ASSERT_TRUE(store->make_version(1).has_value());
  const Record record{
      .run = attempt.run, .identity = {.step = 1, .attempt = attempt.number, .rank = 0, .world = 1}, .files = {}};
  for (const FsCall call : {FsCall::kSyncAll, FsCall::kSyncDirectory}) {
    fs_.fail(call, ENOSPC, {.path = path_of({1, 1})});
    EXPECT_EQ(store->write_record(record, serialize_index({})).error().kind, ErrorKind::kNoSpace);
  }
  const auto made = store->write_record(record, serialize_index({}));
  EXPECT_TRUE(made.has_value()) << made.error().to_string();
}

TEST_F(VersionStoreTest, ThereIsOneDecisionPerVersionAndTheSecondWriterObeysIt) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  auto manifest = prepare(*store, fs_, attempt, 1);
  ASSERT_TRUE(manifest.has_value());
  Manifest abort = *manifest;
  abort.decision = Decision::kAbort;
  abort.reason = "too slow";
  ASSERT_TRUE(store->decide(abort).has_value());
  const auto decided = store->decide(*manifest);
  ASSERT_TRUE(decided.has_value()) << decided.error().to_string();
  EXPECT_EQ(decided->decision, Decision::kAbort);
  EXPECT_EQ(decided->reason, "too slow");
  EXPECT_EQ(state_of({1, 1}), VersionState::kAborted);
}

TEST_F(VersionStoreTest, AnEarlierCommitIsObeyedOnlyWhenItIsDurable) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  auto manifest = prepare(*store, fs_, attempt, 1);
  ASSERT_TRUE(manifest.has_value());
  ASSERT_TRUE(store->decide(*manifest).has_value());
  Manifest abort = *manifest;
  abort.decision = Decision::kAbort;
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = "step-"});
  EXPECT_EQ(store->decide(abort).error().kind, ErrorKind::kInDoubt);
  const auto decided = store->decide(abort);
  ASSERT_TRUE(decided.has_value()) << decided.error().to_string();
  EXPECT_EQ(decided->decision, Decision::kCommit);
}

TEST_F(VersionStoreTest, OldAttemptFilesGoAndVersionsStayLive) {
  auto store = open_store();
  Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  for (int starts = 0; starts < 40; ++starts) attempt = claim(*store, {{1, 1}});
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(control()))
    files += parse_attempt_file(entry.path().filename().string()) ? 1 : 0;
  EXPECT_EQ(files, 16u);
  EXPECT_EQ(attempt.number, 41u);
  EXPECT_EQ(live(), "1.a1");
}

TEST_F(VersionStoreTest, AnUnreadableEarlierDecisionIsDoubt) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  auto manifest = prepare(*store, fs_, attempt, 1);
  ASSERT_TRUE(manifest.has_value());
  write(path_of({1, 1}) + "/" + kManifestName, "garbage");
  const auto decided = store->decide(*manifest);
  ASSERT_FALSE(decided.has_value());
  EXPECT_EQ(decided.error().kind, ErrorKind::kInDoubt);
}

TEST_F(VersionStoreTest, AStaleAttemptCanNeitherCommitNorDelete) {
  auto zombie = open_store();
  const Attempt old_attempt = claim(*zombie);
  commit(*zombie, old_attempt, 1);
  auto manifest = prepare(*zombie, fs_, old_attempt, 2);
  ASSERT_TRUE(manifest.has_value());
  fs_.fail(FsCall::kTryLock, ENOLCK);  // as if on a file system whose locks do not reach the other host
  auto successor = open_store();
  const Attempt attempt = claim(*successor, {{1, 1}});

  const auto decided = zombie->decide(*manifest);
  ASSERT_FALSE(decided.has_value());
  EXPECT_EQ(decided.error().kind, ErrorKind::kAborted);
  EXPECT_EQ(zombie->remove({1, 1}, "a test").error().kind, ErrorKind::kAborted);
  EXPECT_EQ(zombie->clean_up({.keep = 1}).error().kind, ErrorKind::kAborted);
  EXPECT_EQ(zombie->discard({2, 1}, 0).error().kind, ErrorKind::kAborted);
  EXPECT_FALSE(exists(path_of({2, 1}) + "/" + kManifestName));
  EXPECT_EQ(live(), "1.a1");
}

TEST_F(VersionStoreTest, ACommitThatCannotBeSureOfItsAttemptIsNotReported) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  auto manifest = prepare(*store, fs_, attempt, 2);
  ASSERT_TRUE(manifest.has_value());
  fs_.fail(FsCall::kList, EIO,
           {.nth = 2, .times = kAlways, .path = kControlDirectory});  // the check after the publication
  EXPECT_EQ(store->decide(*manifest).error().kind, ErrorKind::kInDoubt);
  fs_.clear_faults();
  // And rightly so: the newer attempt that it could not see makes the version void.
  Attempt newer = attempt;
  newer.number = 2;
  write(control() + "/" + attempt_file(2), serialize(newer));
  EXPECT_EQ(state_of({2, 1}), VersionState::kReplaced);
}

TEST_F(VersionStoreTest, AFailedLastSyncIsDoubtAndNothingOlderIsDeleted) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  auto manifest = prepare(*store, fs_, attempt, 3);
  ASSERT_TRUE(manifest.has_value());
  fs_.fail(FsCall::kSyncDirectory, EIO);
  const auto decided = store->decide(*manifest);
  ASSERT_FALSE(decided.has_value());
  EXPECT_EQ(decided.error().kind, ErrorKind::kInDoubt);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1 3.a1");

  // The next sure commit ends it. The doubtful one takes nobody's place, and goes when its own time has come.
  commit(*store, attempt, 4);
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_EQ(live(), "2.a1 3.a1 4.a1");
  commit(*store, attempt, 5);
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_EQ(live(), "4.a1 5.a1");
}

TEST_F(VersionStoreTest, AForkedChildDoesNotReleaseTheLockOfItsParent) {
  auto store = open_store();
  const int code = run_in_child([&] {
    store.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(VersionStore::open(fs_, clock_, root(), Log(sink())).error().kind, ErrorKind::kBusy);
}

TEST_F(VersionStoreTest, PinsSurviveAndNeedACommittedVersion) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ASSERT_TRUE(store->pin({1, 1}).has_value());
  ASSERT_TRUE(store->pin({1, 1}).has_value());
  EXPECT_TRUE(scan().live_versions().front().pinned);
  EXPECT_EQ(store->pin({9, 1}).error().kind, ErrorKind::kNotFound);
}

TEST_F(VersionStoreTest, APinMadeAheadHoldsOnceTheVersionIsCommitted) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  auto manifest = prepare(*store, fs_, attempt, 1);
  ASSERT_TRUE(manifest.has_value());
  ASSERT_TRUE(store->pin_ahead({1, 1}).has_value());
  ASSERT_TRUE(store->pin_ahead({1, 1}).has_value());  // another rank was first
  ASSERT_TRUE(store->decide(std::move(*manifest)).has_value());
  commit(*store, attempt, 2);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_EQ(live(), "1.a1 2.a1");
  EXPECT_TRUE(scan().live_versions().front().pinned);
}

// Else the debris of a run that was killed right then would stay for ever.
TEST_F(VersionStoreTest, APinMadeAheadDoesNotHoldAVersionThatWasNeverCommitted) {
  {
    auto store = open_store();
    const Attempt attempt = claim(*store);
    ASSERT_TRUE(prepare(*store, fs_, attempt, 1).has_value());
    ASSERT_TRUE(store->pin_ahead({1, 1}).has_value());
  }
  auto store = open_store();
  claim(*store);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
  EXPECT_FALSE(exists(control() + "/" + pin_file({1, 1})));
}

// It was pinned while it was committed, and a crash came between two steps of its deletion: its data are left.
TEST_F(VersionStoreTest, AConfirmedPinHoldsAVersionThatHasLostItsDecision) {
  {
    auto store = open_store();
    const Attempt attempt = claim(*store);
    commit(*store, attempt, 1);
    ASSERT_TRUE(store->pin({1, 1}).has_value());
    ASSERT_TRUE(std::filesystem::remove(path_of({1, 1}) + "/" + kManifestName));
  }
  auto store = open_store();
  claim(*store);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(0, 0)));
}

TEST_F(VersionStoreTest, APinThatIsNotWrittenForGoodIsAnError) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kOpen, ENOSPC, {.path = pin_file({1, 1})});
  EXPECT_EQ(store->pin({1, 1}).error().kind, ErrorKind::kNoSpace);
  EXPECT_FALSE(scan().live_versions().front().pinned);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = control()});
  EXPECT_EQ(store->pin({1, 1}).error().kind, ErrorKind::kIo);
}

// Its name must be there for good before that of the manifest is.
TEST_F(VersionStoreTest, TheIndexOfAllRanksIsSyncedWithItsName) {
  auto store = open_store();
  const auto claimed = store->attempt().claim("test", {}, {"a", "b"});
  ASSERT_TRUE(claimed.has_value());
  ASSERT_TRUE(store->make_version(5).has_value());
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = path_of({5, 1})});
  EXPECT_EQ(store->write_index({5, 1}, serialize_index({})).error().kind, ErrorKind::kIo);
}

TEST_F(VersionStoreTest, AMemberTakesNoLockAndAcceptsOnlyAnAttemptThatListsIt) {
  auto leader = open_store();
  auto member = VersionStore::open(fs_, clock_, root(), Log(sink()), VersionStore::Role::kMember);
  ASSERT_TRUE(member.has_value()) << member.error().to_string();
  const auto claimed = leader->attempt().claim("test", {}, {"a", "b"});
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(claimed->world, 2u);
  EXPECT_EQ((*member)->attempt().accept(claimed->number, 1, "restarted").error().kind, ErrorKind::kAborted);
  EXPECT_EQ((*member)->attempt().accept(claimed->number, 2, "b").error().kind, ErrorKind::kAborted);
  ASSERT_TRUE((*member)->attempt().accept(claimed->number, 1, "b").has_value());
  EXPECT_TRUE(leader->make_version(5).has_value());
  EXPECT_TRUE((*member)->make_version(5).has_value());  // the same one
}

TEST_F(VersionStoreTest, DiscardTakesOneRanksFilesAndNothingOfACommit) {
  auto store = open_store();
  const auto claimed = store->attempt().claim("test", {}, {"a", "b"});
  ASSERT_TRUE(claimed.has_value());
  const std::string directory = *store->make_version(5);
  for (const std::uint32_t rank : {0u, 1u}) write(directory + "/" + data_file(rank, 0), "data");
  ASSERT_TRUE(store->discard({5, 1}, 1).has_value());
  EXPECT_TRUE(exists(directory + "/" + data_file(0, 0)));
  EXPECT_FALSE(exists(directory + "/" + data_file(1, 0)));

  Manifest manifest;
  manifest.run = claimed->run;
  manifest.step = 5;
  manifest.attempt = 1;
  manifest.world = 2;
  manifest.records = {{0, record_file(0), {}}, {1, record_file(1), {}}};
  ASSERT_TRUE(store->decide(manifest).has_value());
  ASSERT_TRUE(store->discard({5, 1}, 0).has_value());
  EXPECT_TRUE(exists(directory + "/" + data_file(0, 0)));

  for (const int trouble : {EIO, EACCES}) {  // a decision that cannot be read may be a commit
    fs_.fail(FsCall::kOpen, trouble, {.times = kAlways, .path = kManifestName});
    static_cast<void>(store->discard({5, 1}, 0));
    fs_.clear_faults();
    EXPECT_TRUE(exists(directory + "/" + data_file(0, 0))) << trouble;
  }
}

}  // namespace
}  // namespace slackwater::test
