#include <string>

#include <gtest/gtest.h>

#include "layout/file_layout.hpp"

namespace slackwater {
namespace {

double memory[16];

State one(Tensor tensor) {
  State state;
  state.tensors.push_back(std::move(tensor));
  return state;
}

void expect_misuse(const State& state, std::string_view words) {
  const Status status = check_state(state);
  ASSERT_FALSE(status.has_value()) << "expected: " << words;
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
}

TEST(CheckState, OrdinaryStatesPass) {
  State state;
  state.tensors = {{"w", DType::kF32, {4, 4}, {4, 1}, memory},      {"transposed", DType::kF32, {4, 4}, {1, 4}, memory},
                   {"flipped", DType::kF32, {4}, {-1}, memory + 8}, {"scalar", DType::kF64, {}, {}, memory},
                   {"empty", DType::kF64, {0, 3}, {}, nullptr},     {"h\xc3\xa9", DType::kU8, {1}, {}, memory}};
  state.metadata = {{"note", "\xe2\x82\xac"}};
  EXPECT_TRUE(check_state(state).has_value());
  EXPECT_TRUE(check_state(State{}).has_value());
}

TEST(CheckState, NamesMustBeUsable) {
  expect_misuse(one({"", DType::kU8, {1}, {}, memory}), "empty name");
  expect_misuse(one({"__metadata__", DType::kU8, {1}, {}, memory}), "reserved");
  expect_misuse(one({kTreeTensorName, DType::kU8, {1}, {}, memory}), "reserved");
  expect_misuse(one({"\xff", DType::kU8, {1}, {}, memory}), "UTF-8");
  State twice;
  twice.tensors = {{"same", DType::kU8, {1}, {}, memory},
                   {"other", DType::kU8, {1}, {}, memory},
                   {"same", DType::kF32, {1}, {}, memory}};
  expect_misuse(twice, "two tensors are named 'same'");
}

TEST(CheckState, ShapesMustMakeSense) {
  expect_misuse(one({"w", DType::kU8, {2, -1}, {}, memory}), "negative dimension in its shape [2, -1]");
  expect_misuse(one({"w", DType::kU8, {2, 2}, {1}, memory}), "1 strides for 2 dimensions");
  expect_misuse(one({"w", DType::kF32, {std::int64_t{1} << 62}, {}, memory}), "larger than 2^62");
  expect_misuse(one({"w", DType::kU8, {3}, {std::int64_t{1} << 62}, memory}), "beyond the address space");
  expect_misuse(one({"w", DType::kF32, {2}, {}, nullptr}), "null pointer");
  State large;
  for (int i = 0; i < 5; ++i)
    large.tensors.push_back({"w" + std::to_string(i), DType::kU8, {std::int64_t{1} << 60}, {}, memory});
  expect_misuse(large, "the state is larger than 2^62 bytes");
}

TEST(CheckState, MetadataMustBeText) {
  State state;
  state.metadata = {{"pickle", "\x80\x04"}};
  expect_misuse(state, "'pickle'");
}

}  // namespace
}  // namespace slackwater
