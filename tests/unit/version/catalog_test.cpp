#include "version/catalog.hpp"

#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store_fixture.hpp"

namespace slackwater::test {
namespace {

using CatalogTest = StoreTest;

TEST_F(CatalogTest, AMissingDirectoryIsNotFoundAnEmptyOneIsEmpty) {
  const auto missing = scan_catalog(fs_, root());
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  std::filesystem::create_directory(root());
  const Catalog catalog = scan();
  EXPECT_TRUE(catalog.entries.empty());
  EXPECT_TRUE(catalog.warnings.empty());
  EXPECT_FALSE(catalog.newest_attempt.has_value());
}

TEST_F(CatalogTest, EntriesAreInOrderOfTheirSteps) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  for (const std::uint64_t step : std::initializer_list<std::uint64_t>{3, 10'000'000'000, 1, 2})
    commit(*store, attempt, step);
  EXPECT_EQ(live(), "1.a1 2.a1 3.a1 10000000000.a1");
}

TEST_F(CatalogTest, AZombiesLateManifestIsVoid) {
  auto store = open_store();
  const Attempt zombie = claim(*store);
  commit(*store, zombie, 40);
  const auto late = prepare(*store, fs_, zombie, 41);
  ASSERT_TRUE(late.has_value());
  const Attempt attempt = claim(*store, {{40, 1}});
  commit(*store, attempt, 41);
  write(path_of({41, 1}) + "/" + kManifestName,
        serialize(*late));  // a zombie that looked before the attempt was claimed
  EXPECT_EQ(live(), "40.a1 41.a2");
  EXPECT_EQ(state_of({41, 1}), VersionState::kReplaced);
}

TEST_F(CatalogTest, WithoutADecisionAVersionIsNotLive) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  ASSERT_TRUE(prepare(*store, fs_, attempt, 1).has_value());
  EXPECT_EQ(live(), "");
  EXPECT_EQ(state_of({1, 1}), VersionState::kUndecided);
  EXPECT_TRUE(scan().entries.front().current);
}

TEST_F(CatalogTest, ADamagedManifestIsAnEntryWithItsError) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  flip_byte(path_of({2, 1}) + "/" + kManifestName);
  EXPECT_EQ(live(), "1.a1");
  const CatalogEntry entry = scan().entries.back();
  EXPECT_EQ(entry.state, VersionState::kUnreadable);
  EXPECT_TRUE(entry.current);
  EXPECT_EQ(entry.info.step, 2u);
  ASSERT_TRUE(entry.error.has_value());
  EXPECT_EQ(entry.error->kind, ErrorKind::kCorrupt);
}

TEST_F(CatalogTest, AManifestOfAnotherVersionIsRefused) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  commit(*store, attempt, 2);
  write(path_of({2, 1}) + "/" + kManifestName, read(path_of({1, 1}) + "/" + kManifestName));
  EXPECT_EQ(state_of({2, 1}), VersionState::kUnreadable);
  EXPECT_EQ(live(), "1.a1");
}

TEST_F(CatalogTest, AManifestThatCannotBeReadIsNotTakenForNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kOpen, EACCES, {.times = kAlways, .path = kManifestName});
  EXPECT_EQ(state_of({1, 1}), VersionState::kUnreadable);
  fs_.clear_faults();
  std::filesystem::remove(path_of({1, 1}) + "/" + kManifestName);
  std::filesystem::create_symlink("/dev/zero", path_of({1, 1}) + "/" + kManifestName);
  EXPECT_EQ(state_of({1, 1}), VersionState::kUnreadable);
}

TEST_F(CatalogTest, AManifestOfTheSameStepOfAnotherAttemptIsRefused) {
  auto store = open_store();
  const Attempt first = claim(*store);
  commit(*store, first, 1);
  const Attempt second = claim(*store);
  commit(*store, second, 1);
  write(path_of({1, 2}) + "/" + kManifestName, read(path_of({1, 1}) + "/" + kManifestName));
  EXPECT_EQ(state_of({1, 2}), VersionState::kUnreadable);
}

