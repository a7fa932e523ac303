#include <array>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "layout/file_layout.hpp"
#include "layout/safetensors_header.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

constexpr FileIdentity kIdentity{.step = 42, .attempt = 7, .rank = 3, .world = 4};
alignas(16) std::array<char, 4096> memory;

SnapshotLayout planned(const State& state, std::uint64_t max_header = kMaxHeaderBytes) {
  EXPECT_TRUE(check_state(state).has_value());
  auto layout = plan_layout(state, kIdentity, max_header);
  EXPECT_TRUE(layout.has_value()) << layout.error().to_string();
  return std::move(*layout);
}

std::string_view json_of(const FileLayout& part) { return std::string_view(part.header()).substr(8); }

ParsedHeader parsed(const FileLayout& part) {
  const auto length = header_bytes(std::string_view(part.header()).substr(0, 8), part.size_bytes(), "f");
  EXPECT_TRUE(length.has_value());
  EXPECT_EQ(*length + 8, part.header().size());
  auto header = parse_header(json_of(part), part.size_bytes(), "f");
  EXPECT_TRUE(header.has_value()) << header.error().to_string();
  return std::move(*header);
}

std::map<std::string, TensorInfo> by_name(const ParsedHeader& header) {
  std::map<std::string, TensorInfo> tensors;
  for (const TensorInfo& tensor : header.tensors) tensors.emplace(tensor.name, tensor);
  return tensors;
}

TEST(PlanLayout, EveryDTypeComesBackAlignedAndWithItsShape) {
  State state;
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
    const auto dtype = static_cast<DType>(i);
    state.tensors.push_back({std::string(dtype_name(dtype)), dtype, {3, 5}, {}, memory.data() + 16 * i});
    state.tensors.push_back({std::string(dtype_name(dtype)) + ".scalar", dtype, {}, {}, memory.data() + 1000 + 16 * i});
    state.tensors.push_back({std::string(dtype_name(dtype)) + ".empty", dtype, {0, 2}, {}, nullptr});
  }
  const SnapshotLayout layout = planned(state);
  ASSERT_EQ(layout.parts.size(), 1u);
  EXPECT_EQ(layout.parts[0].file_name(), "rank-00003.safetensors");
  EXPECT_EQ(layout.parts[0].header().size() % 4096, 0u);
  EXPECT_EQ(layout.size_bytes, layout.parts[0].size_bytes());
  const auto tensors = by_name(parsed(layout.parts[0]));
  ASSERT_EQ(tensors.size(), state.tensors.size());
  for (const Extent& extent : layout.parts[0].extents()) {
    const Tensor& given = state.tensors[extent.tensor];
    const TensorInfo& found = tensors.at(given.name);
    EXPECT_EQ(found.dtype, given.dtype) << given.name;
    EXPECT_EQ(found.shape, given.shape) << given.name;
    EXPECT_EQ(found.offset, extent.offset) << given.name;
    EXPECT_EQ(found.size_bytes, packed_bytes(given.dtype, given.shape)) << given.name;
    EXPECT_EQ(extent.offset % item_bytes(given.dtype), 0u) << given.name;
  }
}

TEST(PlanLayout, LargerItemsComeFirstElseTheOrderGiven) {
  State state;
  state.tensors = {{"b1", DType::kU8, {1}, {}, memory.data()},        {"d1", DType::kF64, {1}, {}, memory.data() + 8},
                   {"h1", DType::kBF16, {1}, {}, memory.data() + 16}, {"d2", DType::kI64, {1}, {}, memory.data() + 24},
                   {"b2", DType::kBool, {1}, {}, memory.data() + 32}, {"h2", DType::kF16, {1}, {}, memory.data() + 40}};
  std::string order;
  const SnapshotLayout layout = planned(state);
  for (const Extent& extent : layout.parts[0].extents()) order += state.tensors[extent.tensor].name + " ";
  EXPECT_EQ(order, "d1 d2 h1 h2 b1 b2 ");
}

