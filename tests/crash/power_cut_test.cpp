// The model of a power cut itself: what is synced stays, everything else may go, and a tear falls on a sector.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "support/aligned_buffer.hpp"
#include "support/bytes.hpp"
#include "support/file_bytes.hpp"
#include "support/power_cut_file_system.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

std::span<const std::byte> as_span(std::string_view text) { return std::as_bytes(std::span(text)); }

class PowerCutTest : public testing::Test {
 protected:
  // Everything the disk may hold when the power goes off now.
  std::vector<DiskImage> images() {
    CutDisk disk(journal_);
    while (disk.operations() < journal_.size()) disk.advance();
    std::mt19937_64 random(7);
    return disk.images(1000, 50, random);
  }
  static std::set<std::string> contents_of(const std::vector<DiskImage>& images, const std::string& path) {
    std::set<std::string> found;
    for (const DiskImage& image : images) {
      const auto file = image.files.find(path);
      if (file == image.files.end())
        found.insert("(missing)");
      else
        found.insert({reinterpret_cast<const char*>(file->second->data()), file->second->size()});
    }
    return found;
  }
  std::unique_ptr<File> create(const std::string& name) {
    return fs_.open(dir_ / name, OpenMode::kCreateExclusive, false).value();
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = make_posix_file_system();
  PowerCutJournal journal_{dir_.path()};
  PowerCutFileSystem fs_{*posix_, journal_};
};

TEST_F(PowerCutTest, AFileThatWasSyncedHasNoNameBeforeItsDirectoryIsSynced) {
  const auto file = create("f");
  ASSERT_TRUE(file->write_at(as_span("abc"), 0));
  ASSERT_TRUE(file->sync_all());
  EXPECT_EQ(contents_of(images(), "f"), (std::set<std::string>{"(missing)", "abc"}));
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  EXPECT_EQ(contents_of(images(), "f"), std::set<std::string>{"abc"});
}

TEST_F(PowerCutTest, ANameThatWasSyncedMayStandForNothing) {
  const auto file = create("f");
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  ASSERT_TRUE(file->write_at(as_span("abc"), 0));
  const std::set<std::string> found = contents_of(images(), "f");
  EXPECT_TRUE(found.contains(""));
  EXPECT_TRUE(found.contains("abc"));
  EXPECT_TRUE(found.contains(std::string(3, '\0'))) << "the length arrived, the bytes did not";
  EXPECT_FALSE(found.contains("(missing)"));
}

TEST_F(PowerCutTest, NamesAreKeptOrLostIndependently) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(fs_.make_directory(dir_ / name));
  std::set<std::set<std::string>> found;
  for (const DiskImage& image : images()) found.insert(image.directories);
  EXPECT_EQ(found, (std::set<std::set<std::string>>{{}, {"a"}, {"b"}, {"a", "b"}}));
}

TEST_F(PowerCutTest, AnUnlinkMayBeUndoneUntilItIsSynced) {
  ASSERT_TRUE(create("f")->close());
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  ASSERT_TRUE(fs_.unlink(dir_ / "f"));
  EXPECT_EQ(contents_of(images(), "f"), (std::set<std::string>{"", "(missing)"}));
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  EXPECT_EQ(contents_of(images(), "f"), std::set<std::string>{"(missing)"});
}

TEST_F(PowerCutTest, ALengthSetAfterTheSyncMayBeTheOneBefore) {
  const auto file = create("f");
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  ASSERT_TRUE(file->allocate(8));
  ASSERT_TRUE(file->write_at(as_span("abcdefgh"), 0));
  ASSERT_TRUE(file->sync_data());
  ASSERT_TRUE(file->truncate(5));
  EXPECT_EQ(contents_of(images(), "f"), (std::set<std::string>{"abcdefgh", "abcde"}));
  ASSERT_TRUE(file->sync_data());
  EXPECT_EQ(contents_of(images(), "f"), std::set<std::string>{"abcde"});
}

TEST_F(PowerCutTest, AQueuedWriteIsCoveredOnlyBySyncsAfterItsCompletion) {
  const auto file = create("f");
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  ASSERT_TRUE(file->allocate(8192));
  const auto queue = fs_.make_queue({.depth = 2}).value();
  AlignedBuffer buffer(8192);
  std::fill_n(buffer.data(), 8192, std::byte{'x'});
  ASSERT_TRUE(queue->submit({IoOp::kWrite, file.get(), buffer.data(), 8192, 0, -1, 1}));
  ASSERT_TRUE(file->sync_data());
  const std::set<std::string> torn = contents_of(images(), "f");
  EXPECT_TRUE(torn.contains(std::string(8192, '\0')));
  EXPECT_TRUE(torn.contains(std::string(8192, 'x')));
  EXPECT_GT(torn.size(), 2u) << "no tear was tried";
  for (const std::string& text : torn) {
    for (std::size_t at = 0; at < text.size(); at += 512) {
      EXPECT_EQ(text.substr(at, 512), std::string(512, text[at])) << "torn inside a sector";
    }
  }
  std::vector<IoCompletion> completions;
  while (queue->in_flight() > 0) ASSERT_TRUE(queue->wait(completions, std::nullopt));
  ASSERT_TRUE(file->sync_data());
  EXPECT_EQ(contents_of(images(), "f"), std::set<std::string>{std::string(8192, 'x')});
}

TEST_F(PowerCutTest, ASyncThatIsIgnoredKeepsNothing) {
  PowerCutFileSystem lying(*posix_, journal_,
                           {.ignored = [](const SyncCall& sync) { return sync.call == FsCall::kSyncAll; }});
  const auto file = lying.open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  ASSERT_TRUE(lying.sync_directory(dir_.path()));
  ASSERT_TRUE(file->write_at(as_span("abc"), 0));
  ASSERT_TRUE(file->sync_all());
  EXPECT_TRUE(contents_of(images(), "f").contains(""));
}

TEST_F(PowerCutTest, AnImageIsWrittenAsItIs) {
  ASSERT_TRUE(fs_.make_directory(dir_ / "d"));
  const auto file = create("d/f");
  ASSERT_TRUE(file->write_at(as_span("abc"), 0));
  ASSERT_TRUE(file->sync_all());
  ASSERT_TRUE(fs_.sync_directory(dir_ / "d"));
  ASSERT_TRUE(fs_.sync_directory(dir_.path()));
  const std::vector<DiskImage> found = images();
  ASSERT_EQ(found.size(), 1u);
  const TempDir copy;
  found[0].write_to(copy.path());
  EXPECT_TRUE(same_bytes(read_file(copy / "d/f"), as_span("abc")));
}

}  // namespace
}  // namespace slackwater::test
