#include "keeper/flush.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "os/durable.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"
#include "unit/keeper/staged.hpp"
#include "version/catalog.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

class FlushTest : public ::testing::Test {
 protected:
  FlushTest() {
    auto store = VersionStore::open(*real_, clock_, root_, Log(), VersionStore::Role::kLeader).value();
    attempt_ = store->attempt().claim("test", {}, {"me"}).value();
    EXPECT_TRUE(store->make_version(7).has_value());
    const auto entry = shared_.trainer.begin(name());
    EXPECT_TRUE(shared_.trainer.publish(*entry, stage(shared_.trainer, name(), attempt_.run), "me").has_value());
  }
  [[nodiscard]] VersionName name() const { return {7, attempt_.number}; }
  [[nodiscard]] Result<Manifest> flush() { return flush(gate_); }
  [[nodiscard]] Result<Manifest> flush(PublishGate& gate) {
    const Region::Kept kept = shared_.reader.kept().at(0);
    const RankPart part{std::make_shared<const Region>(shared_.reader), kept.entry, kept.version};
    return flush_version(fs_, clock_, root_, {&part, 1}, kept.members[0], gate, Log());
  }
  [[nodiscard]] bool unsaved() { return is_unsaved(fs_, root_, shared_.reader.kept().at(0)); }
  // The data, byte for byte, and nothing that is missing.
  [[nodiscard]] bool complete() {
    Bytes expected((1u << 20) + (1u << 19));
    fill_pattern(expected, 7);
    const auto files = real_->list_files(version_path(root_, name()));
    return committed() && files && files->size() == 4 &&
           same_bytes(read_file(version_path(root_, name()) + "/rank-00000.safetensors"), expected);
  }
  [[nodiscard]] bool committed() { return read_manifest(*real_, root_, name()).has_value(); }

  const TempDir directory_;
  const std::string root_ = directory_ / "run";
  const SystemClock clock_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  Attempt attempt_;
  SharedRegion shared_;
  PublishGate gate_;
};

TEST_F(FlushTest, AStagedVersionIsCommittedWithItsBytes) {
  ASSERT_TRUE(flush().has_value());
  EXPECT_TRUE(committed());
  EXPECT_TRUE(complete());
  EXPECT_TRUE(flush().has_value());  // once more: it is there already
}

TEST_F(FlushTest, ADecisionThatAPowerCutMayUndoIsNotTakenForACommit) {
  ASSERT_TRUE(flush().has_value());
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = version_directory(name())});
  EXPECT_FALSE(flush().has_value()) << "the trainer may have died between the link and the sync";
  EXPECT_TRUE(flush().has_value());
}

TEST_F(FlushTest, WhatTheTrainerLeftHalfWrittenIsReplaced) {
  for (const char* file : {"rank-00000.safetensors", "rank-00000.record", "index"})
    ASSERT_TRUE(write_durably(*real_, version_path(root_, name()) + "/" + file, "half").has_value());
  ASSERT_TRUE(flush().has_value());
  EXPECT_TRUE(committed());
}

TEST_F(FlushTest, BytesThatAreNotThoseThatWereStagedAreNotPublished) {
  shared_.trainer.slab(0)[100] ^= std::byte{1};
  const auto flushed = flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(committed());
}

TEST_F(FlushTest, NothingIsPublishedAfterTheNextTrainerTookOver) {
  // The trainer comes while the record is being synced, the last thing before the decision.
  fs_.hang(FsCall::kSyncAll, {.path = "record"});
  std::thread flushing([&] { EXPECT_FALSE(flush().has_value()); });
  fs_.wait_hung(1);
  gate_.close();
  fs_.release_hung();
  flushing.join();
  EXPECT_FALSE(committed());
}

TEST_F(FlushTest, WhoeverTakesOverDoesNotWaitForAList) {
  fs_.hang(FsCall::kList, {.nth = 2, .path = version_path(root_, name())});  // the first one looks for a decision
  std::thread flushing([&] { EXPECT_FALSE(flush().has_value()); });
  fs_.wait_hung(1);
  EXPECT_TRUE(real_->status(version_path(root_, name()) + "/rank-00000.record").has_value()) << "all is written";
  EXPECT_TRUE(gate_.close_within(std::chrono::seconds(10)));
  fs_.release_hung();
  flushing.join();
  EXPECT_FALSE(committed());
}

TEST_F(FlushTest, NothingIsPublishedUnderAnAttemptThatIsOver) {
  auto other = VersionStore::open(*real_, clock_, root_, Log(), VersionStore::Role::kMember).value();
  ASSERT_TRUE(other->attempt().claim("other", {}).has_value());
  const auto flushed = flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().kind, ErrorKind::kAborted);
  EXPECT_FALSE(committed());
}

TEST_F(FlushTest, AVersionThatLeftTheMemoryWhileItWasWrittenIsNotPublished) {
  // Its slabs may have been filled with something else, after they were compared and before they were written.
  fs_.hang(FsCall::kSyncAll, {.path = "record"});
  std::thread flushing([&] { EXPECT_FALSE(flush().has_value()); });
  fs_.wait_hung(1);
  shared_.trainer.drop(shared_.reader.kept().at(0).entry);
  fs_.release_hung();
  flushing.join();
  EXPECT_FALSE(committed());
}

