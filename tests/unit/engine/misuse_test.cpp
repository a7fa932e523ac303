// Bad input: each gets one clear sentence, and nothing is lost.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {

class MisuseTest : public EngineTest {
 protected:
  void expect_error(const Error& error, ErrorKind kind, const std::string& part) {
    EXPECT_EQ(error.kind, kind) << error.to_string();
    EXPECT_NE(error.to_string().find(part), std::string::npos) << error.to_string();
  }
};

TEST_F(MisuseTest, AStepSavedTwiceOrOutOfOrder) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  save_and_commit(engine, 5, model);
  for (const std::uint64_t step : {5, 4}) {
    auto again = engine.save(step, model.state());
    ASSERT_FALSE(again);
    expect_error(again.error(), ErrorKind::kInvalidArgument, "steps must grow");
  }
  save_and_commit(engine, 6, model);
}

TEST_F(MisuseTest, AFreshStartOverLaterSteps) {
  Model model;
  model.add("w", 10);
  {
    Engine engine = open(options());
    save_and_commit(engine, 50, model);
  }
  Engine engine = open(options());
  auto buried = engine.save(1, model.state());
  ASSERT_FALSE(buried);
  expect_error(buried.error(), ErrorKind::kInvalidArgument, "checkpoints up to step 50");
  expect_error(buried.error(), ErrorKind::kInvalidArgument, "restore() first");
  save_and_commit(engine, 51, model);  // going on is fine
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{50, 51}));
}

TEST_F(MisuseTest, SaveAfterClose) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  ASSERT_TRUE(engine.close());
  auto closed = engine.save(1, model.state());
  ASSERT_FALSE(closed);
  expect_error(closed.error(), ErrorKind::kClosed, "closed");
  EXPECT_TRUE(engine.close());
}

TEST_F(MisuseTest, TwoRunsOnOneDirectory) {
  Engine first = open(options());
  auto second = Engine::open(options());
  ASSERT_FALSE(second);
  expect_error(second.error(), ErrorKind::kBusy, options().path);
  ASSERT_TRUE(first.close());
  EXPECT_TRUE(Engine::open(options()));
}

TEST_F(MisuseTest, TwoTiersThatAreOneDirectory) {
  const std::string root = directory_.path();
  std::filesystem::create_directory(root + "/there");
  std::filesystem::create_directory_symlink("run", root + "/link-to-run");  // which does not exist yet
  std::filesystem::create_directory_symlink(root, root + "/here");
  std::filesystem::create_directory_symlink("there", root + "/link-to-there");
  std::filesystem::create_directory_symlink("link-to-missing", root + "/link");
  std::filesystem::create_directory_symlink("missing", root + "/link-to-missing");
  const std::vector<std::vector<std::string>> same{
      {"run"}, {"link-to-run"}, {"here/run"}, {"there", "link-to-there"}, {"missing", "link"}, {"a/b", "here/a//b"}};
  for (const auto& names : same) {
    Options bad = options();
    for (const std::string& name : names) bad.tiers.push_back({.location = root + "/" + name});
    const auto engine = Engine::open(bad);
    ASSERT_FALSE(engine) << names.back();
    expect_error(engine.error(), ErrorKind::kInvalidArgument, "two tiers have the same location");
    std::filesystem::remove_all(bad.path);
  }
  Options good = options();
  for (const char* name : {"there", "missing", "here/there2", "run2", "run/below"})
    good.tiers.push_back({.location = root + "/" + name});
  EXPECT_TRUE(Engine::open(good));
}

TEST_F(MisuseTest, AMissingParentDirectory) {
  Options bad = options();
  bad.path = directory_.path() + "/no/such/run";
  auto engine = Engine::open(bad);
  ASSERT_FALSE(engine);
  expect_error(engine.error(), ErrorKind::kNotFound, "/no/such");
}

TEST_F(MisuseTest, AFileInPlaceOfTheDirectory) {
  Options bad = options();
  std::ofstream(bad.path) << "not a directory";
  auto engine = Engine::open(bad);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().to_string().find(bad.path), std::string::npos) << engine.error().to_string();
}

