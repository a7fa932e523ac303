// The simulated NFS that tests of ranks run on: what one host does, and when another host sees it.
#include "support/nfs_file_system.hpp"

#include <cerrno>
#include <filesystem>

#include <gtest/gtest.h>

#include "os/durable.hpp"
#include "support/bytes.hpp"
#include "support/manual_clock.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using std::chrono::seconds;

class NfsFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(there_.make_directory(run_)); }
  [[nodiscard]] static bool sees(NfsFileSystem& host, const std::string& path) {
    const auto found = host.status(path);
    EXPECT_TRUE(found || found.error().kind == ErrorKind::kNotFound) << found.error().to_string();
    return found.has_value();
  }
  [[nodiscard]] static bool opens(NfsFileSystem& host, const std::string& path) {
    const auto opened = host.open(path, OpenMode::kRead, false);
    EXPECT_TRUE(opened || opened.error().kind == ErrorKind::kNotFound) << opened.error().to_string();
    return opened.has_value();
  }

  TempDir directory_{TempDir::in_memory()};
  ManualClock clock_;
  std::unique_ptr<FileSystem> server_ = make_posix_file_system();
  NfsFileSystem here_{*server_, clock_};
  NfsFileSystem there_{*server_, clock_};
  const std::string run_ = directory_ / "run";
  const std::string file_ = run_ + "/file";
};

TEST_F(NfsFileSystemTest, ANameThatWasMissingStaysMissingUntilTheAttributesOfItsDirectoryExpire) {
  for (const bool by_open : {false, true}) {
    const std::string path = file_ + (by_open ? "-opened" : "-asked");
    EXPECT_FALSE(by_open ? opens(here_, path) : sees(here_, path));
    ASSERT_TRUE(write_durably(there_, path, "text"));
    clock_.pass(kNfsAttributesKept - seconds(1));
    EXPECT_FALSE(opens(here_, path));
    EXPECT_FALSE(sees(here_, path));
    EXPECT_EQ(here_.unlink(path).error().kind, ErrorKind::kNotFound);
    clock_.pass(seconds(1));
    EXPECT_TRUE(opens(here_, path));
  }
}

TEST_F(NfsFileSystemTest, OpeningTheDirectoryShowsWhatIsThere) {
  for (const bool by_sync : {false, true}) {
    const std::string path = file_ + (by_sync ? "-synced" : "-listed");
    EXPECT_FALSE(sees(here_, path));
    ASSERT_TRUE(write_durably(there_, path, "text"));
    EXPECT_FALSE(sees(here_, path));
    if (by_sync) {
      ASSERT_TRUE(here_.sync_directory(run_));
    } else {
      ASSERT_TRUE(here_.list(run_));
    }
    EXPECT_EQ(read_whole(here_, path, 100).value(), "text");
  }
}

