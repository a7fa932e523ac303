#include "keeper/flush.hpp"

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
  [[nodiscard]] Result<Manifest> flush() {
    const Region::Kept kept = shared_.reader.kept().at(0);
    const RankPart part{std::make_shared<const Region>(shared_.reader), kept.entry, kept.version};
    return flush_version(fs_, clock_, root_, {&part, 1}, kept.members[0], gate_, Log());
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
  Bytes expected((1u << 20) + (1u << 19));
  fill_pattern(expected, 7);
  EXPECT_TRUE(same_bytes(read_file(version_path(root_, name()) + "/rank-00000.safetensors"), expected));
  EXPECT_TRUE(flush().has_value());  // once more: it is there already
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
