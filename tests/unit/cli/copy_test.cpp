// copy, and ls, show and verify over several tiers: with directories here, with object stores in
// tests/python/test_s3.py.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli_fixture.hpp"
#include "support/file_bytes.hpp"
#include "version/catalog.hpp"
#include "version/names.hpp"

namespace slackwater::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace stdfs = std::filesystem;

class CopyTest : public CliTest {
 protected:
  CopyTest() { write_two(); }
  // Name and bytes of every file.
  static std::map<std::string, std::string> files_in(const std::string& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : stdfs::recursive_directory_iterator(root))
      if (entry.is_regular_file() && entry.path().filename() != "lock")
        files[entry.path()] = read_file_text(entry.path());
    return files;
  }
  [[nodiscard]] bool has_attempt(const std::string& root, std::uint32_t number) const {
    return stdfs::exists(control_path(root) + "/" + attempt_file(number));
  }
  // A run that goes on from all that is live there commits a step, and all that may be deleted is.
  void train_and_clean(const std::string& root, std::uint64_t step) const {
    const auto fs = make_posix_file_system();
    const Catalog catalog = must(scan_catalog(*fs, root));
    std::vector<VersionName> adopted;
    for (const CatalogEntry& entry : catalog.entries)
      if (entry.adoptable()) adopted.push_back(entry.name);
    {
      CheckpointWriter writer(root, adopted, catalog.set_aside());
      (void)writer.write(step, state_of(tensors_));
      must(writer.store().clean_up({.keep = 0}));
    }
    EXPECT_EQ(run({"gc", root, "--delete"}).code, 0);
  }
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

TEST_F(CopyTest, ACheckpointOfAnotherRunIsNotOverwrittenByOneOfItsName) {
  const std::string other = directory_ / "other";
  const std::vector<OwnedTensor> others{OwnedTensor::random("model.embedding", DType::kF32, {300, 1000}, 2)};
  (void)CheckpointWriter(other).write(9, state_of(others));
  {
    const CheckpointWriter second_start(other);
  }  // attempt 2, which goes on from its own step-9.a1
  ASSERT_EQ(run({"copy", root_ + "@9", target_}).code, 0);
  const auto before = files_in(target_);

  const Outcome outcome = run({"copy", other + "@9", target_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("DST holds a checkpoint step-0000000009.a1, which another run saved"));
  EXPECT_TRUE(files_in(target_) == before) << "a file was changed";
  EXPECT_EQ(run({"verify", target_}).code, 0);

  // The same if SRC cannot say any more which run its attempt 1 was.
  stdfs::remove(control_path(other) + "/" + attempt_file(1));
  stdfs::remove_all(stdfs::path(other) / "step-0000000009.a1");
  (void)CheckpointWriter(other, {{9, 1}}).write(10, state_of(others));
  const Outcome unknown = run({"copy", other + "@10", target_});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("SRC no longer knows whether its own run saved it"));
  EXPECT_TRUE(files_in(target_) == before) << "a file was changed";
}

TEST_F(CopyTest, ARunThatSavesInDstIsNotDisturbed) {
  const CheckpointWriter second_start(root_);
  const std::string busy = directory_ / "busy";
  {
    CheckpointWriter trainer(busy);  // with the lock, and nothing committed yet
    const Outcome outcome = run({"copy", root_, busy});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("uses this directory")) << "it was refused for another reason";
    EXPECT_FALSE(has_attempt(busy, 2)) << "the run takes that for a newer run, and stops";
    (void)trainer.write(5, state_of(tensors_));
  }
  const json listed = run_json({"ls", busy, "--json"});
  ASSERT_EQ(listed["versions"].size(), 1u);
  EXPECT_EQ(listed["versions"][0]["step"], 5);
}

TEST_F(CopyTest, WhatIsSetAsideInDstStaysSetAside) {
  ASSERT_EQ(run({"copy", root_, target_, "--all"}).code, 0);
  {
    const CheckpointWriter restored(target_, {{3, 1}}, {{{9, 1}, "it is damaged"}});
  }
  {
    const CheckpointWriter second_start(root_, {{3, 1}});
  }
  (void)CheckpointWriter(root_, {{3, 1}}).write(4, state_of(tensors_));
  ASSERT_EQ(run({"copy", root_ + "@4", target_}).code, 0);
  const json copied = run_json({"ls", target_, "--json"});
  EXPECT_EQ(copied["versions"].size(), 2u);
  ASSERT_EQ(copied["set_aside"].size(), 1u);
  EXPECT_EQ(copied["set_aside"][0]["why"], "it is damaged");
  train_and_clean(target_, 10);
  const json listed = run_json({"ls", target_, "--json"});
  EXPECT_EQ(listed["versions"].size(), 3u);
  EXPECT_EQ(listed["set_aside"].size(), 1u) << "a copy made a run delete it";
}

TEST_F(CopyTest, WhatSrcHasSetAsideIsSetAsideInDst) {
  ASSERT_EQ(run({"copy", root_, target_, "--all"}).code, 0);
  (void)CheckpointWriter(root_, {{3, 1}}, {{{9, 1}, "it is damaged"}}).write(4, state_of(tensors_));
  EXPECT_EQ(run({"copy", root_, target_}).code, 0);
  const json listed = run_json({"ls", target_, "--json"});
  EXPECT_EQ(listed["versions"].size(), 2u);
  EXPECT_EQ(listed["set_aside"].size(), 1u);
}

TEST_F(CopyTest, AVersionOfDstThatCannotBeReadNowIsNotLeftBehind) {
  ASSERT_EQ(run({"copy", root_, target_, "--all"}).code, 0);
  const std::string manifest = target_ + "/step-0000000009.a1/manifest.json";
  const std::string intact = read_file_text(manifest);
  write_file_text(manifest, intact.substr(0, 50));
  (void)CheckpointWriter(root_, {{3, 1}}).write(4, state_of(tensors_));  // rolled back
  const Outcome outcome = run({"copy", root_, target_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("DST holds step 9 (attempt 1), whose manifest cannot be read"));
  EXPECT_FALSE(has_attempt(target_, 2));
  write_file_text(manifest, intact);
  train_and_clean(target_, 10);
  EXPECT_EQ(run_json({"ls", target_, "--json"})["versions"].size(), 3u) << "a copy made a run delete it";
}

TEST_F(CopyTest, ATierThatAdoptedMoreThanSrcIsStillOfThatRun) {
  ASSERT_EQ(run({"copy", root_, target_, "--all"}).code, 0);
  (void)CheckpointWriter(root_, {{9, 1}}).write(12, state_of(tensors_));
  // Step 3 has expired in SRC, but its tier still has it.
  const auto fs = make_posix_file_system();
  Attempt on_tier = must(read_attempt(*fs, root_, 2));
  on_tier.adopted = {{3, 1}, {9, 1}};
  write_file_text(control_path(target_) + "/" + attempt_file(2), serialize(on_tier));
  const Outcome outcome = run({"copy", root_, target_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(run_json({"ls", target_, "--json"})["versions"].size(), 3u);
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
