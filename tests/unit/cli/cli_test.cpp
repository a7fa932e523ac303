// The binary from outside: exit codes, what goes to stdout and stderr, JSON.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"
#include "os/file_system.hpp"
#include "support/global_tensor.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"
#include "support/write_ranks.hpp"
#include "version/delete_notes.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

using nlohmann::json;
using test::CliTest;
using test::Outcome;
using test::OwnedTensor;
using testing::HasSubstr;
using testing::Not;
namespace stdfs = std::filesystem;

TEST_F(CliTest, ShowsVersionAndHelpWithExamples) {
  EXPECT_EQ(run({"--version"}).out, "slackwater " SLACKWATER_VERSION "\n");
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  for (const char* verb : {"ls", "show", "verify", "copy", "pin", "rm", "gc"}) {
    EXPECT_THAT(help.out, HasSubstr(verb));
    const Outcome one = run({verb, "--help"});
    EXPECT_EQ(one.code, 0);
    EXPECT_THAT(one.out, HasSubstr("Keys of --json"));
  }
}

TEST_F(CliTest, AnswersWrongUsageWithCodeTwoAndAHint) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"frobnicate"}, {"ls"}, {"ls", "a", "b", "c"}, {"show", "--nope", "x"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("error:"));
    EXPECT_THAT(outcome.err, HasSubstr("hint:"));
  }
}

TEST_F(CliTest, NamesTheNearestCommandForOneThatDoesNotExist) {
  const auto said = [&](const std::vector<std::string>& words) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("hint: slackwater --help lists the commands"));
    return outcome.err.substr(0, outcome.err.find('\n'));
  };
  EXPECT_EQ(said({"lss", root_}), "error: 'lss' is not a command; did you mean 'ls'?");
  EXPECT_EQ(said({"--json", "list", root_}), "error: 'list' is not a command; did you mean 'ls'?");
  EXPECT_EQ(said({"varify", root_, "--json"}), "error: 'varify' is not a command; did you mean 'verify'?");
  EXPECT_EQ(said({"Export", root_}), "error: 'Export' is not a command; did you mean 'export'?");
  EXPECT_EQ(said({"frobnicate"}), "error: 'frobnicate' is not a command");
  EXPECT_EQ(said({"keepr"}), "error: 'keepr' is not a command") << "trainers start the keeper, people do not";
  EXPECT_EQ(said({}), "error: no command was given");
}

TEST_F(CliTest, SaysWhatIsWrongWithADirectory) {
  for (const std::vector<std::string>& verb :
       std::vector<std::vector<std::string>>{{"ls"}, {"show"}, {"verify"}, {"gc"}, {"rm", "3"}, {"pin", "3"}}) {
    std::vector<std::string> words = verb;
    words.insert(words.begin() + 1, root_);
    const Outcome missing = run(words);
    EXPECT_EQ(missing.code, 2);
    EXPECT_EQ(missing.out, "");
    EXPECT_THAT(missing.err, HasSubstr("hint:"));
    EXPECT_THAT(missing.err, HasSubstr(root_));
    EXPECT_FALSE(stdfs::exists(root_));
  }
  const Outcome foreign = run({"ls", directory_.path()});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_THAT(foreign.err, HasSubstr("not a Slackwater directory"));

  write_two();
  EXPECT_THAT(run({"ls", directory_.path()}).err, HasSubstr("did you mean " + root_));
  EXPECT_THAT(run({"show", paths_[0]}).err, HasSubstr(root_ + "@3"));
  EXPECT_EQ(run({"ls", paths_[0] + "/manifest.json"}).code, 2);
}

TEST_F(CliTest, ListsLiveVersionsOldestFirst) {
  write_two();
  const Outcome text = run({"ls", root_});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_LT(text.out.find("\n   3  "), text.out.find("\n   9  "));
  EXPECT_THAT(text.out, HasSubstr("live"));
  EXPECT_THAT(text.out, testing::StartsWith("run test (attempt 1)\n"));

  const json document = run_json({"ls", root_, "--json"});
  EXPECT_EQ(document["directory"], root_);
  EXPECT_EQ(document["newest_attempt"], 1);
  EXPECT_EQ(document["run_name"], "test");
  ASSERT_EQ(document["versions"].size(), 2u);
  EXPECT_EQ(document["versions"][0]["step"], 3);
  EXPECT_EQ(document["versions"][0]["tensor_count"], 4);
  EXPECT_EQ(document["versions"][0]["state"], "live");
  EXPECT_EQ(document["versions"][1]["directory"], stdfs::path(paths_[1]).filename().string());
}