TEST_F(MisuseTest, OptionsOutOfRange) {
  Options bad = options();
  bad.pool_bytes = kMiB;  // one slab
  auto engine = Engine::open(bad);
  ASSERT_FALSE(engine);
  expect_error(engine.error(), ErrorKind::kInvalidArgument, "two slabs");
}

TEST_F(MisuseTest, DuplicateNames) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  State state = model.state();
  state.tensors.push_back(state.tensors[0]);
  auto saved = engine.save(1, std::move(state));
  ASSERT_FALSE(saved);
  expect_error(saved.error(), ErrorKind::kInvalidArgument, "w");
  save_and_commit(engine, 1, model);  // the step is still free
}

TEST_F(MisuseTest, ATensorOnAnotherDevice) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  State state = model.state();
  state.tensors[0].device = 0;
  auto saved = engine.save(1, std::move(state));
  ASSERT_FALSE(saved);
  expect_error(saved.error(), ErrorKind::kUnsupported, "'w'");
}

TEST_F(MisuseTest, RestoreOfAStepThatIsNotThere) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  save_and_commit(engine, 3, model);
  Reader reader;
  auto restored = engine.restore({.step = 4}, reader.plan());
  ASSERT_FALSE(restored);
  expect_error(restored.error(), ErrorKind::kNotFound, "there are: 3");
}

TEST_F(MisuseTest, ARefusingPlanEndsTheRestoreAndIsNotDamage) {
  Model model;
  model.add("w", 10);
  Engine engine = open(options());
  save_and_commit(engine, 1, model);
  save_and_commit(engine, 2, model);
  int asked = 0;
  auto restored = engine.restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
    ++asked;
    return fail(ErrorKind::kMismatch, "not mine");
  });
  ASSERT_FALSE(restored);
  expect_error(restored.error(), ErrorKind::kMismatch, "not mine");
  EXPECT_EQ(asked, 1);
}

TEST_F(MisuseTest, UnknownOptionsAreNamed) {
  Options some;
  for (const OptionInfo& info : option_table()) {
    EXPECT_TRUE(set_option(some, info.name, info.default_value) || info.type == "text") << info.name;
    EXPECT_FALSE(info.help.empty());
  }
  const auto unknown = set_option(some, "colour", "blue");
  ASSERT_FALSE(unknown);
  expect_error(unknown.error(), ErrorKind::kInvalidArgument, "colour");
  const auto wrong = set_option(some, "keep", "-1");
  ASSERT_FALSE(wrong);
  expect_error(wrong.error(), ErrorKind::kInvalidArgument, "'keep'");
  ASSERT_TRUE(set_option(some, "stall_timeout", "0.5"));
  EXPECT_EQ(some.stall_timeout, std::chrono::milliseconds(500));
  ASSERT_TRUE(set_option(some, "pool", "512MiB"));
  EXPECT_EQ(some.pool_bytes, 512u << 20);
  const auto short_turn = set_option(some, "copy_turn", "4KiB");
  ASSERT_FALSE(short_turn);
  expect_error(short_turn.error(), ErrorKind::kInvalidArgument, "at least 64 KiB");
  ASSERT_TRUE(set_option(some, "copy_turn", "0"));
  EXPECT_EQ(some.copy_turn_bytes, 0u);
}

TEST_F(MisuseTest, AFirstTierHasNoOptionsOfACopy) {
  Options some = options();
  some.tiers.push_back({.location = some.path, .every = 5, .bandwidth_bytes = 1000});
  some.path.clear();
  const auto engine = Engine::open(some);
  ASSERT_FALSE(engine);
  expect_error(engine.error(), ErrorKind::kInvalidArgument, "does not have these options: every, bandwidth");
  expect_error(check_first_tier({.location = "s3://b/run"}).error(), ErrorKind::kInvalidArgument,
               "the first tier must be a directory; list s3:// tiers after it");
}

