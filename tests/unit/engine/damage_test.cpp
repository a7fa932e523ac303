// Damaged versions: named, passed over, and never loaded.
#include <filesystem>
#include <fstream>

#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {

namespace fs = std::filesystem;

class DamageTest : public EngineTest {
 protected:
  void SetUp() override {
    model_.add("first", 1000);
    model_.add("layer.w", 3 * kMiB);
    Engine engine = open(options());
    for (std::uint64_t step = 1; step <= 2; ++step) {
      save_and_commit(engine, step, model_);
      if (step == 1) {
        at_one_ = model_.copy();
        model_.update();
      }
    }
    ASSERT_TRUE(engine.close());
  }
  std::string file(const std::string& name, int step = 2) {
    return options().path + "/step-000000000" + std::to_string(step) + ".a1/" + name;
  }
  static void flip(const std::string& path, std::uint64_t offset) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    char byte = 0;
    stream.get(byte);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 0x10));
    ASSERT_TRUE(stream.good());
  }
  void expect_fallback(const std::string& named) {
    Engine engine = open(options());
    Reader reader;
    auto restored = engine.restore({}, reader.plan());
    ASSERT_TRUE(restored) << restored.error().to_string();
    ASSERT_TRUE(*restored);
    EXPECT_EQ((*restored)->version.step, 1u);
    EXPECT_EQ(reader.read, at_one_);
    ASSERT_EQ((*restored)->damaged.size(), 1u);
    EXPECT_NE((*restored)->damaged[0].find("step 2"), std::string::npos) << (*restored)->damaged[0];
    EXPECT_NE((*restored)->damaged[0].find(named), std::string::npos) << (*restored)->damaged[0];
    EXPECT_NE(log().find("step 2 is damaged"), std::string::npos) << log();
  }
  Model model_;
  std::map<std::string, Bytes> at_one_;
};

TEST_F(DamageTest, ABitFlipInATensorFallsBackAndNamesFileAndTensor) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  expect_fallback("rank-00000.safetensors");
  EXPECT_NE(log().find("layer.w"), std::string::npos) << log();
}

TEST_F(DamageTest, ABitFlipInTheHeaderFallsBack) {
  flip(file("rank-00000.safetensors"), 40);
  expect_fallback("rank-00000.safetensors");
}

TEST_F(DamageTest, ATruncatedFileFallsBack) {
  fs::resize_file(file("rank-00000.safetensors"), kMiB);
  expect_fallback("rank-00000.safetensors");
}

TEST_F(DamageTest, AnEmptyFileFallsBack) {
  fs::resize_file(file("rank-00000.safetensors"), 0);
  expect_fallback("rank-00000.safetensors");
}

TEST_F(DamageTest, AMissingFileFallsBack) {
  fs::remove(file("rank-00000.safetensors"));
  expect_fallback("rank-00000.safetensors");
}

TEST_F(DamageTest, ADamagedRecordFallsBack) {
  flip(file("rank-00000.record"), 30);
  expect_fallback("rank-00000.record");
}

TEST_F(DamageTest, ADamagedManifestFallsBack) {
  flip(file("manifest.json"), 30);
  expect_fallback("manifest.json");
}

TEST_F(DamageTest, FilesExchangedBetweenStepsFallBack) {
  fs::copy_file(file("rank-00000.safetensors", 1), file("rank-00000.safetensors", 2),
                fs::copy_options::overwrite_existing);
  expect_fallback("rank-00000.safetensors");
}

TEST_F(DamageTest, OnDamageRaiseIsAnError) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Options strict = options();
  strict.on_damage = OnDamage::kRaise;
  Engine engine = open(strict);
  Reader reader;
  auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().kind, ErrorKind::kCorrupt);
  EXPECT_NE(restored.error().message.find("undefined"), std::string::npos) << restored.error().message;
}

TEST_F(DamageTest, AStepAskedForByNumberIsNotReplacedByAnother) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Engine engine = open(options());
  Reader reader;
  auto restored = engine.restore({.step = 2}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().kind, ErrorKind::kCorrupt);
}

TEST_F(DamageTest, AFallbackThatWouldLeaveBytesOfTheDamagedVersionIsAnError) {
  Engine engine = open(options());
  Reader first;
  ASSERT_EQ(restore(engine, first), 2u);
  Model larger;
  larger.add("first", 1000);
  larger.add("layer.w", 3 * kMiB);
  larger.add("added", 1000);
  save_and_commit(engine, 3, larger);
  ASSERT_TRUE(engine.close());
  flip(options().path + "/step-0000000003.a2/rank-00000.safetensors", 2 * kMiB);

  Engine again = open(options());
  Reader reader;  // takes whatever the checkpoint has, as strict=False does
  auto restored = again.restore({}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.error().message.find("'added'"), std::string::npos) << restored.error().message;
  EXPECT_NE(restored.error().message.find("undefined"), std::string::npos) << restored.error().message;
}

