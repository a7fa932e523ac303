// Boxes of global tensors: what a state may say about them, how files store them, and what a hostile header cannot do.
#include <array>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "layout/file_layout.hpp"
#include "layout/safetensors_header.hpp"
#include "layout/tied_table.hpp"

namespace slackwater {
namespace {

using Shape = std::vector<std::int64_t>;
alignas(16) std::array<char, 4096> bytes_of_boxes;

Tensor box(const std::string& name, const Shape& global, const Shape& offset, const Shape& shape, std::size_t at = 0) {
  return {.name = name,
          .dtype = DType::kF32,
          .shape = shape,
          .data = bytes_of_boxes.data() + at,
          .shard = Shard{.global_shape = global, .offset = offset}};
}

Tensor replica(Tensor tensor, const std::string& group, std::uint32_t of, std::uint32_t replicas) {
  tensor.shard->replica_group = group;
  tensor.shard->replica = of;
  tensor.shard->replicas = replicas;
  return tensor;
}

void expect_misuse(std::vector<Tensor> tensors, std::string_view words) {
  const Status status = check_state(State{.tensors = std::move(tensors)});
  ASSERT_FALSE(status) << words;
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
}

TEST(CheckShards, SeveralBoxesOfOneTensorArePossible) {
  const Status status = check_state(State{
      .tensors = {box("w", {8, 2}, {0, 0}, {2, 2}), box("w", {8, 2}, {4, 0}, {2, 2}), box("w", {8, 2}, {6, 0}, {0, 2}),
                  box("w", {8, 2}, {6, 0}, {0, 2}), replica(box("v", {4}, {0}, {4}), "dp", 1, 2), box("s", {}, {}, {}),
                  box("e", {0, 4}, {0, 0}, {0, 4})}});
  EXPECT_TRUE(status) << status.error().to_string();
}

TEST(CheckShards, MisuseIsNamed) {
  expect_misuse({box("w", {8, 2}, {7, 0}, {2, 2})}, "does not lie in its global shape [8, 2]");
  expect_misuse({box("w", {8, 2}, {-1, 0}, {2, 2})}, "does not lie in its global shape");
  expect_misuse({box("w", {8}, {0, 0}, {2, 2})}, "does not lie in its global shape");
  expect_misuse({box("w", {8, 2}, {0}, {2, 2})}, "does not lie in its global shape");
  expect_misuse({box("w", {1 << 30, 1 << 30, 1 << 10}, {0, 0, 0}, {1, 1, 1})}, "more than 2^62 bytes");
  expect_misuse({box("w", {-8, 2}, {0, 0}, {2, 2})}, "a negative dimension");
  expect_misuse({box("w", {8}, {0}, {2}), box("w", {8}, {0}, {4})}, "begin at offset [0]");
  expect_misuse({box("w", {8}, {0}, {2}), box("w", {9}, {2}, {2})}, "disagree about the dtype or the shape");
  Tensor local = box("w", {8}, {0}, {2});
  local.shard.reset();
  expect_misuse({box("w", {8}, {0}, {2}), local}, "both a global tensor and a tensor of this rank alone");
  expect_misuse({local, local}, "two tensors are named 'w'");
  expect_misuse({box("rank-00003/w", {8}, {0}, {2})}, "is reserved for a tensor of one rank");
  expect_misuse({replica(box("w", {8}, {0}, {2}), "dp", 2, 2)}, "is replica 2 of 2");
  expect_misuse({replica(box("w", {8}, {0}, {2}), "dp", 0, 0)}, "is replica 0 of 0");
  expect_misuse({replica(box("w", {8}, {0}, {2}), "", 0, 2)}, "replicas without a group");
  expect_misuse({replica(box("w", {8}, {0}, {2}), "dp", 0, 2), replica(box("v", {8}, {0}, {2}), "dp", 1, 2)},
                "replica 0 of 2 of group 'dp', but replica 1 of 2 for tensor 'v'");
}

SnapshotLayout plan_boxes(const State& state) {
  EXPECT_TRUE(check_state(state));
  auto layout = plan_layout(state, {.step = 1, .attempt = 1, .rank = 3, .world = 4});
  EXPECT_TRUE(layout) << layout.error().to_string();
  return std::move(*layout);
}

ParsedHeader parse_part(const FileLayout& part) {
  auto header = parse_header(std::string_view(part.header()).substr(8), part.size_bytes(), "f");
  EXPECT_TRUE(header) << header.error().to_string();
  return std::move(*header);
}

TEST(StoreShards, EntriesAreNamedByTheirBoxAndComeBackAsBoxes) {
  Tensor complex = box("c", {4}, {2}, {2}, 256);
  complex.dtype = DType::kC128;
  const State state{.tensors = {box("w", {8, 2}, {2, 0}, {4, 2}), box("w", {8, 2}, {7, 0}, {1, 2}, 64),
                                box("whole \"x\"", {3}, {0}, {3}, 128), complex, box("w", {8, 2}, {6, 0}, {0, 2})}};
  const SnapshotLayout layout = plan_boxes(state);
  EXPECT_EQ(layout.stored.size(), 4u);
  const FileLayout& part = layout.parts.at(0);
  const auto json = nlohmann::json::parse(part.header().substr(8));
  EXPECT_TRUE(json.contains("w[2:6,0:2]"));
  EXPECT_TRUE(json.contains("w[7:8,0:2]"));
  EXPECT_TRUE(json.contains("whole \"x\""));
  EXPECT_EQ(json["c[2:4]"]["shape"], (nlohmann::json{2, 2}));
  const auto shards = nlohmann::json::parse(json["__metadata__"]["shards"].get<std::string>());
  EXPECT_EQ(shards.size(), 4u);
  EXPECT_EQ(shards["w[7:8,0:2]"], (nlohmann::json{{"of", "w"}, {"shape", {8, 2}}, {"offset", {7, 0}}}));

  const ParsedHeader header = parse_part(part);
  ASSERT_EQ(header.tensors.size(), 4u);
  for (const TensorInfo& tensor : header.tensors) {
    ASSERT_EQ(tensor.boxes.size(), 1u) << tensor.name;
    EXPECT_EQ(tensor.boxes[0].file_offset, tensor.offset);
    EXPECT_EQ(tensor.boxes[0].size_bytes, tensor.size_bytes);
    EXPECT_GE(tensor.offset, header.data_offset);
  }
  const TensorInfo& last = header.tensors[2];
  EXPECT_EQ(last.name, "w");
  EXPECT_EQ(last.shape, (Shape{8, 2}));
  EXPECT_EQ(last.boxes[0].offset, (Shape{7, 0}));
  EXPECT_EQ(last.boxes[0].shape, (Shape{1, 2}));
  EXPECT_EQ(header.tensors[0].dtype, DType::kC128);  // larger items come first
  EXPECT_EQ(header.tensors[0].shape, (Shape{4}));
}

TEST(StoreShards, PlainTensorsAreStoredAsBefore) {
  Tensor local = box("w", {8}, {0}, {2});
  local.shard.reset();
  const SnapshotLayout layout = plan_boxes(State{.tensors = {local}});
  EXPECT_EQ(layout.parts[0].header().find("shards"), std::string::npos);
  EXPECT_TRUE(parse_part(layout.parts[0]).tensors[0].boxes.empty());
}

TEST(StoreShards, TiedTensorsAreStoredOnceBoxByBox) {
  const State state{.tensors = {box("a", {8}, {0}, {2}), box("a", {8}, {4}, {2}, 64), box("b", {8}, {0}, {2}),
                                box("b", {8}, {4}, {2}, 64)}};
  const SnapshotLayout layout = plan_boxes(state);
  EXPECT_EQ(layout.stored, (std::vector<std::uint32_t>{0, 1}));
  const ParsedHeader header = parse_part(layout.parts[0]);
  ASSERT_EQ(header.tensors.size(), 4u);
  for (std::size_t i = 2; i < 4; ++i) {
    EXPECT_EQ(header.tensors[i].name, "b");
    EXPECT_EQ(header.tensors[i].alias_of, "a");
    EXPECT_EQ(header.tensors[i].offset, header.tensors[i - 2].offset);
    EXPECT_EQ(header.tensors[i].boxes.at(0).offset, header.tensors[i - 2].boxes.at(0).offset);
  }
}

TEST(StoreShards, TensorsTiedOnlyInPartAreStoredTwice) {
  // Another offset, another number of boxes, another box, a tensor of this rank alone: readers take none of them as
  // tied.
  EXPECT_EQ(plan_boxes(State{.tensors = {box("a", {8}, {0}, {2}), box("b", {8}, {2}, {2})}}).stored.size(), 2u);
  EXPECT_EQ(
      plan_boxes(State{.tensors = {box("a", {8}, {0}, {2}), box("a", {8}, {4}, {2}, 64), box("b", {8}, {0}, {2})}})
          .stored.size(),
      3u);
  EXPECT_EQ(
      plan_boxes(State{.tensors = {box("a", {8}, {0}, {2}), box("b", {8}, {0}, {2}), box("b", {8}, {4}, {2}, 64)}})
          .stored.size(),
      3u);
  Tensor local = box("l", {8}, {0}, {8});
  local.shard.reset();
  EXPECT_EQ(plan_boxes(State{.tensors = {local, box("a", {8}, {0}, {8})}}).stored.size(), 2u);
}

TEST(StoreShards, ATensorThatIsNamedLikeABoxIsRefused) {
  Tensor local = box("w[0:2]", {2}, {0}, {2}, 64);
  local.shard.reset();
  const State state{.tensors = {box("w", {8}, {0}, {2}), local}};
  ASSERT_TRUE(check_state(state));
  const auto layout = plan_layout(state, {});
  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message.find("both called 'w[0:2]'"), std::string::npos) << layout.error().message;
}

// A file with the F32 entries w[0:2] and v of two elements each, and this metadata "shards".
Result<ParsedHeader> parse_with(const nlohmann::json& shards, const nlohmann::json& aliases = nlohmann::json::object(),
                                const std::string& first = "w[0:2]") {
  const nlohmann::json header = {{"__metadata__",
                                  {{"format", "pt"},
                                   {"slackwater", "1"},
                                   {"step", "5"},
                                   {"attempt", "1"},
                                   {"rank", "0"},
                                   {"world", "2"},
                                   {"aliases", aliases.dump()},
                                   {"shards", shards.is_string() ? shards.get<std::string>() : shards.dump()}}},
                                 {first, {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}},
                                 {"v", {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {8, 16}}}}};
  const std::string text = header.dump();
  return parse_header(text, 8 + text.size() + 16, "f");
}