TEST_F(CliTest, NamesWhatALowerTierHasStillToDelete) {
  write_two();
  const auto fs = make_posix_file_system();
  const VersionName other{1, 1};  // deleted
  for (const VersionName& version : {VersionName{3, 1}, other})
    ASSERT_TRUE(write_delete_note(*fs, root_, {.version = version, .run = "", .tier = "s3://bucket/run"}));
  const Outcome text = run({"ls", root_});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.err, "note: step 1 (attempt 1) was deleted here, and the next run deletes it on s3://bucket/run\n")
      << "step 3 is still here";
  const json document = run_json({"ls", root_, "--json"});
  EXPECT_EQ(document["deletes_pending"], json::parse(R"([{"step": 1, "attempt": 1, "tier": "s3://bucket/run"}])"));
}

TEST_F(CliTest, ShowsTheRestOnlyWithAll) {
  write_two();
  test::write_file_text(paths_[0] + "/manifest.json", "junk");
  stdfs::create_directory(root_ + "/" + version_directory({12, 1}));
  const Outcome plain = run({"ls", root_});
  EXPECT_EQ(plain.code, 0);
  EXPECT_THAT(plain.err, HasSubstr("--all"));
  EXPECT_THAT(plain.out, Not(HasSubstr("unreadable")));
  const Outcome all = run({"ls", "--all", root_});
  EXPECT_THAT(all.out, HasSubstr("unreadable"));
  EXPECT_THAT(all.out, HasSubstr("undecided"));
  const json document = run_json({"ls", "--all", "--json", root_});
  EXPECT_EQ(document["versions"].size(), 3u);
  EXPECT_TRUE(document["versions"][0].contains("error"));
}

TEST_F(CliTest, AnEmptyDirectoryOfOursIsFine) {
  {
    test::CheckpointWriter writer(root_);
  }
  const Outcome outcome = run({"ls", root_});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("no committed checkpoint"));
  EXPECT_TRUE(run_json({"ls", "--json", root_})["versions"].empty());
  EXPECT_EQ(run({"verify", root_}).code, 2);
}

TEST_F(CliTest, ShowsTensorsMetadataTotalsAndTree) {
  write_two();
  const Outcome newest = run({"show", root_});
  EXPECT_EQ(newest.code, 0) << newest.err;
  EXPECT_THAT(newest.out, HasSubstr("step 9"));
  EXPECT_THAT(newest.out, HasSubstr("float32"));
  EXPECT_THAT(newest.out, HasSubstr("[300, 1000]"));
  EXPECT_THAT(newest.out, HasSubstr("model.head (tied to model.embedding)"));
  EXPECT_THAT(newest.out, HasSubstr("note = hello"));
  EXPECT_THAT(newest.out, HasSubstr("4 tensors, "));
  EXPECT_THAT(newest.out, HasSubstr("123456789012345678901234567890"));
  EXPECT_THAT(run({"show", root_ + "@3"}).out, HasSubstr("step 3"));
}

TEST_F(CliTest, ShowsTotalsOfEachKeyAtTheTopOfTheState) {
  write_two();
  const Outcome text = run({"show", root_});
  EXPECT_THAT(text.out, HasSubstr("\ntotals\n  model  3 tensors  1.14 MiB\n  optim   1 tensor       8 B\n"));
  const json keys = run_json({"show", root_, "--json"})["totals"]["keys"];
  EXPECT_EQ(keys, json::parse(R"([{"key":"model","tensors":3,"size_bytes":1200014},
                                  {"key":"optim","tensors":1,"size_bytes":8}])"));
  EXPECT_EQ(run_json({"show", root_, "*.bias", "--json"})["totals"]["keys"].size(), 1u);
}

TEST_F(CliTest, TotalsOfAFlatStateAreCutInTheTextAndWholeInJson) {
  std::vector<OwnedTensor> flat;
  for (int i = 0; i < 40; ++i) flat.push_back(OwnedTensor::random("w" + std::to_string(i), DType::kU8, {i + 1}));
  test::CheckpointWriter(root_).write(1, test::state_of(flat));
  const Outcome text = run({"show", root_});
  EXPECT_THAT(text.out, HasSubstr("totals\n  w39"));
  EXPECT_THAT(text.out, HasSubstr("... 24 more keys"));
  EXPECT_EQ(run_json({"show", root_, "--json"})["totals"]["keys"].size(), 40u);
}

TEST_F(CliTest, ShowsOnlyTensorsThatMatchAPattern) {
  write_two();
  const Outcome some = run({"show", root_, "model.*b*"});
  EXPECT_THAT(some.out, HasSubstr("model.bias"));
  EXPECT_THAT(some.out, HasSubstr("model.embedding"));
  EXPECT_THAT(some.out, Not(HasSubstr("optim.step")));
  EXPECT_THAT(some.out, HasSubstr("2 tensors"));
  EXPECT_THAT(some.out, HasSubstr("of 4 tensors"));
  EXPECT_EQ(run({"show", root_, "model"}).out, run({"show", root_, "model.*"}).out) << "a name: it and all below it";
  const Outcome none = run({"show", root_, "nothing"});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("no tensor matches 'nothing'"));
  EXPECT_THAT(none.err, HasSubstr("hint: a pattern must match the whole name or its first parts"));
}

