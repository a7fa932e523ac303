// Global tensors: saved in any boxes by any number of ranks, read back in any other boxes, from no more than what holds
// them.
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "support/effort.hpp"
#include "support/fault_file_system.hpp"
#include "support/global_tensor.hpp"
#include "support/temp_dir.hpp"
#include "support/write_ranks.hpp"

namespace slackwater {
namespace {

using test::Bytes;
using test::GlobalTensor;
using test::must;
using test::OwnedTensor;
using test::RankStates;
using test::RanksWriter;
using testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

constexpr std::byte kUntouched{0xEE};

// Memory of a target whose dimensions lie in any order and with gaps between the elements.
class StridedTarget {
 public:
  StridedTarget(const GlobalTensor& tensor, Box box, std::mt19937_64& random) : tensor_(tensor), box_(std::move(box)) {
    Sizes order(box_.shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    strides_.resize(order.size());
    std::int64_t stride = static_cast<std::int64_t>(1 + random() % 3);
    for (const std::int64_t d : order) {
      strides_[static_cast<std::size_t>(d)] = stride;
      stride *= box_.shape[static_cast<std::size_t>(d)] + static_cast<std::int64_t>(random() % 2);
    }
    memory_.assign(static_cast<std::size_t>(stride) * item(), kUntouched);
    if (random() % 2 == 0) {  // or packed
      strides_.clear();
      memory_.assign(tensor.cut(box_).size(), kUntouched);
    }
  }
  [[nodiscard]] Target target() {
    return {.name = tensor_.whole.name,
            .dtype = tensor_.whole.dtype,
            .shape = box_.shape,
            .strides = strides_,
            .data = memory_.data(),
            .shard = tensor_.shard(box_)};
  }
  // Every element is the saved one, every gap is as it was.
  void check() const { ASSERT_EQ(memory_, spread(tensor_.cut(box_))) << tensor_.whole.name << to_string(box_.view()); }

 private:
  [[nodiscard]] std::size_t item() const { return item_bytes(tensor_.whole.dtype); }
  [[nodiscard]] Bytes spread(const Bytes& packed) const {
    Bytes result(memory_.size(), kUntouched);
    if (strides_.empty()) {
      std::memcpy(result.data(), packed.data(), packed.size());
      return result;
    }
    const std::byte* element = packed.data();
    test::for_each_row(box_.shape, [&](const Sizes& index, std::int64_t length) {
      std::int64_t at = std::inner_product(index.begin(), index.end(), strides_.begin(), std::int64_t{0});
      for (std::int64_t i = 0; i < length; ++i, at += strides_.back(), element += item())
        std::memcpy(result.data() + static_cast<std::size_t>(at) * item(), element, item());
    });
    return result;
  }
  const GlobalTensor& tensor_;
  const Box box_;
  Sizes strides_;
  Bytes memory_;
};

class BoxesTest : public testing::Test {
 protected:
  [[nodiscard]] Checkpoint open(std::optional<Viewer> viewer = {}, FileSystem* fs = nullptr, ReadOptions options = {}) {
    return must(open_version({.fs = fs != nullptr ? fs : fs_.get(), .viewer = viewer}, root_,
                             must(list_versions(root_)).back(), std::move(options)));
  }
  // Four ranks hold four rows of 1 MiB each of "w"; each has "own" besides, and rank 0 the small "b".
  void write_rows(const RanksWriter::Change& change = {}) {
    RankStates ranks(4);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      ranks.add_box(rank, rows_, {{rank * 4, 0}, {4, 1 << 20}});
      ranks.add_local(rank, OwnedTensor::random("own", DType::kU8, {10 + rank}, rank));
    }
    ranks.add_box(0, bias_, {{0}, {5}});
    directory_of_step_ = RanksWriter(root_, 4).write(1, ranks.states(), change, {"rng"});
  }
  static Target whole(const OwnedTensor& tensor, Bytes& memory) {
    memory.assign(tensor.bytes.size(), kUntouched);
    return {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = memory.data()};
  }
  static Target part(const GlobalTensor& tensor, const Box& box, Bytes& memory) {
    memory.assign(tensor.cut(box).size(), kUntouched);
    return {.name = tensor.whole.name,
            .dtype = tensor.whole.dtype,
            .shape = box.shape,
            .data = memory.data(),
            .shard = tensor.shard(box)};
  }
  static std::vector<std::string> names(const Checkpoint& checkpoint) {
    std::vector<std::string> result;
    for (const TensorInfo& tensor : checkpoint.tensors()) result.push_back(tensor.name);
    return result;
  }

