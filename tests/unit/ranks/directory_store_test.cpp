#include "ranks/directory_store.hpp"

#include <cerrno>
#include <filesystem>
#include <memory>

#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "support/manual_clock.hpp"
#include "support/nfs_file_system.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Values = std::vector<std::optional<std::string>>;
using Names = std::set<std::string>;

class DirectoryStoreTest : public ::testing::Test {
 protected:
  DirectoryStoreTest() { std::filesystem::create_directory(temp_ / "session"); }

  TempDir temp_{TempDir::in_memory()};
  ManualClock clock_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  DirectoryStore store_{fs_, clock_, temp_.path()};
};

TEST_F(DirectoryStoreTest, GivesBackWhatWasSetInTheOrderOfTheKeys) {
  ASSERT_TRUE(store_.set("session/votes/1", "one"));
  ASSERT_TRUE(store_.set("session/outcomes/2", "two"));
  ASSERT_TRUE(store_.set("top", "above all"));
  EXPECT_EQ(store_.get({"session/outcomes/2", "session/votes/3", "session/votes/1", "top", "none/at/all"}).value(),
            (Values{"two", std::nullopt, "one", "above all", std::nullopt}));
  ASSERT_TRUE(store_.set("session/votes/1", "another"));
  EXPECT_EQ(store_.get({"session/votes/1"}).value(), (Values{"another"}));
  store_.remove({"session/votes/1", "session/votes/3", "top"});
  EXPECT_EQ(store_.get({"session/votes/1", "session/outcomes/2", "top"}).value(),
            (Values{std::nullopt, "two", std::nullopt}));
}

TEST_F(DirectoryStoreTest, OnlyOneCreatesAKey) {
  DirectoryStore other(*real_, clock_, temp_.path());
  ASSERT_TRUE(store_.create("session/votes/1", "ours"));
  EXPECT_EQ(other.create("session/votes/1", "theirs").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(other.get({"session/votes/1"}).value(), (Values{"ours"}));
  EXPECT_EQ(store_.create("gone/votes/1", "").error().kind, ErrorKind::kNotFound);
}

TEST_F(DirectoryStoreTest, ListsKeysWhateverFormTheirValuesHave) {
  ASSERT_TRUE(store_.create("session/votes/1", "whole"));
  fs_.fail(FsCall::kWriteAt, ENOSPC, {.times = 2});
  ASSERT_TRUE(store_.create("session/votes/2", std::string(500, 'x')));  // in the names of six files
  EXPECT_EQ(store_.list("session/votes").value(), (Names{"1", "2"}));
  EXPECT_EQ(store_.list("session").value(), (Names{"votes/"}));
  EXPECT_EQ(store_.list("").value(), (Names{"session/"}));
  EXPECT_EQ(store_.get({"session/votes/2"}).value(), (Values{std::string(500, 'x')}));
  store_.remove({"session/votes/1", "session/votes/2"});
  EXPECT_TRUE(std::filesystem::is_empty(temp_ / "session/votes"));
  EXPECT_EQ(store_.list("session/outcomes").error().kind, ErrorKind::kNotFound);
}

TEST_F(DirectoryStoreTest, OneGetListsADirectoryOnce) {
  std::vector<std::string> keys;
  for (int key = 0; key < 64; ++key) keys.push_back("session/votes/" + std::to_string(key));
  ASSERT_TRUE(store_.create(keys[7], "seven"));
  const std::uint64_t lists = fs_.count(FsCall::kList);
  const std::uint64_t opens = fs_.count(FsCall::kOpen);
  EXPECT_EQ(store_.get(keys).value()[7], "seven");
  EXPECT_EQ(fs_.count(FsCall::kList), lists + 1);
  EXPECT_EQ(fs_.count(FsCall::kOpen), opens + 1) << "only what is listed is asked for";
}

// Values may be large, and a rank waits for many: the rest comes with the next calls.
TEST_F(DirectoryStoreTest, OneGetHoldsABoundedNumberOfBytes) {
  const std::string large(20u << 20, 'x');
  std::vector<std::string> keys;
  for (int key = 0; key < 4; ++key) {
    keys.push_back("session/reports/" + std::to_string(key));
    ASSERT_TRUE(store_.create(keys.back(), large));
  }
  const Values first = store_.get(keys).value();
  EXPECT_EQ(first[0], large);
  EXPECT_EQ(first[1], large);
  EXPECT_EQ(first[2], std::nullopt);
  EXPECT_EQ(store_.get({keys[2], keys[3]}).value(), (Values{large, large}));
}

TEST_F(DirectoryStoreTest, WhatCannotBeReadNowIsNotThereYet) {
  ASSERT_TRUE(store_.create("session/votes/1", "one"));
  for (const FsCall call : {FsCall::kList, FsCall::kOpen}) {
    fs_.fail(call, EIO, {.path = "/votes"});
    EXPECT_EQ(store_.get({"session/votes/1"}).value(), (Values{std::nullopt}));
    EXPECT_TRUE(store_.has("session/votes"));
    EXPECT_EQ(store_.get({"session/votes/1"}).value(), (Values{"one"}));
  }
}

TEST_F(DirectoryStoreTest, AHostOverNfsFindsWhatItLookedForInVain) {
  NfsFileSystem nfs(*real_, clock_);
  DirectoryStore here(nfs, clock_, temp_.path());
  for (const char* const key : {"session/votes/1", "session/votes/2", "session/outcomes/1"}) {
    EXPECT_EQ(here.get({key}).value(), (Values{std::nullopt}));
    here.remove({key});
    ASSERT_TRUE(store_.create(key, "said"));
    EXPECT_EQ(here.get({key}).value(), (Values{"said"})) << key;
    here.remove({key});
    EXPECT_EQ(store_.get({key}).value(), (Values{std::nullopt})) << key;
  }
}

TEST_F(DirectoryStoreTest, KnowsThatADirectoryIsGoneOnceItHasLookedForIt) {
  ASSERT_TRUE(store_.create("session/votes/1", "one"));
  EXPECT_TRUE(store_.has("session/votes"));
  EXPECT_TRUE(store_.has("session"));
  DirectoryStore other(*real_, clock_, temp_.path());
  ASSERT_TRUE(other.replace({"session"}, "next", 1));
  EXPECT_EQ(store_.get({"session/votes/1"}).value(), (Values{std::nullopt}));
  EXPECT_FALSE(store_.has("session/votes"));
  EXPECT_FALSE(store_.has("session"));
  EXPECT_EQ(store_.list("").value(), (Names{"next/", "reserve"}));
}

}  // namespace
}  // namespace slackwater::test