// In the order in which they are written.
std::string member(const std::string& entry, const std::string& of, const std::string& shape,
                   const std::string& offset) {
  return "\"" + entry + R"(":{"of":")" + of + R"(","shape":)" + shape + R"(,"offset":)" + offset + "}";
}

void expect_damage(const std::string& shards, std::string_view words,
                   const nlohmann::json& aliases = nlohmann::json::object()) {
  const auto header = parse_with("{" + shards + "}", aliases);
  ASSERT_FALSE(header) << shards;
  EXPECT_EQ(header.error().kind, ErrorKind::kCorrupt);
  EXPECT_NE(header.error().message.find(words), std::string::npos) << header.error().message;
}

TEST(ParseShards, WhatCannotBeIsRefused) {
  const std::string good = member("w[0:2]", "w", "[4]", "[0]");
  ASSERT_TRUE(parse_with("{" + good + "}")) << parse_with("{" + good + "}").error().message;
  expect_damage(member("w[0:2]", "w", "[1]", "[0]"), "it has the box 'w[0:2]'");      // larger than its tensor
  expect_damage(member("w[0:2]", "w", "[4]", "[3]"), "it has the box 'w[0:2]'");      // beyond it
  expect_damage(member("w[0:2]", "w", "[4]", "[1]"), "it has the box 'w[0:2]'");      // not what its name says
  expect_damage(member("w[0:2]", "x", "[4]", "[0]"), "it has the box 'w[0:2]'");      // nor here
  expect_damage(member("v", "v", "[4]", "[0]"), "it has the box 'v'");                // a part called as the whole
  expect_damage(member("w[0:2]", "w", "[4,1]", "[0,0]"), "it has the box 'w[0:2]'");  // other dimensions
  expect_damage(member("w[0:2]", "w", "[4]", "[]"), "it has the box 'w[0:2]'");
  expect_damage(member("w[0:2]", "", "[4]", "[0]"), "of no tensor");
  expect_damage(member("w[0:2]", "w", "[9223372036854775807]", "[0]"), "it has the box");  // more than 2^63 bytes
  expect_damage(member("w[0:2]", "w", "[4]", "[-1]"), "whole number");
  expect_damage(member("x", "x", "[4]", "[0]"), "a box 'x' that it does not hold");
  expect_damage(good + "," + good, "twice");
  expect_damage(good + "," + member("v", "w", "[2]", "[0]"), "it has the box 'v'");
  expect_damage(R"("w[0:2]":{"of":"w","shape":[4]})", "lacks of, shape or offset");
  expect_damage(R"("w[0:2]":{"of":"w","shape":[4],"offset":[0],"offset":[0]})", "twice or out of place");
  expect_damage(R"("w[0:2]":7)", "an object is expected");
  expect_damage(R"("w[0:2]")", "a colon");
}