TEST(PlanLayout, HeaderIsJsonThatAnotherParserReads) {
  State state;
  state.tensors = {{"we\"ird\\\n\x01\xc3\xa9", DType::kC128, {2}, {}, memory.data()}};
  state.tree = "{\"k\":\"v\\n\"}";
  state.metadata = {{"a\"", "b\\"}};
  const SnapshotLayout layout = planned(state);
  const auto json = nlohmann::json::parse(json_of(layout.parts[0]));
  const auto& metadata = json.at("__metadata__");
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("step"), "42");
  EXPECT_EQ(metadata.at("tree"), state.tree);
  for (const auto& [key, value] : metadata.items()) EXPECT_TRUE(value.is_string()) << key;
  const auto& tensor = json.at(state.tensors[0].name);
  EXPECT_EQ(tensor.at("dtype"), "F64");
  EXPECT_EQ(tensor.at("shape"), (std::vector<int>{2, 2}));
  EXPECT_EQ(nlohmann::json::parse(metadata.at("dtypes").get<std::string>()).at(state.tensors[0].name), "complex128");
  EXPECT_EQ(nlohmann::json::parse(metadata.at("metadata").get<std::string>()).at("a\""), "b\\");
}

TEST(PlanLayout, IdentityTreeAndMetadataComeBack) {
  State state;
  state.tensors = {{"w", DType::kF32, {4}, {}, memory.data()}};
  state.tree = "{\"quoted\":\"\\u00e9\"}";
  state.metadata = {{"loss", "0.5"}, {"note", "h\xc3\xa9 \"quoted\"\n"}};
  const ParsedHeader header = parsed(planned(state).parts[0]);
  EXPECT_TRUE(header.has_identity);
  EXPECT_EQ(header.identity.step, 42u);
  EXPECT_EQ(header.identity.attempt, 7u);
  EXPECT_EQ(header.identity.rank, 3u);
  EXPECT_EQ(header.identity.world, 4u);
  EXPECT_EQ(header.tree, state.tree);
  EXPECT_EQ(header.metadata, state.metadata);
}

TEST(PlanLayout, AStateWithoutTensorsIsAFile) {
  const SnapshotLayout layout = planned(State{});
  ASSERT_EQ(layout.parts.size(), 1u);
  EXPECT_EQ(layout.size_bytes, 4096u);
  EXPECT_TRUE(parsed(layout.parts[0]).tensors.empty());
}

TEST(PlanLayout, TiedTensorsAreStoredOnceUnderTheFirstName) {
  State state;
  char* data = memory.data();
  state.tensors = {{"embed", DType::kF32, {4, 2}, {}, data},
                   {"head", DType::kF32, {4, 2}, {2, 1}, data},        // contiguous either way
                   {"transposed", DType::kF32, {4, 2}, {1, 4}, data},  // other strides
                   {"bits", DType::kI32, {4, 2}, {}, data},            // other dtype
                   {"flat", DType::kF32, {8}, {}, data},               // other shape
                   {"elsewhere", DType::kF32, {4, 2}, {}, data, 0},    // other device
                   {"empty1", DType::kF32, {0}, {}, data},
                   {"empty2", DType::kF32, {0}, {}, data},
                   {"third", DType::kF32, {4, 2}, {}, data}};
  const SnapshotLayout layout = planned(state);
  EXPECT_EQ(layout.aliases, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 0}, {8, 0}}));
  EXPECT_EQ(layout.stored, (std::vector<std::uint32_t>{0, 2, 3, 4, 5, 6, 7}));
  const auto tensors = by_name(parsed(layout.parts[0]));
  ASSERT_EQ(tensors.size(), state.tensors.size());
  EXPECT_EQ(tensors.at("head").alias_of, "embed");
  EXPECT_EQ(tensors.at("third").alias_of, "embed");
  EXPECT_EQ(tensors.at("head").offset, tensors.at("embed").offset);
  EXPECT_EQ(tensors.at("head").shape, (std::vector<std::int64_t>{4, 2}));
  EXPECT_TRUE(tensors.at("embed").alias_of.empty());
  EXPECT_TRUE(tensors.at("flat").alias_of.empty());
}

