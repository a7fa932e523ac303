// Checkpoint::read: bytes reach their targets, only the needed ones move, and nothing moves when a target does not fit.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "slackwater/checkpoint.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater {
namespace {
namespace read_test {  // kMiB: another file that this one may be compiled with has that name too

using test::Bytes;
using test::must;
using test::OwnedTensor;
using testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

Target target_for(const OwnedTensor& tensor, Bytes& memory) {
  memory.assign(tensor.bytes.size(), std::byte{0xEE});
  return {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = memory.data()};
}

class ReadTest : public testing::Test {
 protected:
  std::string write(const State& state, std::uint64_t step = 1, std::uint64_t max_header_bytes = kMaxHeaderBytes) {
    return test::CheckpointWriter(root_).write(step, state, max_header_bytes);
  }
  [[nodiscard]] Checkpoint open(ReadOptions options = {}) const {
    return must(Checkpoint::open(root_, {}, std::move(options)));
  }

  test::TempDir directory_;
  const std::string root_ = directory_ / "run";
};

TEST_F(ReadTest, GivesBackEveryTensorBitByBit) {
  std::vector<OwnedTensor> tensors;
  tensors.push_back(OwnedTensor::random("large", DType::kF32, {3, kMiB / 3 + 5}));
  for (int i = 0; i < 300; ++i)
    tensors.push_back(OwnedTensor::random("small." + std::to_string(i), DType::kBF16, {i % 7, 100 + i}));
  tensors.push_back(OwnedTensor::random("scalar", DType::kI64, {}));
  tensors.push_back(OwnedTensor::random("complex", DType::kC128, {33}));
  tensors.push_back(OwnedTensor::random("empty", DType::kF64, {0, 4}));
  write(test::state_of(tensors));

  for (const ReadOptions& options : {ReadOptions{}, ReadOptions{.buffer_bytes = 0},
                                     ReadOptions{.io_backend = IoBackend::kThreads, .direct_io = false}}) {
    Checkpoint checkpoint = open(options);
    ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
    std::vector<Bytes> memory(tensors.size());
    std::vector<Target> targets;
    for (std::size_t i = 0; i < tensors.size(); ++i) targets.push_back(target_for(tensors[i], memory[i]));
    must(checkpoint.read(targets));
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(memory[i], tensors[i].bytes) << tensors[i].name;
  }
}

TEST_F(ReadTest, PlacesIntoStridedTargets) {
  const std::int64_t rows = 700, columns = 900;
  const OwnedTensor tensor = OwnedTensor::random("w", DType::kF32, {rows, columns});
  write(test::state_of({tensor}));
  // Transposed memory with a gap after each column.
  const std::int64_t pitch = rows + 3;
  std::vector<float> memory(static_cast<std::size_t>(columns * pitch), -1.0f);
  const Target target{
      .name = "w", .dtype = DType::kF32, .shape = {rows, columns}, .strides = {1, pitch}, .data = memory.data()};
  Checkpoint checkpoint = open();
  must(checkpoint.read({&target, 1}));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(
          std::memcmp(&memory[static_cast<std::size_t>(c * pitch + r)], tensor.bytes.data() + (r * columns + c) * 4, 4),
          0)
          << r << " " << c;
    }
  }
  EXPECT_EQ(memory[static_cast<std::size_t>(rows)], -1.0f) << "the gap stays as it was";
}

TEST_F(ReadTest, ServesTiedTensorsAndSeveralTargetsOfOneTensor) {
  const OwnedTensor tensor = OwnedTensor::random("embedding", DType::kF16, {1000, 777});
  State state;
  state.tensors = {tensor.view(), tensor.view()};
  state.tensors[1].name = "head";
  write(state);
  Checkpoint checkpoint = open();
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.find("head")->alias_of, "embedding");
  EXPECT_EQ(checkpoint.find("head")->offset, checkpoint.find("embedding")->offset);

  Bytes first, second, third;
  std::vector<Target> targets{target_for(tensor, first), target_for(tensor, second), target_for(tensor, third)};
  targets[1].name = "head";
  targets[2].name = "head";
  must(checkpoint.read(targets));
  EXPECT_EQ(first, tensor.bytes);
  EXPECT_EQ(second, tensor.bytes);
  EXPECT_EQ(third, tensor.bytes);
}

TEST_F(ReadTest, ReadsOnlyTheBlocksThatAreNeeded) {
  const std::vector<OwnedTensor> tensors{OwnedTensor::random("a", DType::kU8, {6 * kMiB}),
                                         OwnedTensor::random("b", DType::kU8, {10})};
  write(test::state_of(tensors));
  const std::unique_ptr<FileSystem> real = make_posix_file_system();
  test::FaultFileSystem fs(*real);
  Checkpoint checkpoint = must(open_version({.fs = &fs}, root_, must(list_versions(root_)).back(), {}));
  Bytes memory;
  const Target target = target_for(tensors[1], memory);
  must(checkpoint.read({&target, 1}));
  EXPECT_EQ(memory, tensors[1].bytes);
  EXPECT_EQ(fs.count(test::FsCall::kQueueRead), 1u);
}

