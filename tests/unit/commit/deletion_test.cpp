// What VersionStore deletes, in which order, and what it never deletes.
#include <cerrno>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "store_fixture.hpp"

namespace slackwater::test {
namespace {

using DeletionTest = StoreTest;

TEST_F(DeletionTest, RemovesAVersionWithItsPin) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  ASSERT_TRUE(store->pin({1, 1}).has_value());
  ASSERT_TRUE(store->remove({1, 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
  EXPECT_FALSE(exists(control() + "/" + pin_file({1, 1})));
  EXPECT_EQ(store->remove({1, 1}).error().kind, ErrorKind::kNotFound);
}

TEST_F(DeletionTest, TheDecisionGoesFirstAndForGood) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kUnlink, EIO, {.path = kManifestName});
  EXPECT_FALSE(store->remove({1, 1}).has_value());
  EXPECT_EQ(counting(), "1.a1");
  fs_.fail(FsCall::kSyncDirectory, EIO);
  EXPECT_FALSE(store->remove({1, 1}).has_value());
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" +
                     data_file(0, 0)));  // the decision may come back after a power cut: so must the data
  ASSERT_TRUE(store->remove({1, 1}).has_value());
  EXPECT_FALSE(exists(path_of({1, 1})));
}

TEST_F(DeletionTest, ForeignFilesAndLinksStay) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  const std::string outside = temp_ / "precious";
  write(outside, "data");
  write(path_of({1, 1}) + "/notes.txt", "mine");
  std::filesystem::create_symlink(outside, path_of({1, 1}) + "/" + data_file(7, 0));
  ASSERT_TRUE(store->remove({1, 1}).has_value());
  EXPECT_EQ(read(path_of({1, 1}) + "/notes.txt"), "mine");
  EXPECT_EQ(read(outside), "data");
  EXPECT_TRUE(exists(path_of({1, 1}) + "/" + data_file(7, 0)));
  EXPECT_FALSE(exists(path_of({1, 1}) + "/" + data_file(0, 0)));
  EXPECT_EQ(counting(), "");
  EXPECT_TRUE(logged("not Slackwater's"));
}

TEST_F(DeletionTest, ALinkInPlaceOfAVersionIsNotFollowed) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  const std::string elsewhere = temp_ / "elsewhere";
  std::filesystem::rename(path_of({1, 1}), elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, path_of({1, 1}));
  EXPECT_FALSE(store->remove({1, 1}).has_value());
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
  EXPECT_EQ(counting(), "2.a1 5.a1 7.a1 8.a1");
  EXPECT_EQ(scan().entries.size(), 4u);
}

TEST_F(DeletionTest, ARollbackSupersedesAndKeepsUntilTheFirstCommit) {
  auto store = open_store();
  const Attempt first = claim(*store);
  for (std::uint64_t step = 38; step <= 45; ++step) commit(*store, first, step);
  const Attempt second = claim(*store, names_up_to(40));
  EXPECT_EQ(counting(), "38.a1 39.a1 40.a1");
  EXPECT_EQ(state_of({41, 1}), VersionState::kSuperseded);
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_TRUE(exists(path_of({38, 1})));  // retention too waits for the first commit
  EXPECT_TRUE(exists(path_of({45, 1})));

  commit(*store, second, 41);
  EXPECT_EQ(counting(), "38.a1 39.a1 40.a1 41.a2");
  ASSERT_TRUE(store->clean_up({.keep = 2}).has_value());
  EXPECT_EQ(counting(), "40.a1 41.a2");
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
  EXPECT_EQ(counting(), "2.a2");
  EXPECT_EQ(state_of({2, 1}), VersionState::kSuperseded);
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
  EXPECT_EQ(counting(), "1.a1");
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
  EXPECT_EQ(counting(), "3.a2");
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
  const Status cleaned = store->clean_up({.keep = 1});
  ASSERT_FALSE(cleaned.has_value());
  EXPECT_EQ(cleaned.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(counting(), "1.a1 2.a1 3.a1");
}

TEST_F(DeletionTest, OneThatCannotBeRemovedDoesNotKeepTheOthers) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (std::uint64_t step = 1; step <= 4; ++step) commit(*store, attempt, step);
  fs_.fail(FsCall::kUnlink, EACCES, {.path = "step-0000000001"});
  const Status cleaned = store->clean_up({.keep = 1});
  ASSERT_FALSE(cleaned.has_value());
  EXPECT_EQ(cleaned.error().kind, ErrorKind::kPermission);
  EXPECT_EQ(counting(), "1.a1 4.a1");
}

TEST_F(DeletionTest, BeforeAClaimTheLockHolderMayDelete) {
  {
    auto store = open_store();
    const Attempt attempt = claim(*store);
    commit(*store, attempt, 1);
    commit(*store, attempt, 2);
  }
  auto store = open_store();
  EXPECT_TRUE(store->remove({1, 1}).has_value());
  EXPECT_EQ(counting(), "2.a1");
  EXPECT_FALSE(store->clean_up({.keep = 1}).has_value());
}

}  // namespace
}  // namespace slackwater::test