TEST(PlanLayout, ManyViewsOfOnePointerAreStoredEach) {
  State state;
  for (int i = 1; i <= 3000; ++i)
    state.tensors.push_back({"v" + std::to_string(i), DType::kU8, {i}, {}, memory.data()});
  EXPECT_EQ(planned(state).stored.size(), 3000u);
}

TEST(PlanLayout, AHeaderAboveTheLimitIsSplitIntoParts) {
  State state;
  for (int i = 0; i < 400; ++i) {
    const DType dtype = i % 3 == 0 ? DType::kF64 : i % 3 == 1 ? DType::kC32 : DType::kU8;
    state.tensors.push_back({"tensor.number." + std::to_string(i), dtype, {1}, {}, memory.data() + 8 * i});
  }
  for (int i = 0; i < 50; ++i) {
    Tensor tied = state.tensors[i];
    tied.name = "tied.to." + std::to_string(i);
    state.tensors.push_back(tied);
  }
  state.tree = "{\"a tree\":1}";
  constexpr std::uint64_t kLimit = 3 * 4096;
  const SnapshotLayout layout = planned(state, kLimit);
  ASSERT_GT(layout.parts.size(), 2u);
  std::set<std::string> names;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const FileLayout& part = layout.parts[i];
    EXPECT_LE(part.header().size() - 8, kLimit);
    EXPECT_EQ(part.file_name(), i == 0 ? "rank-00003.safetensors" : "rank-00003-" + std::to_string(i) + ".safetensors");
    const ParsedHeader header = parsed(part);
    EXPECT_EQ(header.identity.step, 42u);
    EXPECT_EQ(header.tree, i == 0 ? state.tree : "");
    for (const TensorInfo& tensor : header.tensors) EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    total += part.size_bytes();
  }
  EXPECT_EQ(names.size(), state.tensors.size());
  EXPECT_EQ(layout.size_bytes, total);
}

TEST(PlanLayout, ALargeTreeBecomesATensorOfTheFirstPart) {
  State state;
  for (int i = 0; i < 200; ++i)
    state.tensors.push_back({"tensor.number." + std::to_string(i), DType::kF32, {1}, {}, memory.data() + 8 * i});
  state.tree = std::string(kMaxInlineTreeBytes + 1, 't');
  const SnapshotLayout layout = planned(state, 2 * 4096);
  ASSERT_GT(layout.parts.size(), 1u);
  const ParsedHeader header = parsed(layout.parts[0]);
  EXPECT_TRUE(header.tree.empty());
  const auto tensors = by_name(header);
  ASSERT_TRUE(tensors.contains(kTreeTensorName));
  EXPECT_EQ(tensors.at(kTreeTensorName).size_bytes, state.tree.size());
  EXPECT_EQ(layout.parts[0].extents().back().tensor, kTreeSource);
  EXPECT_FALSE(by_name(parsed(layout.parts[1])).contains(kTreeTensorName));
}

TEST(PlanLayout, ATreeThatJsonCannotHoldBecomesATensor) {
  State state;
  state.tree = "\xff\xfe binary";
  EXPECT_TRUE(by_name(parsed(planned(state).parts[0])).contains(kTreeTensorName));
}

TEST(PlanLayout, WhatCannotFitIsRefused) {
  State state;
  state.metadata = {{"note", std::string(5000, 'x')}};
  auto layout = plan_layout(state, kIdentity, 4096);
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(layout.error().message.find("metadata"), std::string::npos);

  state.metadata.clear();
  state.tensors = {{std::string(5000, 'n'), DType::kU8, {1}, {}, memory.data()}};
  layout = plan_layout(state, kIdentity, 4096);
  ASSERT_FALSE(layout.has_value());
  EXPECT_NE(layout.error().message.find("shorten"), std::string::npos) << layout.error().message;
  EXPECT_FALSE(plan_layout(State{}, kIdentity, 100).has_value());
}

}  // namespace
}  // namespace slackwater