TEST_F(NfsFileSystemTest, ADirectoryThatWasMissingHidesWhatIsInItThoughItIsListed) {
  const std::string box = run_ + "/box";
  EXPECT_EQ(here_.list(box).error().kind, ErrorKind::kNotFound);
  ASSERT_TRUE(there_.make_directory(box));
  ASSERT_TRUE(write_durably(there_, box + "/message", "text"));
  EXPECT_EQ(here_.list(box).error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(opens(here_, box + "/message"));
  EXPECT_EQ(here_.open(box + "/own", OpenMode::kCreateExclusive, false).error().kind, ErrorKind::kNotFound);
  ASSERT_TRUE(here_.list(run_));
  EXPECT_EQ(here_.list(box)->size(), 1u);
}

TEST_F(NfsFileSystemTest, CreatingAsksTheServerAndForgetsThatTheNameWasMissing) {
  const std::string box = run_ + "/box";
  EXPECT_FALSE(sees(here_, box));
  EXPECT_FALSE(sees(here_, file_));
  ASSERT_TRUE(there_.make_directory(box));
  ASSERT_TRUE(write_durably(there_, file_, "text"));
  EXPECT_EQ(here_.make_directory(box).error().kind, ErrorKind::kAlreadyExists);
  EXPECT_TRUE(sees(here_, box));
  ASSERT_TRUE(write_durably(here_, run_ + "/own", "text"));
  EXPECT_FALSE(sees(here_, file_)) << "its own change must not tell it of others";
  EXPECT_EQ(here_.link(run_ + "/own", file_).error().kind, ErrorKind::kAlreadyExists);
  EXPECT_TRUE(opens(here_, file_));
}

TEST_F(NfsFileSystemTest, ANameThatAnotherHostRemovedIsStillSeenAndCannotBeOpened) {
  ASSERT_TRUE(write_durably(there_, file_, "text"));
  EXPECT_TRUE(sees(here_, file_));
  ASSERT_TRUE(there_.unlink(file_));
  EXPECT_FALSE(sees(there_, file_));
  EXPECT_TRUE(sees(here_, file_));
  EXPECT_FALSE(opens(here_, file_));
  EXPECT_FALSE(sees(here_, file_));
}

TEST_F(NfsFileSystemTest, AnotherDirectoryOfTheSameNameIsAnother) {
  const std::string box = run_ + "/box";
  ASSERT_TRUE(there_.make_directory(box));
  EXPECT_FALSE(sees(here_, box + "/message"));
  ASSERT_TRUE(there_.remove_directory(box));
  ASSERT_TRUE(there_.make_directory(box));
  ASSERT_TRUE(write_durably(there_, box + "/message", "text"));
  EXPECT_EQ(here_.list(box)->size(), 1u);
  EXPECT_TRUE(opens(here_, box + "/message"));
}

TEST_F(NfsFileSystemTest, SizeAndLinkCountAreAsOldAsTheLastOpen) {
  ASSERT_TRUE(write_durably(here_, file_, "text"));
  EXPECT_EQ(here_.status(file_)->link_count, 1u);
  const auto held = here_.open(file_, OpenMode::kRead, false);
  ASSERT_TRUE(there_.link(file_, file_ + "-2"));
  EXPECT_EQ(here_.status(file_)->link_count, 1u);
  EXPECT_EQ((*held)->status()->link_count, 1u);
  EXPECT_EQ(here_.open(file_, OpenMode::kRead, false).value()->status()->link_count, 2u);
  EXPECT_EQ(here_.status(file_)->link_count, 2u);
}

TEST_F(NfsFileSystemTest, WhatIsWrittenReachesOthersWhenTheFileIsClosed) {
  auto file = here_.open(file_, OpenMode::kCreateExclusive, false);
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->write_at(std::as_bytes(std::span("text", 4)), 0));
  EXPECT_EQ(read_whole(there_, file_, 100).value(), "");
  ASSERT_TRUE((*file)->close());
  EXPECT_EQ(read_whole(there_, file_, 100).value(), "text");
}

TEST_F(NfsFileSystemTest, AnOpenFileOutlivesItsRemovalByItsOwnHostOnly) {
  for (NfsFileSystem* remover : {&here_, &there_}) {
    ASSERT_TRUE(write_durably(here_, file_, "text"));
    auto file = here_.open(file_, OpenMode::kRead, false);
    ASSERT_TRUE(file);
    ASSERT_TRUE(there_.list(run_));
    ASSERT_TRUE(remover->unlink(file_));
    std::byte first{};
    const auto read = (*file)->read_at({&first, 1}, 0);
    const bool own = remover == &here_;
    EXPECT_EQ(read.has_value(), own);
    EXPECT_EQ(there_.list(run_)->size(), own ? 1u : 0u);
    if (own) {
      EXPECT_TRUE(there_.list(run_)->front().name.starts_with(".nfs"));
    } else {
      EXPECT_EQ(read.error().sys_errno, ESTALE);
    }
    file->reset();
    EXPECT_TRUE(there_.list(run_)->empty());
  }
}

TEST_F(NfsFileSystemTest, ALinkWhoseReplyIsLostIsThereAndItsOwnerDoesNotKnow) {
  ASSERT_TRUE(write_durably(here_, file_, "text"));
  here_.lose_link_reply("file-2", EEXIST);
  EXPECT_EQ(here_.link(file_, file_ + "-2").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(here_.status(file_)->link_count, 1u) << "cached";
  EXPECT_EQ(here_.open(file_, OpenMode::kRead, false).value()->status()->link_count, 2u);
  EXPECT_TRUE(opens(there_, file_ + "-2"));
}

}  // namespace
}  // namespace slackwater::test