// Over NFS a host that asked too early goes on missing a name that is there by now.
TEST_F(CatalogTest, AManifestThatIsListedIsAskedForAgainAndNeverTakenForNone) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.fail(FsCall::kOpen, ENOENT, {.path = kManifestName});
  EXPECT_EQ(state_of({1, 1}), VersionState::kLive);
  fs_.fail(FsCall::kOpen, ENOENT, {.times = kAlways, .path = kManifestName});
  const Catalog catalog = scan();
  ASSERT_EQ(catalog.entries.size(), 1u);
  EXPECT_EQ(catalog.entries[0].state, VersionState::kUnreadable);
  ASSERT_TRUE(catalog.entries[0].error.has_value());
  EXPECT_EQ(catalog.entries[0].error->kind, ErrorKind::kIo);
}

TEST_F(CatalogTest, AVersionSetAsideIsNotLiveEvenIfAdoptedAndWithoutADecisionItIsDebris) {
  auto store = open_store();
  const Attempt first = claim(*store);
  commit(*store, first, 1);
  commit(*store, first, 2);
  ASSERT_TRUE(prepare(*store, fs_, first, 3).has_value());
  ASSERT_TRUE(store->attempt().claim("test", {{1, 1}, {2, 1}}, {}, {{{2, 1}, "a bad block"}, {{3, 1}, "a bad block"}}));
  EXPECT_EQ(live(), "1.a1");
  EXPECT_EQ(state_of({2, 1}), VersionState::kSetAside);
  EXPECT_EQ(state_of({3, 1}), VersionState::kUndecided);
  const std::vector<SetAside> aside = scan().set_aside();
  ASSERT_EQ(aside.size(), 1u);
  EXPECT_EQ(aside[0].why, "a bad block");
}

// A run that keeps one: what was listed is deleted, and what took its place was not there yet.
TEST_F(CatalogTest, NamesThatChangeDuringAScanAreListedAgain) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  fs_.hang(FsCall::kOpen, {.path = path_of({1, 1}) + "/" + kManifestName});
  std::string seen;
  {
    const std::jthread reader([&] { seen = live(); });
    fs_.wait_hung(1);
    commit(*store, attempt, 2);
    EXPECT_TRUE(store->remove({1, 1}, "a test").has_value());
    fs_.release_hung();
  }
  EXPECT_EQ(seen, "2.a1");
}

TEST_F(CatalogTest, ForeignNamesAreIgnoredAndOnlyLookalikesGetAWarning) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  write(root() + "/train.log", "");
  write(root() + "/step-0000000002.a1", "a file");
  std::filesystem::create_directory(root() + "/step-2");
  std::filesystem::create_directory_symlink(path_of({1, 1}), root() + "/step-0000000003.a1");
  const Catalog catalog = scan();
  EXPECT_EQ(catalog.entries.size(), 1u);
  EXPECT_EQ(catalog.warnings.size(), 3u);
}

// Attempt 1 wrote 1 to 4; attempt 2 went back to 2 and wrote 3 and 4; attempt 3 went back to 3 and wrote 5.
class DamagedAttemptTest : public StoreTest {
 protected:
  void SetUp() override {
    store_ = open_store();
    const Attempt first = claim(*store_);
    for (std::uint64_t step = 1; step <= 4; ++step) commit(*store_, first, step);
    const Attempt second = claim(*store_, names_up_to(2));
    for (std::uint64_t step = 3; step <= 4; ++step) commit(*store_, second, step);
    const Attempt third = claim(*store_, names_up_to(3));
    ASSERT_EQ(live(), "1.a1 2.a1 3.a2");
    commit(*store_, third, 5);
    ASSERT_EQ(live(), "1.a1 2.a1 3.a2 5.a3");
  }
  std::string attempt_path(std::uint32_t number) { return control() + "/" + attempt_file(number); }
  std::unique_ptr<VersionStore> store_;
};