  test::TempDir directory_{test::TempDir::in_memory()};
  const std::string root_ = directory_ / "run";
  std::string directory_of_step_;
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  const GlobalTensor rows_{OwnedTensor::random("w", DType::kU8, {16, 1 << 20})};
  const GlobalTensor bias_{OwnedTensor::random("b", DType::kF32, {5})};
};

TEST_F(BoxesTest, AnyBoxesOfAnyNumberOfRanksComeBackAsAnyOthers) {
  constexpr std::uint64_t kRounds = test::kSanitized ? 10 : 40;
  std::mt19937_64 random(20);
  constexpr std::array kDTypes{DType::kU8, DType::kBF16, DType::kF32, DType::kI64, DType::kC128};
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    const auto saved_by = static_cast<std::uint32_t>(1 + random() % 5),
               read_by = static_cast<std::uint32_t>(1 + random() % 5);
    SCOPED_TRACE(fmt::format("round {}: saved by {} ranks, read by {}", round, saved_by, read_by));
    std::vector<GlobalTensor> tensors;
    for (int i = 0; i < 5; ++i) {
      Sizes shape(random() % 5);
      for (std::int64_t& extent : shape) extent = static_cast<std::int64_t>(1 + random() % 9);
      if (i == 0) shape = {40, 1 + static_cast<std::int64_t>(random() % 30'000)};  // of several blocks
      tensors.push_back(
          {OwnedTensor::random("t" + std::to_string(i), kDTypes[random() % kDTypes.size()], shape, round)});
    }
    RankStates ranks(saved_by);
    for (const GlobalTensor& tensor : tensors)
      for (const Box& box : test::random_tiling(tensor.whole.shape, 1 + random() % 12, random))
        ranks.add_box(static_cast<std::uint32_t>(random() % saved_by), tensor, box);
    RanksWriter(root_, saved_by).write(round, ranks.states());

    std::map<std::uint32_t, std::vector<StridedTarget>> wanted;
    for (const GlobalTensor& tensor : tensors)
      for (Box& box : test::random_tiling(tensor.whole.shape, 1 + random() % 12, random))
        wanted[static_cast<std::uint32_t>(random() % read_by)].emplace_back(tensor, std::move(box), random);
    for (auto& [rank, list] : wanted) {
      Checkpoint checkpoint = open(Viewer{rank, read_by});
      ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
      std::vector<Target> targets;
      for (StridedTarget& one : list) targets.push_back(one.target());
      must(checkpoint.read(targets));
      for (const StridedTarget& one : list) one.check();
    }
    Checkpoint all = open();
    for (const GlobalTensor& tensor : tensors) {
      Bytes memory;
      must(all.read(std::vector{whole(tensor.whole, memory)}));
      ASSERT_EQ(memory, tensor.whole.bytes);
    }
    EXPECT_TRUE(must(all.verify()).damages.empty());
  }
}

TEST_F(BoxesTest, ARankSeesGlobalTensorsAndItsOwnIfThereAreAsManyRanksAsBefore) {
  write_rows();
  const Checkpoint same = open(Viewer{.rank = 2, .world = 4});
  EXPECT_EQ(names(same), (std::vector<std::string>{"b", "own", "w"}));
  EXPECT_EQ(same.find("own")->shape, (Sizes{12}));
  EXPECT_EQ(same.tree(), "tree of rank 2");
  EXPECT_EQ(same.version().world, 4u);
  EXPECT_EQ(same.rank_local_values().size(), 1u);
  EXPECT_EQ(same.rank_local_values()[0], "rng");

  const Checkpoint other = open(Viewer{.rank = 2, .world = 3});
  EXPECT_EQ(names(other), (std::vector<std::string>{"b", "w"}));
  EXPECT_EQ(other.tree(), "tree of rank 0");
  EXPECT_EQ(other.find("w")->boxes.size(), 4u);
  EXPECT_TRUE(other.find("b")->boxes.empty()) << "one box that is the whole is no part";

  const Checkpoint all = open();
  EXPECT_EQ(names(all), (std::vector<std::string>{"b", "rank-00000/own", "rank-00001/own", "rank-00002/own",
                                                  "rank-00003/own", "w"}));
  EXPECT_EQ(all.tree(), "tree of rank 0");
  ASSERT_EQ(all.files().size(), 4u);
  EXPECT_EQ(all.files()[3].rank, 3u);
}

TEST_F(BoxesTest, WhatOneRankAloneSavedIsForAnyNumberOfRanks) {
  RankStates ranks(1);
  ranks.add_box(0, bias_, {{0}, {2}});
  ranks.add_box(0, bias_, {{2}, {3}});
  ranks.add_local(0, OwnedTensor::random("own", DType::kU8, {10}));
  const GlobalTensor empty{OwnedTensor::random("empty", DType::kF32, {0, 3})};
  ranks.add_box(0, empty, {{0, 0}, {0, 3}});
  RanksWriter(root_, 1).write(1, ranks.states());
  EXPECT_EQ(names(open(Viewer{.rank = 0, .world = 1})), (std::vector<std::string>{"b", "empty", "own"}));
  Checkpoint other = open(Viewer{.rank = 1, .world = 2});
  EXPECT_EQ(names(other), (std::vector<std::string>{"b", "empty", "own"}));
  Bytes memory, nothing;
  Target none = whole(empty.whole, nothing);
  must(other.read(std::vector{part(bias_, {{1}, {3}}, memory), none}));
  EXPECT_EQ(memory, bias_.cut({{1}, {3}}));
}

TEST_F(BoxesTest, OpensOnlyFilesThatHoldWantedBytes) {
  write_rows();
  test::FaultFileSystem fs(*fs_);
  for (const char* name : {"rank-00000.", "rank-00003."})
    fs.fail(test::FsCall::kOpen, EIO, {.times = test::kAlways, .path = name});
  Checkpoint checkpoint = open(Viewer{.rank = 1, .world = 4}, &fs);
  Bytes memory;
  const Box middle{{5, 100}, {6, 1000}};
  must(checkpoint.read(std::vector{part(rows_, middle, memory)}));
  EXPECT_EQ(memory, rows_.cut(middle));
  EXPECT_EQ(checkpoint.read(std::vector{part(rows_, {{3, 0}, {2, 10}}, memory)}).error().kind, ErrorKind::kIo);
}

TEST_F(BoxesTest, ReadsOnlyBlocksThatHoldWantedBytes) {
  write_rows();
  test::FaultFileSystem fs(*fs_);
  Checkpoint checkpoint = open({}, &fs);
  Bytes memory;
  const auto reads = [&](const Box& box) {
    const std::uint64_t before = fs.count(test::FsCall::kQueueRead);
    must(checkpoint.read(std::vector{part(rows_, box, memory)}));
    EXPECT_EQ(memory, rows_.cut(box));
    return fs.count(test::FsCall::kQueueRead) - before;
  };
  // A row begins 4 KiB into its block, behind the header; reads are of two blocks at most.
  EXPECT_EQ(reads({{1, 0}, {1, 100}}), 1u);
  EXPECT_EQ(reads({{0, 0}, {16, 100}}), 8u) << "four rows of each file";
  EXPECT_EQ(reads({{0, 0}, {1, 100}}), 1u);
  EXPECT_EQ(reads({{4, 1 << 19}, {1, 1 << 19}}), 1u) << "two blocks that lie together";
}

TEST_F(BoxesTest, ReadsTheBlocksBetweenTwoWantedRowsOnlyIfTheyAreWanted) {
  const GlobalTensor tall{OwnedTensor::random("tall", DType::kU8, {3, 2, 2 << 20})};
  RankStates ranks(1);
  ranks.add_box(0, tall, {{0, 0, 0}, tall.whole.shape});
  RanksWriter(root_, 1).write(1, ranks.states());
  test::FaultFileSystem fs(*fs_);
  Checkpoint checkpoint = open({}, &fs);
  Bytes memory;
  const Box box{{0, 1, 5}, {3, 1, 90}};  // 4 MiB apart
  must(checkpoint.read(std::vector{part(tall, box, memory)}));
  EXPECT_EQ(memory, tall.cut(box));
  EXPECT_EQ(fs.count(test::FsCall::kQueueRead), 3u);
}

TEST_F(BoxesTest, OfOneTensorServeManyTargetsThatOverlap) {
  std::mt19937_64 random(3);
  const GlobalTensor tensor{OwnedTensor::random("t", DType::kI16, {60, 70})};
  RankStates ranks(3);
  for (const Box& box : test::random_tiling(tensor.whole.shape, 100, random))
    ranks.add_box(static_cast<std::uint32_t>(random() % 3), tensor, box);
  RanksWriter(root_, 3).write(1, ranks.states());
  std::vector<Box> boxes;
  std::vector<Bytes> memory(50);
  std::vector<Target> targets;
  for (Bytes& bytes : memory) {
    const auto top = static_cast<std::int64_t>(random() % 60), left = static_cast<std::int64_t>(random() % 70);
    boxes.push_back({{top, left},
                     {static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(61 - top)),
                      static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(71 - left))}});
    targets.push_back(part(tensor, boxes.back(), bytes));
  }
  must(open().read(targets));
  for (std::size_t i = 0; i < boxes.size(); ++i)
    EXPECT_EQ(memory[i], tensor.cut(boxes[i])) << to_string(boxes[i].view());
}

TEST_F(BoxesTest, TiedTensorsFollow) {
  RankStates ranks(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.add_box(rank, bias_, rank == 0 ? Box{{0}, {2}} : Box{{2}, {3}});
    Tensor tied = ranks.states()[rank].tensors.back();
    tied.name = "tied";
    ranks.states()[rank].tensors.push_back(std::move(tied));
  }
  RanksWriter(root_, 2).write(1, ranks.states());
  Checkpoint checkpoint = open(Viewer{.rank = 0, .world = 1});
  ASSERT_NE(checkpoint.find("tied"), nullptr);
  EXPECT_EQ(checkpoint.find("tied")->alias_of, "b");
  Bytes memory, tied;
  Target target = part(bias_, {{1}, {3}}, tied);
  target.name = "tied";
  must(checkpoint.read(std::vector{target, whole(bias_.whole, memory)}));
  EXPECT_EQ(tied, bias_.cut({{1}, {3}}));
  EXPECT_EQ(memory, bias_.whole.bytes);
}

TEST_F(BoxesTest, ThatDoNotFitWhatWasSavedAreRefusedByName) {
  write_rows();
  Checkpoint checkpoint = open();
  Bytes memory;
  Target target = part(rows_, {{0, 0}, {1, 8}}, memory);
  target.shard->global_shape = {16, 8};
  const Error shape = checkpoint.read(std::vector{target}).error();
  EXPECT_EQ(shape.kind, ErrorKind::kMismatch);
  EXPECT_THAT(shape.message, HasSubstr("'w' was saved as uint8[16, 1048576], but is wanted as a box of uint8[16, 8]"));
  target = part(rows_, {{0, 0}, {1, 8}}, memory);
  target.dtype = DType::kI8;
  EXPECT_EQ(checkpoint.read(std::vector{target}).error().kind, ErrorKind::kMismatch);
  target = part(rows_, {{0, 0}, {1, 8}}, memory);
  target.shard->offset = {16, 0};
  const Error outside = checkpoint.read(std::vector{target}).error();
  EXPECT_EQ(outside.kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(outside.message, HasSubstr("shape [1, 8] at [16, 0], which does not lie in [16, 1048576]"));
  target.shard->offset = {0};
  EXPECT_EQ(checkpoint.read(std::vector{target}).error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(BoxesTest, ADamagedBlockHurtsOnlyThoseWhoWantIt) {
  write_rows();
  test::flip_bit(directory_of_step_ + "/rank-00002.safetensors", (2u << 20) + 7,
                 3);  // in row 9
  Checkpoint checkpoint = open(Viewer{.rank = 2, .world = 4});
  Bytes memory;
  must(checkpoint.read(std::vector{part(rows_, {{0, 0}, {8, 1 << 20}}, memory)}));
  const Error damage = checkpoint.read(std::vector{part(rows_, {{9, 1 << 19}, {2, 1 << 19}}, memory)}).error();
  EXPECT_EQ(damage.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(damage.to_string(), testing::AllOf(HasSubstr("tensor w"), HasSubstr("rank-00002.safetensors")));
}

TEST_F(BoxesTest, AnIndexThatIsGoneOrDamagedCostsTimeAndNotTheVersion) {
  write_rows();
  const std::string index = directory_of_step_ + "/index";
  for (const bool gone : {false, true}) {
    if (gone)
      std::filesystem::remove(index);
    else
      test::flip_bit(index, 100, 2);
    std::string warned;
    ReadOptions options;
    options.log = [&](LogLevel, std::string_view line) { warned += line; };
    for (const std::optional<Viewer> viewer :
         {std::optional<Viewer>(), std::optional(Viewer{2, 4}), std::optional(Viewer{0, 9})}) {
      Checkpoint checkpoint = open(viewer, nullptr, options);
      EXPECT_EQ(names(checkpoint).size(), !viewer ? 6u : viewer->world == 4 ? 3u : 2u);
      EXPECT_EQ(checkpoint.tree(), viewer && viewer->world == 4 ? "tree of rank 2" : "tree of rank 0");
      Bytes memory;
      const Box middle{{5, 100}, {6, 1000}};
      must(checkpoint.read(std::vector{part(rows_, middle, memory)}));
      EXPECT_EQ(memory, rows_.cut(middle));
    }
    EXPECT_THAT(warned, HasSubstr("the index cannot be used"));
  }
}

}  // namespace
}  // namespace slackwater