TEST_F(MisuseTest, LimitsOfATierAreTheSameForTextAndForValues) {
  TierOptions tier{.location = directory_.path() + "/lower"};
  expect_error(set_tier_option(tier, "every", "0").error(), ErrorKind::kInvalidArgument, "a whole number, 1 or more");
  expect_error(set_tier_option(tier, "location", "ftp://x").error(), ErrorKind::kInvalidArgument, "s3://bucket/prefix");
  for (TierOptions wrong :
       {TierOptions{.location = tier.location, .every = 0}, TierOptions{.location = tier.location, .backlog = 0}}) {
    Options some = options();
    some.tiers = {wrong};
    const auto engine = Engine::open(some);
    ASSERT_FALSE(engine);
    expect_error(engine.error(), ErrorKind::kInvalidArgument, "a whole number, 1 or more");
  }
  Options some = options();
  some.tiers = {{.location = "ftp://x"}};
  expect_error(Engine::open(some).error(), ErrorKind::kInvalidArgument, "'location' of a tier takes a directory");
}

class OptionsFileTest : public MisuseTest {
 protected:
  std::string write(const std::string& text) {
    std::string path = directory_.path() + "/run.json";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(OptionsFileTest, SetsOptionsAndTiers) {
  const auto options = load_options(write(
      R"({"path": "/nvme/run", "keep": 3, "node_local": true, "stall_timeout": 0.5,
          "tiers": [{"location": "/shared/run", "every": 50, "bandwidth": "1MiB"}, {"location": "s3://b/run"}]})"));
  ASSERT_TRUE(options) << options.error().to_string();
  EXPECT_EQ(options->path, "/nvme/run");
  EXPECT_EQ(options->keep, 3u);
  EXPECT_TRUE(options->node_local);
  EXPECT_EQ(options->stall_timeout, std::chrono::milliseconds(500));
  ASSERT_EQ(options->tiers.size(), 2u);
  EXPECT_EQ(options->tiers[0].every, 50u);
  EXPECT_EQ(options->tiers[0].bandwidth_bytes, kMiB);
}

TEST_F(OptionsFileTest, GivesACallerItsOwnOptionsAndTypedValues) {
  const std::string path = write(R"({"keep": "3", "paranoid": "yes", "pool": 4096, "copy_timeout": 2, "every": 5})");
  const auto unknown = load_options(path);
  ASSERT_FALSE(unknown);
  expect_error(unknown.error(), ErrorKind::kInvalidArgument, "there is no option 'every'");
  const auto file = read_options_file(path, {"every"});
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->options.at("keep"), OptionValue(std::int64_t{3}));
  EXPECT_EQ(file->options.at("paranoid"), OptionValue(true));
  EXPECT_EQ(file->options.at("pool"), OptionValue(std::string("4096")));
  EXPECT_EQ(file->options.at("copy_timeout"), OptionValue(2.0));
  EXPECT_EQ(file->options.at("every"), OptionValue(std::int64_t{5}));
}

TEST_F(OptionsFileTest, SaysWhatIsWrongAndInWhichFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "is not JSON"},
      {"[]", "is not a JSON object"},
      {R"({"keep": null})", "'keep'"},
      {R"({"keep": -1})", "option 'keep' was given '-1'"},
      {R"({"colour": 1})", "there is no option 'colour'"},
      {R"({"tiers": 3})", "a list of objects for 'tiers'"},
      {R"({"tiers": [3]})", "a list of objects for 'tiers'"},
      {R"({"tiers": [{}]})", "a tier without a 'location'"},
      {R"({"tiers": [{"place": "/a"}]})", "there is no tier option 'place'"},
  };
  for (const auto& [text, part] : cases) {
    const auto options = load_options(write(text));
    ASSERT_FALSE(options) << text;
    expect_error(options.error(), ErrorKind::kInvalidArgument, part);
    expect_error(options.error(), ErrorKind::kInvalidArgument, "run.json");
  }
  expect_error(load_options("/none/run.json").error(), ErrorKind::kInvalidArgument, "cannot be read");
}

}  // namespace
}  // namespace slackwater::test