TEST_F(FlushTest, AStepThatWasGivenUpIsNotCommitted) {
  auto store = VersionStore::open(*real_, clock_, root_, Log(), VersionStore::Role::kMember).value();
  ASSERT_TRUE(store->attempt().accept(attempt_.number, 0, "me").has_value());
  Manifest abort{.run = attempt_.run, .step = 7, .attempt = attempt_.number, .decision = Decision::kAbort};
  abort.reason = "a rank is missing";
  ASSERT_TRUE(store->decide(abort).has_value());
  const auto flushed = flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_NE(flushed.error().message.find("a rank is missing"), std::string::npos);
  EXPECT_FALSE(unsaved()) << "nobody wants it any more";
}

// Wherever a flush is when it is stopped: what it does later must not touch what the next one writes.
TEST_F(FlushTest, AFlushThatWasStoppedCreatesAndRemovesNothingMore) {
  struct Place {
    FsCall call;
    const char* path;
    bool changes_names;
  };
  constexpr std::array kPlaces{Place{FsCall::kMakeDirectory, "step-", true},
                               Place{FsCall::kUnlink, "index", true},
                               Place{FsCall::kUnlink, "rank-00000.safetensors", true},
                               Place{FsCall::kOpen, "rank-00000.safetensors", true},
                               Place{FsCall::kAllocate, "rank-00000.safetensors", false},
                               Place{FsCall::kWriteAt, "rank-00000.safetensors", false},
                               Place{FsCall::kSyncData, "rank-00000.safetensors", false},
                               Place{FsCall::kOpen, "index", true},
                               Place{FsCall::kSyncAll, "index", false},
                               Place{FsCall::kOpen, "rank-00000.record", true},
                               Place{FsCall::kSyncAll, "rank-00000.record", false},
                               Place{FsCall::kSyncDirectory, "step-", false}};
  const auto names = [&] {
    std::set<std::string> found;
    const auto entries = real_->list(version_path(root_, name()));
    for (const DirectoryEntry& entry : *entries) found.insert(entry.name);
    return found;
  };
  std::uint64_t hung = 0;
  for (const Place& place : kPlaces) {
    const std::string where = std::to_string(static_cast<int>(place.call)) + " " + place.path;
    PublishGate gate;
    fs_.hang(place.call, {.path = place.path});
    std::thread flushing([&] { EXPECT_FALSE(flush(gate).has_value()) << where; });
    fs_.wait_hung(++hung);
    gate.close();
    EXPECT_EQ(gate.wait_idle(std::chrono::milliseconds(0)), !place.changes_names) << where;
    const std::set<std::string> before = names();
    fs_.release_hung();
    flushing.join();
    EXPECT_TRUE(gate.wait_idle(std::chrono::milliseconds(0))) << where;
    std::set<std::string> changed;
    std::ranges::set_symmetric_difference(before, names(), std::inserter(changed, changed.end()));
    if (place.changes_names) changed.erase(place.path);  // what it was in the middle of
    EXPECT_TRUE(changed.empty()) << where << ": " << *changed.begin();
  }
  ASSERT_TRUE(flush().has_value());
  EXPECT_TRUE(complete());
}

TEST_F(FlushTest, ANameThatComesBackLateIsRemovedOnceMore) {
  fs_.fail(FsCall::kOpen, EEXIST, {.path = "rank-00000.record"});
  const auto flushed = flush();
  ASSERT_TRUE(flushed.has_value()) << flushed.error().to_string();
  EXPECT_TRUE(complete());
}

TEST_F(FlushTest, NothingIsPublishedWhoseFilesAreGoneOrTooShort) {
  const std::string data = version_path(root_, name()) + "/rank-00000.safetensors";
  std::uint64_t hung = 0;
  for (const bool gone : {true, false}) {
    fs_.hang(FsCall::kSyncAll, {.path = "record"});
    std::thread flushing([&] { EXPECT_FALSE(flush().has_value()); });
    fs_.wait_hung(++hung);
    EXPECT_TRUE(real_->unlink(data).has_value());
    EXPECT_TRUE(gone || write_durably(*real_, data, "short").has_value());
    fs_.release_hung();
    flushing.join();
    ASSERT_FALSE(committed());
  }
}

TEST_F(FlushTest, AStepWhoseDecisionCannotBeReadMayBeUnsaved) {
  EXPECT_TRUE(unsaved());
  ASSERT_TRUE(flush().has_value());
  EXPECT_FALSE(unsaved());
  for (const int error : {EIO, EACCES, ESTALE}) {
    fs_.fail(FsCall::kOpen, error, {.times = kAlways, .path = "manifest.json"});
    EXPECT_TRUE(unsaved()) << error;
    fs_.clear_faults();
    EXPECT_FALSE(unsaved());
  }
  fs_.fail(FsCall::kList, EIO, {.times = kAlways, .path = ".slackwater"});  // which attempt is the newest
  EXPECT_TRUE(unsaved());
  fs_.clear_faults();
  std::ofstream(version_path(root_, name()) + "/manifest.json") << "{";
  EXPECT_TRUE(unsaved()) << "damaged";
}

TEST_F(FlushTest, AFailedWriteLeavesNothingBehind) {
  fs_.fail(FsCall::kWriteAt, ENOSPC);
  ASSERT_FALSE(flush().has_value());
  const auto left = real_->list(version_path(root_, name()));
  ASSERT_TRUE(left.has_value());
  EXPECT_TRUE(left->empty());
  EXPECT_TRUE(flush().has_value()) << "the next try finds its names free";
}

}  // namespace
}  // namespace slackwater::test