TEST_F(CliTest, PrintsTheWholeTreeAsJsonAndNothingElse) {
  write_two();
  const Outcome tree = run({"show", "--tree", root_});
  EXPECT_EQ(json::parse(tree.out)["lr"], 0.1);
  EXPECT_THAT(tree.out, HasSubstr("123456789012345678901234567890"));
  EXPECT_EQ(json::parse(run({"show", "--tree", "--json", root_}).out)["lr"], 0.1);
}

TEST_F(CliTest, CutsALongTreeAndSaysHowToSeeAllOfIt) {
  json tree;
  for (int i = 0; i < 100; ++i) tree["value" + std::to_string(i)] = i;
  test::CheckpointWriter(root_).write(1, test::state_of(tensors_, tree.dump()));
  const Outcome cut = run({"show", root_});
  EXPECT_THAT(cut.out, HasSubstr("more lines; --tree prints all of it"));
  EXPECT_EQ(json::parse(run({"show", "--tree", root_}).out), tree);
}

TEST_F(CliTest, ShowsAsJsonWithStableKeys) {
  write_two();
  const json document = run_json({"show", "--json", root_});
  EXPECT_EQ(document["version"]["step"], 9);
  EXPECT_EQ(document["metadata"]["note"], "hello");
  EXPECT_EQ(document["files"][0]["name"], "rank-00000.safetensors");
  ASSERT_EQ(document["tensors"].size(), 4u);
  EXPECT_EQ(document["tensors"][1]["name"], "model.embedding");
  EXPECT_EQ(document["tensors"][1]["dtype"], "float32");
  EXPECT_EQ(document["tensors"][1]["shape"], (std::vector<int>{300, 1000}));
  EXPECT_EQ(document["tensors"][2]["alias_of"], "model.embedding");
  EXPECT_EQ(document["totals"]["size_bytes"], 300 * 1000 * 4 + 14 + 8);
  EXPECT_EQ(document["tree"]["lr"], 0.1);
  const json some = run_json({"show", "--json", root_, "optim.*"});
  EXPECT_EQ(some["tensors"].size(), 1u);
  EXPECT_TRUE(some["tree"].is_null());
}

TEST_F(CliTest, ShowsInHowManyBoxesATensorLiesAndVerifiesThoseOfAllRanks) {
  const test::GlobalTensor tensor{OwnedTensor::random("w", DType::kF32, {6, 1000})};
  test::RankStates ranks(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.add_box(rank, tensor, {{2 * rank, 0}, {2, 1000}});
    ranks.add_local(rank, OwnedTensor::random("rng", DType::kU8, {16}, rank));
  }
  const std::string path = test::RanksWriter(root_, 3).write(1, ranks.states(), {}, {"rng"});

  const Outcome shown = run({"show", root_});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("w (3 boxes on ranks 0 to 2)"));
  EXPECT_THAT(shown.out, HasSubstr("rank-00001/rng"));
  EXPECT_THAT(shown.out, HasSubstr("tree of rank 0"));
  const json shown_json = run_json({"show", root_, "--json"});
  const json& last = shown_json["tensors"].back();
  EXPECT_EQ(last["name"], "w");
  EXPECT_EQ(last["size_bytes"], 24000);
  EXPECT_TRUE(last["file"].is_null());
  ASSERT_EQ(last["boxes"].size(), 3u);
  EXPECT_EQ(last["boxes"][1]["offset"], json::array({2, 0}));
  EXPECT_EQ(last["boxes"][1]["file"], "rank-00001.safetensors");
  EXPECT_EQ(shown_json["rank_local_values"], json::array({"rng"}));
  EXPECT_EQ(shown_json["totals"]["keys"], json::parse(R"([{"key":"rng","tensors":3,"size_bytes":48},
                                                          {"key":"w","tensors":1,"size_bytes":24000}])"));
  EXPECT_EQ(shown_json["files"].size(), 3u);

  const std::string file = path + "/rank-00002.safetensors";
  EXPECT_EQ(run_json({"verify", root_, "--json"})["versions"][0]["bytes_read"], 3 * stdfs::file_size(file));
  test::flip_bit(file, stdfs::file_size(file) - 20, 1);
  const json damages = run_json({"verify", root_, "--json"}, 1)["versions"][0]["damages"];
  EXPECT_EQ(damages[0]["file"], "rank-00002.safetensors");
  EXPECT_THAT(damages[0]["tensors"].dump(), HasSubstr("\"w\""));
}

