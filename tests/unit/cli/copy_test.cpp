// copy, and ls, show and verify over several tiers: with directories here, with object stores in
// tests/python/test_s3.py.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli_fixture.hpp"
#include "support/file_bytes.hpp"

namespace slackwater::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace stdfs = std::filesystem;

class CopyTest : public CliTest {
 protected:
  CopyTest() { write_two(); }
  const std::string target_ = directory_ / "target";
};

TEST_F(CopyTest, MakesTheSameCheckpointElsewhere) {
  const json document = run_json({"copy", root_, target_, "--all", "--verify", "--json"});
  EXPECT_EQ(document["copied"].size(), 2u);
  EXPECT_EQ(document["failed"].size(), 0u);
  const json source = run_json({"ls", root_, "--json"});
  const json copy = run_json({"ls", target_, "--json"});
  EXPECT_EQ(source["versions"], copy["versions"]);
  for (const auto& entry : stdfs::recursive_directory_iterator(root_)) {
    if (!entry.is_regular_file() || entry.path().filename() == "lock") continue;
    const stdfs::path there = stdfs::path(target_) / stdfs::relative(entry.path(), root_);
    EXPECT_EQ(read_file_text(entry.path()), read_file_text(there)) << there;
  }
  EXPECT_TRUE(run_json({"copy", root_, target_, "--json"})["copied"][0]["already"]);
}

TEST_F(CopyTest, RefusesToCopyAPlaceOntoItself) {
  stdfs::create_symlink(root_, target_);
  for (const std::string& same : {root_, root_ + "/", target_}) {
    const Outcome outcome = run({"copy", root_, same});
    EXPECT_EQ(outcome.code, 2) << same;
    EXPECT_THAT(outcome.err, HasSubstr("SRC and DST are the same place"));
  }
}

TEST_F(CopyTest, GoesOnAfterAnInterruption) {
  ASSERT_EQ(run({"copy", root_ + "@3", target_}).code, 0);
  // As if it had stopped before the decision, with half a file.
  const stdfs::path version = stdfs::path(target_) / "step-0000000003.a1";
  stdfs::remove(version / "manifest.json");
  stdfs::remove(version / "rank-00000.record");
  stdfs::resize_file(version / "rank-00000.safetensors", 100);
  EXPECT_EQ(run_json({"ls", target_, "--json"})["versions"].size(), 0u) << "half a copy is not seen";
  EXPECT_EQ(run({"copy", root_ + "@3", target_, "--verify"}).code, 0);
  EXPECT_EQ(run({"verify", target_ + "@3"}).code, 0);
}

TEST_F(CopyTest, NeverCopiesDamage) {
  const stdfs::path file = stdfs::path(root_) / "step-0000000003.a1" / "rank-00000.safetensors";
  std::string text = read_file_text(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  std::ofstream(file, std::ios::binary) << text;
  const Outcome outcome = run({"copy", root_ + "@3", target_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("not those that were saved"));
  EXPECT_EQ(run_json({"ls", target_, "--json"})["versions"].size(), 0u);
}

TEST_F(CopyTest, RefusesAPlaceThatAnotherRunUses) {
  const std::string other = directory_ / "other";
  {
    CheckpointWriter writer(other);
    (void)writer.write(5, state_of(tensors_, "{}"));
  }
  const Outcome outcome = run({"copy", root_, other});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("another"));
  EXPECT_EQ(run_json({"ls", other, "--json"})["versions"].size(), 1u);
  EXPECT_EQ(run({"copy", root_ + "@77", target_}).code, 2) << "there is no such step";
}

TEST_F(CopyTest, ListsShowsAndVerifiesSeveralTiers) {
  ASSERT_EQ(run({"copy", root_ + "@3", target_}).code, 0);
  const json listed = run_json({"ls", root_, "--tier", target_, "--json"});
  EXPECT_EQ(listed["versions"].size(), 2u);
  EXPECT_EQ(listed["tiers"][0]["versions"].size(), 1u);
  EXPECT_EQ(listed["tiers"][0]["directory"], target_);
  stdfs::remove_all(stdfs::path(root_) / "step-0000000003.a1");
  const Outcome shown = run({"show", root_ + "@3", "--tier", target_});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("step 3"));
  const json verified = run_json({"verify", root_, "--tier", target_, "--json"});
  EXPECT_TRUE(verified["ok"]);
  EXPECT_TRUE(verified["tiers"][0]["ok"]);
  EXPECT_EQ(run({"ls", root_, "--tier", directory_ / "nothing"}).code, 2) << "a tier that cannot be read is an error";
}

}  // namespace
}  // namespace slackwater::test