TEST(ParseShards, BoxesOfOneTensorMustAgree) {
  // A tensor of one rank with the name of a global tensor.
  const auto taken = parse_with("{" + member("v[0:2]", "v", "[4]", "[0]") + "}", nlohmann::json::object(), "v[0:2]");
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("boxes of the tensor 'v' that disagree"), std::string::npos);
  const std::string both = member("w[0:2]", "w", "[4]", "[0]") + ",";
  // An alias must lie where its tensor does.
  expect_damage(both + member("u[0:2]", "u", "[5]", "[0]"), "ties 'u[0:2]' to 'w[0:2]'", {{"u[0:2]", "w[0:2]"}});
  expect_damage(both + member("u[1:3]", "u", "[4]", "[1]"), "ties 'u[1:3]' to 'w[0:2]'", {{"u[1:3]", "w[0:2]"}});
  expect_damage(member("w[0:2]", "w", "[4]", "[0]"), "ties 'u' to 'w[0:2]'", {{"u", "w[0:2]"}});
  const auto good = parse_with("{" + both + member("u[0:2]", "u", "[4]", "[0]") + "}", {{"u[0:2]", "w[0:2]"}});
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->tensors.back().alias_of, "w");
}

// A tensor that does not fit into one file goes to the next one, with all of its metadata.
TEST(LayoutOfShards, EachHeaderListsOnlyTheBoxesOfItsFile) {
  State state;
  for (std::int64_t i = 0; i < 64; ++i) {
    state.tensors.push_back(
        box("layer." + std::to_string(i), {64, 4}, {i, 0}, {1, 4}, static_cast<std::size_t>(i) * 16));
  }
  const auto layout = plan_layout(state, {.step = 1, .attempt = 1, .rank = 0, .world = 1}, 4096);
  ASSERT_TRUE(layout) << layout.error().to_string();
  ASSERT_GT(layout->parts.size(), 1u);
  std::size_t boxes = 0;
  for (const FileLayout& part : layout->parts) {
    const auto header = parse_header(std::string_view(part.header()).substr(8), part.size_bytes(), part.file_name());
    ASSERT_TRUE(header) << header.error().to_string();
    boxes += header->tensors.size();
    for (const TensorInfo& tensor : header->tensors) EXPECT_EQ(tensor.boxes.size(), 1u) << tensor.name;
  }
  EXPECT_EQ(boxes, 64u);
}

TEST(TiedTensors, AreTheSameBytesOfTheSameKindAtTheSamePlace) {
  const Tensor one = replica(box("a", {8, 2}, {2, 0}, {2, 2}), "dp", 0, 2);
  EXPECT_TRUE(tied(one, replica(box("b", {8, 2}, {2, 0}, {2, 2}), "dp", 0, 2)));
  const auto differs = [&](const auto& change) {
    Tensor other = one;
    change(other);
    return !tied(one, other) && !tied(other, one);
  };
  EXPECT_TRUE(differs([](Tensor& t) { t.data = bytes_of_boxes.data() + 16; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.dtype = DType::kI32; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.device = 1; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shape = {4, 1}; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.strides = {1, 2}; }));
  EXPECT_FALSE(differs([](Tensor& t) { t.strides = {2, 1}; })) << "none, and those of a packed tensor, are the same";
  EXPECT_TRUE(differs([](Tensor& t) { t.shard.reset(); }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shard->offset = {4, 0}; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shard->global_shape = {9, 2}; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shard->replica_group = "other"; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shard->replica = 1; }));
  EXPECT_TRUE(differs([](Tensor& t) { t.shard->replicas = 3; }));
}

}  // namespace
}  // namespace slackwater
