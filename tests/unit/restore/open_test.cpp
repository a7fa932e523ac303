// Opening a checkpoint: what it tells, which version it takes, and what it says when there is none.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/checkpoint.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater {
namespace {

using test::must;
using test::OwnedTensor;
using testing::HasSubstr;

class OpenTest : public testing::Test {
 protected:
  test::TempDir directory_;
  const std::string root_ = directory_ / "run";
  const std::vector<OwnedTensor> tensors_{OwnedTensor::random("w", DType::kF32, {3, 5}),
                                          OwnedTensor::random("b", DType::kI64, {})};
};

TEST_F(OpenTest, TellsWhatTheVersionHolds) {
  State state = test::state_of(tensors_, R"({"lr": 0.1})");
  state.metadata = {{"note", "first try"}};
  test::CheckpointWriter writer(root_);
  writer.write(7, state);

  const Checkpoint checkpoint = must(Checkpoint::open(root_));
  EXPECT_EQ(checkpoint.version().step, 7u);
  EXPECT_EQ(checkpoint.version().attempt, writer.attempt().number);
  EXPECT_EQ(checkpoint.version().tensor_count, 2u);
  EXPECT_EQ(checkpoint.tree(), R"({"lr": 0.1})");
  EXPECT_EQ(checkpoint.metadata().at("note"), "first try");
  ASSERT_EQ(checkpoint.files().size(), 1u);
  EXPECT_EQ(checkpoint.files()[0].name, "rank-00000.safetensors");
  EXPECT_EQ(checkpoint.files()[0].size_bytes, checkpoint.version().size_bytes);
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "b") << "sorted by name";
  EXPECT_EQ(checkpoint.tensors()[1].shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(checkpoint.find("nothing"), nullptr);
}

TEST_F(OpenTest, ReadsATreeTooLargeForTheHeaderAndHidesTheTensorItIsStoredIn) {
  const std::string tree = "\"" + std::string(3 * kMaxInlineTreeBytes + 11, 'x') + "\"";
  test::CheckpointWriter(root_).write(1, test::state_of(tensors_, tree));
  const Checkpoint checkpoint = must(Checkpoint::open(root_));
  EXPECT_TRUE(checkpoint.tree() == tree);
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.find(kTreeTensorName), nullptr);
}

TEST_F(OpenTest, ReadsAHeaderThatSpansBlocks) {
  const std::string tree = "\"" + std::string(kMaxInlineTreeBytes - 100, 'x') + "\"";
  State state = test::state_of(tensors_, tree);
  state.metadata = {{"filler", std::string(2u << 20, 'y')}};
  test::CheckpointWriter(root_).write(1, state);
  const Checkpoint checkpoint = must(Checkpoint::open(root_));
  EXPECT_GT(checkpoint.find("w")->offset, 2u << 20);
  EXPECT_TRUE(checkpoint.tree() == tree);
}

TEST_F(OpenTest, TakesTheNewestUnlessAStepIsNamed) {
  test::CheckpointWriter writer(root_);
  writer.write(3, test::state_of(tensors_));
  writer.write(9, test::state_of(tensors_));
  EXPECT_EQ(must(Checkpoint::open(root_)).version().step, 9u);
  EXPECT_EQ(must(Checkpoint::open(root_, 3)).version().step, 3u);
  const auto versions = must(list_versions(root_));
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0].step, 3u);
}

TEST_F(OpenTest, ListsTheStepsThereAreWhenTheOneAskedForIsMissing) {
  test::CheckpointWriter writer(root_);
  writer.write(3, test::state_of(tensors_));
  writer.write(9, test::state_of(tensors_));
  const auto missing = Checkpoint::open(root_, 4);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("there are 9, 3"));
}

TEST_F(OpenTest, SaysThatADirectoryIsMissingOrEmpty) {
  EXPECT_EQ(list_versions(root_).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(Checkpoint::open(root_).error().kind, ErrorKind::kNotFound);
  EXPECT_TRUE(must(list_versions(directory_.path())).empty());
  EXPECT_EQ(Checkpoint::open(directory_.path()).error().kind, ErrorKind::kNotFound);
}

TEST_F(OpenTest, DoesNotNeedTheIndex) {
  const std::string directory = test::CheckpointWriter(root_).write(1, test::state_of(tensors_));
  test::write_file_text(directory + "/index", "garbage");
  Checkpoint checkpoint = must(Checkpoint::open(root_));
  std::vector<std::byte> memory(tensors_[0].bytes.size());
  const Target target{.name = "w", .dtype = DType::kF32, .shape = {3, 5}, .data = memory.data()};
  must(checkpoint.read({&target, 1}));
  EXPECT_EQ(memory, tensors_[0].bytes);
}

TEST_F(OpenTest, StaysUsableAfterBeingMoved) {
  test::CheckpointWriter(root_).write(1, test::state_of(tensors_));
  Checkpoint first = must(Checkpoint::open(root_));
  Checkpoint second = std::move(first);
  std::vector<std::byte> memory(tensors_[1].bytes.size());
  const Target target{.name = "b", .dtype = DType::kI64, .shape = {}, .data = memory.data()};
  must(second.read({&target, 1}));
  EXPECT_EQ(memory, tensors_[1].bytes);
}

}  // namespace
}  // namespace slackwater