TEST_F(DamageTest, DamageInWhatTheCallerReadsByItselfFallsBackToo) {
  Engine engine = open(options());
  Reader reader;
  std::vector<std::uint64_t> asked;
  RestoreOptions restoring;
  restoring.read_rest = [&](const Checkpoint& checkpoint, const RestoreOptions::OnProgress& on_progress) -> Status {
    asked.push_back(checkpoint.version().step);
    on_progress();  // does nothing where no other rank waits
    if (checkpoint.version().step == 1) return {};
    return fail(ErrorKind::kCorrupt, "a tensor that is converted is damaged");
  };
  auto restored = engine.restore(restoring, reader.plan());
  ASSERT_TRUE(restored && *restored);
  EXPECT_EQ((*restored)->version.step, 1u);
  EXPECT_EQ(reader.read, at_one_);
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{2, 1}));
  ASSERT_EQ((*restored)->damaged.size(), 1u);
  EXPECT_NE((*restored)->damaged[0].find("step 2: a tensor that is converted is damaged"), std::string::npos);
}

TEST_F(DamageTest, NoOtherErrorOfTheCallerIsTakenForDamage) {
  for (const ErrorKind kind : {ErrorKind::kIo, ErrorKind::kNotFound, ErrorKind::kInvalidArgument}) {
    Engine engine = open(options());
    Reader reader;
    RestoreOptions restoring;
    restoring.read_rest = [&](const Checkpoint&, const RestoreOptions::OnProgress&) -> Status {
      return fail(kind, "the disk does not answer");
    };
    auto restored = engine.restore(restoring, reader.plan());
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().kind, kind);
    EXPECT_NE(restored.error().message.find("undefined"), std::string::npos) << restored.error().message;
  }
  Engine engine = open(options());
  Reader reader;
  const auto damaged_plan = [](const Checkpoint&) -> Result<std::vector<Target>> {
    return fail(ErrorKind::kCorrupt, "what the plan needs is not there");
  };
  auto restored = engine.restore({}, damaged_plan);
  ASSERT_FALSE(restored) << "where tensors go is for the caller to say";
  EXPECT_EQ(restored.error().message, "what the plan needs is not there");
}

TEST_F(DamageTest, NothingGoodLeftIsAnErrorAndNotAFreshStart) {
  flip(file("rank-00000.safetensors", 1), 100);
  flip(file("manifest.json", 2), 30);
  Engine engine = open(options());
  Reader reader;
  auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.error().message.find("no checkpoint could be restored"), std::string::npos)
      << restored.error().message;
}

// It may be readable tomorrow: a run that does not restore must not write over it, nor behind its back.
TEST_F(DamageTest, ARunThatDoesNotRestoreDoesNotBuryANewestVersionThatIsUnreadable) {
  flip(file("manifest.json", 2), 30);
  Engine engine = open(options());
  auto refused = engine.save(2, model_.state());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("holds checkpoints up to step 2"), std::string::npos)
      << refused.error().message;
  save_and_commit(engine, 3, model_);
}

TEST_F(DamageTest, SavingGoesOnFromTheVersionThatWasRestored) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Engine engine = open(options());
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  save_and_commit(engine, 2, model_);  // under a new attempt: the damaged step 2 is replaced
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  ASSERT_EQ(restore(engine, reader), 2u);
  EXPECT_EQ(reader.read, model_.copy());
}

TEST_F(DamageTest, WhatWasPassedOverStaysAsideThroughLaterRestores) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Reader reader;
  for (std::uint64_t start = 1; start <= 3; ++start) {  // the second and the third find it set aside
    Engine engine = open(options());
    ASSERT_EQ(restore(engine, reader), start);
    save_and_commit(engine, start + 1, model_);
    ASSERT_TRUE(engine.close());
    ASSERT_TRUE(fs::exists(file("manifest.json"))) << "start " << start;
  }
  Engine engine = open(options());
  ASSERT_EQ(restore(engine, reader), 4u);
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{3, 4}));
}

TEST_F(DamageTest, AStepSavedAgainIsRestoredAndNotTheOneThatWasSetAside) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Engine engine = open(options());
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  save_and_commit(engine, 2, model_);
  ASSERT_EQ(restore(engine, reader, 2), 2u);
  EXPECT_EQ(reader.read, model_.copy());
}

TEST_F(DamageTest, OneThatWasSetAsideIsNeverTheNewest) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Engine engine = open(options());
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  save_and_commit(engine, 3, model_);
  ASSERT_TRUE(engine.remove(1));
  ASSERT_TRUE(engine.remove(3));
  EXPECT_EQ(restore(engine, reader), 0u);
}

// The disk was mended, or the damage was of the machine that read it.
TEST_F(DamageTest, OneThatWasSetAsideAndIsRestoredByItsNumberCountsAgain) {
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Reader reader;
  {
    Engine engine = open(options());
    ASSERT_EQ(restore(engine, reader), 1u);
    save_and_commit(engine, 3, model_);
    ASSERT_TRUE(engine.close());
  }
  flip(file("rank-00000.safetensors"), 2 * kMiB);
  Engine engine = open(options());
  ASSERT_EQ(restore(engine, reader, 2), 2u);
  save_and_commit(engine, 3, model_);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(steps(open(options())), (std::vector<std::uint64_t>{2, 3}));
}

}  // namespace
}  // namespace slackwater::test