TEST_F(DamagedAttemptTest, IfTheNewestIsDamagedTheUsersVersionsStayReachable) {
  flip_byte(attempt_path(3));
  const Catalog catalog = scan();
  EXPECT_FALSE(catalog.newest_attempt.has_value());
  ASSERT_EQ(catalog.warnings.size(), 1u);
  EXPECT_NE(catalog.warnings[0].find("attempt 3"), std::string::npos);
  // 4.a2 counted for attempt 2 and is below the first step of attempt 3; 3.a1 and 4.a1 were given up before.
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 4.a2 5.a3");
}

// What does not count then is a guess, and the file may have listed a version as set aside. So the next run, which can
// read its own file again, must not take it for what a rollback left behind.
TEST_F(DamagedAttemptTest, AVersionThatIsNotLiveByAGuessIsSetAsideAndStaysInTheNextRun) {
  EXPECT_EQ(state_of({4, 1}), VersionState::kReplaced);
  flip_byte(attempt_path(3));
  EXPECT_EQ(state_of({4, 1}), VersionState::kSetAside);
  const std::vector<SetAside> aside = scan().set_aside();
  ASSERT_EQ(aside.size(), 2u);  // 3.a1 and 4.a1
  EXPECT_NE(aside[0].why.find("attempt 3 cannot be read"), std::string::npos) << aside[0].why;

  const auto fourth = store_->attempt().claim("", names_up_to(5), {}, aside);
  ASSERT_TRUE(fourth.has_value());
  commit(*store_, *fourth, 6);
  ASSERT_TRUE(store_->clean_up({.keep = 1}, Need::kRoutine).has_value());
  EXPECT_EQ(live(), "6.a4");
  EXPECT_EQ(state_of({3, 1}), VersionState::kSetAside);
  EXPECT_EQ(state_of({4, 1}), VersionState::kSetAside);
}

// It may be readable tomorrow, and then what was guessed today would have been wrong.
TEST_F(DamagedAttemptTest, AStorageErrorIsReturnedAndNotGuessedAround) {
  for (const int trouble : {EIO, EACCES}) {
    fs_.fail(FsCall::kOpen, trouble, {.times = kAlways, .path = attempt_file(3)});
    const auto catalog = scan_catalog(fs_, root());
    fs_.clear_faults();
    ASSERT_FALSE(catalog.has_value()) << trouble;
    EXPECT_EQ(catalog.error().kind, trouble == EIO ? ErrorKind::kIo : ErrorKind::kPermission);
  }
}

TEST_F(DamagedAttemptTest, IfTheNewestIsDamagedAndHasNoVersionsAllBeforeItAreLive) {
  ASSERT_TRUE(store_->remove({5, 3}, "a test").has_value());
  write(attempt_path(3), "");
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 4.a2");
}

TEST_F(DamagedAttemptTest, IfTwoAreDamagedTheNewestReadableOneDecides) {
  flip_byte(attempt_path(3));
  flip_byte(attempt_path(2));
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 4.a2 5.a3");
}

TEST_F(DamagedAttemptTest, AnOlderOneDoesNotMatter) {
  flip_byte(attempt_path(1));
  flip_byte(attempt_path(2));
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 5.a3");
  EXPECT_TRUE(scan().warnings.empty());
}

TEST_F(DamagedAttemptTest, WithoutTheControlDirectoryAllVersionsStayReachable) {
  std::filesystem::remove_all(control());  // copied with "cp -r run/* elsewhere"
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 4.a2 5.a3");
  EXPECT_FALSE(scan().warnings.empty());
}

TEST_F(DamagedAttemptTest, AnAttemptUnderAnotherNumberIsRefused) {
  write(attempt_path(4), read(attempt_path(1)));
  const Catalog catalog = scan();
  EXPECT_FALSE(catalog.newest_attempt.has_value());
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 5.a3");
}

TEST_F(DamagedAttemptTest, ANewAttemptAdoptsAndAllIsWellAgain) {
  flip_byte(attempt_path(3));
  const Attempt fourth = claim(*store_, names_up_to(5));
  EXPECT_EQ(fourth.number, 4u);
  EXPECT_EQ(live(), "1.a1 2.a1 3.a2 4.a2 5.a3");
  EXPECT_TRUE(scan().warnings.empty());
}

}  // namespace
}  // namespace slackwater::test