TEST_F(ReadTest, WorksInALentPoolOfTwoSlabsAndGivesItBack) {
  const OwnedTensor tensor = OwnedTensor::random("w", DType::kU8, {6 * kMiB + 3});
  write(test::state_of({tensor}));
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const std::unique_ptr<Pool> pool = must(Pool::create(1u << 20, 2));
  Checkpoint checkpoint =
      must(open_version({.fs = fs.get(), .pool = pool.get()}, root_, must(list_versions(root_)).back(), {}));
  Bytes memory;
  const Target target = target_for(tensor, memory);
  must(checkpoint.read({&target, 1}));
  EXPECT_EQ(memory, tensor.bytes);
  EXPECT_TRUE(must(checkpoint.verify()).damages.empty());
  pool->wait_touched();
  EXPECT_EQ(pool->free_count(), 2u);
}

TEST_F(ReadTest, ReadsAStateSpreadOverSeveralFiles) {
  std::vector<OwnedTensor> tensors;
  for (int i = 0; i < 200; ++i)
    tensors.push_back(OwnedTensor::random("layer." + std::to_string(i) + ".weight", DType::kF32, {50, i}));
  write(test::state_of(tensors), 1, 8192);
  Checkpoint checkpoint = open();
  ASSERT_GT(checkpoint.files().size(), 1u);
  std::vector<Bytes> memory(tensors.size());
  std::vector<Target> targets;
  for (std::size_t i = 0; i < tensors.size(); ++i) targets.push_back(target_for(tensors[i], memory[i]));
  must(checkpoint.read(targets));
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(memory[i], tensors[i].bytes);
}

TEST_F(ReadTest, MovesNothingWhenATargetDoesNotFit) {
  const std::vector<OwnedTensor> tensors{OwnedTensor::random("a", DType::kF32, {4, 4}),
                                         OwnedTensor::random("b", DType::kF32, {2})};
  write(test::state_of(tensors));
  Checkpoint checkpoint = open();
  const auto attempt = [&](const auto& change) {
    Bytes good, bad;
    std::vector<Target> targets{target_for(tensors[0], good), target_for(tensors[1], bad)};
    change(targets[1]);
    const Status status = checkpoint.read(targets);
    EXPECT_FALSE(status);
    EXPECT_EQ(good, Bytes(good.size(), std::byte{0xEE})) << "a byte moved";
    return status ? Error{} : status.error();
  };

  const Error missing = attempt([](Target& target) { target.name = "c"; });
  EXPECT_EQ(missing.kind, ErrorKind::kMismatch);
  EXPECT_THAT(missing.message, HasSubstr("'c' is not in the checkpoint"));

  const Error shape = attempt([](Target& target) { target.shape = {2, 2}; });
  EXPECT_EQ(shape.kind, ErrorKind::kMismatch);
  EXPECT_THAT(shape.message, HasSubstr("'b' was saved as float32[2], but is to be restored into float32[2, 2]"));

  const Error dtype = attempt([](Target& target) { target.dtype = DType::kI32; });
  EXPECT_EQ(dtype.kind, ErrorKind::kMismatch);
  EXPECT_THAT(dtype.message, HasSubstr("int32"));

  EXPECT_EQ(attempt([](Target& target) { target.data = nullptr; }).kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(attempt([](Target& target) { target.strides = {0}; }).kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(attempt([](Target& target) { target.strides = {1, 1}; }).kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(attempt([](Target& target) { target.device = 0; }).kind, ErrorKind::kUnsupported);
}

TEST_F(ReadTest, NamesSeveralTargetsThatDoNotFitAndCountsTheRest) {
  write(test::state_of({}));
  std::vector<Target> targets(9);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i].name = "t" + std::to_string(i);
  const Status status = open().read(targets);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("'t0'"));
  EXPECT_THAT(status.error().message, HasSubstr("and 4 more"));
}

TEST_F(ReadTest, AcceptsAStateWithoutTensorsAndOneOfEmptyTensors) {
  write(test::state_of({}), 1);
  Checkpoint nothing = open();
  EXPECT_TRUE(nothing.tensors().empty());
  must(nothing.read({}));
  EXPECT_TRUE(must(nothing.verify()).damages.empty());

  const OwnedTensor empty = OwnedTensor::random("empty", DType::kF32, {0});
  write(test::state_of({empty}), 2);
  Checkpoint checkpoint = open();
  const Target target{.name = "empty", .dtype = DType::kF32, .shape = {0}};
  must(checkpoint.read({&target, 1}));
  EXPECT_TRUE(must(checkpoint.verify()).damages.empty());
}

TEST_F(ReadTest, NamesFileOffsetAndTensorOfADamagedBlock) {
  const std::vector<OwnedTensor> tensors{OwnedTensor::random("a", DType::kF32, {kMiB}),
                                         OwnedTensor::random("b", DType::kU8, {100})};
  const std::string directory = write(test::state_of(tensors));
  Checkpoint checkpoint = open();
  test::flip_bit(directory + "/rank-00000.safetensors", 2 * kMiB + 77, 3);
  Bytes memory;
  const Target damaged = target_for(tensors[0], memory);
  const Status status = checkpoint.read({&damaged, 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(status.error().path, directory + "/rank-00000.safetensors");
  EXPECT_THAT(status.error().message, HasSubstr("offset 2097152"));
  EXPECT_THAT(status.error().message, HasSubstr("tensor a"));

  const Target healthy = target_for(tensors[1], memory);
  must(checkpoint.read({&healthy, 1}));
  EXPECT_EQ(memory, tensors[1].bytes) << "the damage lies elsewhere";
}

}  // namespace read_test
}  // namespace
}  // namespace slackwater