TEST_F(CliTest, KeepsATreeThatIsNotJsonApart) {
  test::CheckpointWriter(root_).write(1, test::state_of(tensors_, "free \x1b text"));
  EXPECT_EQ(run_json({"show", "--json", root_})["tree"], "free \x1b text");
  EXPECT_THAT(run({"show", root_}).out, HasSubstr("free \\u001b text"));
}

TEST_F(CliTest, EscapesControlCharactersInNames) {
  test::CheckpointWriter(root_).write(1, test::state_of({OwnedTensor::random("evil\x1b[2J\nname", DType::kU8, {4})}));
  const Outcome outcome = run({"show", root_});
  EXPECT_THAT(outcome.out, HasSubstr("evil\\u001b[2J\\u000aname"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, ListsTheStepsThereAreWhenOneIsMissing) {
  write_two();
  for (const char* verb : {"show", "verify"}) {
    const Outcome outcome = run({verb, root_ + "@4"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("step 4"));
    EXPECT_THAT(outcome.err, HasSubstr("hint: there are steps 9, 3"));
  }
}

TEST_F(CliTest, SaysWhyAStepThatIsThereIsNotLive) {
  write_two();
  test::CheckpointWriter(root_, {{9, 1}}, {{{3, 1}, "a block differs"}});
  const Outcome outcome = run({"show", root_ + "@3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("step-0000000003.a1 is not live: it is set aside: a block differs"));
  EXPECT_THAT(outcome.err, HasSubstr("hint: there is only step 9"));
}

TEST_F(CliTest, TakesADirectoryWhoseNameHoldsAnAt) {
  root_ = directory_ / "run@2024";
  write_two();
  EXPECT_THAT(run({"show", root_}).out, HasSubstr("step 9"));
  EXPECT_THAT(run({"show", root_ + "@3"}).out, HasSubstr("step 3"));
  EXPECT_EQ(run({"ls", root_}).code, 0);
}

TEST_F(CliTest, VerifiesEveryLiveVersion) {
  write_two();
  const Outcome outcome = run({"verify", root_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << "no progress bar where stderr is not a terminal";
  EXPECT_THAT(outcome.out, HasSubstr("step 3: fine"));
  EXPECT_THAT(outcome.out, HasSubstr("step 9: fine"));
  EXPECT_THAT(outcome.out, HasSubstr("GB/s"));
  const json document = run_json({"verify", "--json", root_});
  EXPECT_EQ(document["ok"], true);
  EXPECT_EQ(document["versions"].size(), 2u);
  EXPECT_EQ(run_json({"verify", "--json", root_ + "@3"})["versions"].size(), 1u);
}

TEST_F(CliTest, NamesDamageGoesOnAndExitsWithOne) {
  write_two();
  test::flip_bit(paths_[0] + "/rank-00000.safetensors", (1u << 20) + 9, 2);
  const Outcome outcome = run({"verify", root_});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("step 3: DAMAGED"));
  EXPECT_THAT(outcome.out, HasSubstr("rank-00000.safetensors"));
  EXPECT_THAT(outcome.out, HasSubstr("offset 1048576"));
  EXPECT_THAT(outcome.out, HasSubstr("model.embedding"));
  EXPECT_THAT(outcome.out, HasSubstr("step 9: fine"));
  EXPECT_THAT(outcome.err, HasSubstr("hint: restore() skips"));

  const json document = run_json({"verify", "--json", root_}, 1);
  EXPECT_EQ(document["ok"], false);
  const json& damage = document["versions"][0]["damages"][0];
  EXPECT_EQ(damage["file"], "rank-00000.safetensors");
  EXPECT_EQ(damage["offset"], 1048576);
  EXPECT_THAT(damage["tensors"].get<std::vector<std::string>>(), testing::Contains("model.embedding"));
}

TEST_F(CliTest, VerifyReportsAVersionWhoseManifestIsDamaged) {
  write_two();
  test::write_file_text(paths_[0] + "/manifest.json", "junk");
  const Outcome outcome = run({"verify", root_});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("step 3: DAMAGED"));
  EXPECT_THAT(outcome.out, HasSubstr("manifest.json"));
  EXPECT_THAT(outcome.out, HasSubstr("step 9: fine"));
  EXPECT_EQ(run({"verify", root_ + "@3"}).code, 1);
}

TEST_F(CliTest, VerifyReportsMissingFilesAndShowPointsToVerify) {
  write_two();
  stdfs::remove(paths_[1] + "/rank-00000.safetensors");
  const Outcome shown = run({"show", root_});
  EXPECT_EQ(shown.code, 1);
  EXPECT_THAT(shown.err, HasSubstr("hint: slackwater verify"));
  const Outcome outcome = run({"verify", root_ + "@9"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("the file is missing"));
  EXPECT_THAT(outcome.out, HasSubstr("optim.step"));
}

}  // namespace
}  // namespace slackwater
