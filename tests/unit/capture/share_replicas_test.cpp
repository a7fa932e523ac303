#include "capture/share_replicas.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "capture/value_digests.hpp"
#include "tensor/box.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

using Shape = std::vector<std::int64_t>;

// Replica of the whole tensor, at a made-up address: nothing here looks at memory.
Tensor replica_of(const std::string& name, const Shape& shape, std::uintptr_t address = 1 << 20,
                  const std::string& group = "dp") {
  return {.name = name,
          .dtype = DType::kF32,
          .shape = shape,
          .data = reinterpret_cast<const void*>(address),
          .shard = Shard{.global_shape = shape, .offset = Shape(shape.size()), .replica_group = group}};
}

State state_of(std::vector<Tensor> tensors, std::uint32_t replica, std::uint32_t replicas) {
  for (Tensor& tensor : tensors) {
    tensor.shard->replica = replica;
    tensor.shard->replicas = replicas;
  }
  return {.tensors = std::move(tensors)};
}

std::vector<Tensor> share_of(State state) {
  ReplicaShares shares;
  EXPECT_TRUE(shares.study(state));
  return shares.take(std::move(state.tensors));
}
std::vector<Tensor> share_of(std::vector<Tensor> tensors, std::uint32_t replica, std::uint32_t replicas) {
  return share_of(state_of(std::move(tensors), replica, replicas));
}

std::uint64_t bytes_in(const std::vector<Tensor>& tensors) {
  std::uint64_t total = 0;
  for (const Tensor& tensor : tensors) total += *packed_bytes(tensor.dtype, tensor.shape);
  return total;
}

std::int64_t stride_of(const Tensor& tensor, std::size_t dimension) {
  if (!tensor.strides.empty()) return tensor.strides[dimension];
  std::int64_t stride = 1;
  for (std::size_t d = dimension + 1; d < tensor.shape.size(); ++d) stride *= tensor.shape[d];
  return stride;
}

// All shares together are the tensors given, each part at the address that belongs to it. Answers the bytes of each.
std::vector<std::uint64_t> check_shares(const std::vector<Tensor>& tensors, std::uint32_t replicas) {
  std::map<std::string, const Tensor*> whole;
  for (const Tensor& tensor : tensors) whole[tensor.name] = &tensor;
  std::map<std::string, std::vector<Box>> boxes;
  std::vector<std::uint64_t> sizes;
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    const std::vector<Tensor> own = share_of(tensors, replica, replicas);
    sizes.push_back(bytes_in(own));
    for (const Tensor& tensor : own) {
      boxes[tensor.name].push_back({tensor.shard->offset, tensor.shape});
      const Tensor& of = *whole.at(tensor.name);
      EXPECT_EQ(tensor.shard->global_shape, of.shard->global_shape);
      std::int64_t distance = 0;
      for (std::size_t d = 0; d < of.shape.size(); ++d)
        distance += (tensor.shard->offset[d] - of.shard->offset[d]) * stride_of(of, d) * 4;
      EXPECT_EQ(static_cast<const char*>(tensor.data) - static_cast<const char*>(of.data), distance) << tensor.name;
      EXPECT_EQ(*packed_bytes(tensor.dtype, tensor.shape) == 0, *packed_bytes(of.dtype, of.shape) == 0);
    }
  }
  for (const auto& [name, tensor] : whole) {
    std::vector<BoxView> views;
    std::vector<Box> moved = boxes[name];
    for (Box& box : moved) {  // into the box that was given
      for (std::size_t d = 0; d < box.offset.size(); ++d) box.offset[d] -= tensor->shard->offset[d];
      EXPECT_TRUE(fits(box.view(), tensor->shape)) << name;
    }
    for (const Box& box : moved) views.push_back(box.view());
    const auto fault = check_tiling(tensor->shape, views);
    EXPECT_FALSE(fault) << name << " over " << replicas;
  }
  return sizes;
}

std::vector<Tensor> gpt(std::int64_t layers, std::int64_t width) {
  std::vector<Tensor> tensors{replica_of("wte", {50257, width}), replica_of("wpe", {1024, width}, 1 << 30)};
  std::uintptr_t address = std::uintptr_t{1} << 40;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string prefix = "h." + std::to_string(i) + ".";
    for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{{"ln_1.weight", {width}},
                                                                                {"ln_1.bias", {width}},
                                                                                {"attn.qkv", {width, 3 * width}},
                                                                                {"attn.proj", {width, width}},
                                                                                {"mlp.fc", {width, 4 * width}},
                                                                                {"mlp.fc.bias", {4 * width}},
                                                                                {"mlp.proj", {4 * width, width}},
                                                                                {"step", {}}}) {
      tensors.push_back(replica_of(prefix + name, shape, address));
      address += *packed_bytes(DType::kF32, shape) + 64;
    }
  }
  return tensors;
}

TEST(ShareReplicas, EveryByteIsWrittenOnceAndAllWriteAboutAsMuch) {
  for (const std::uint32_t replicas : {2u, 3u, 4u, 8u, 64u}) {
    const std::vector<std::uint64_t> sizes = check_shares(gpt(12, 768), replicas);
    const auto [least, most] = std::ranges::minmax(sizes);
    EXPECT_LT(static_cast<double>(most - least), 0.05 * static_cast<double>(most)) << replicas;
  }
}

TEST(ShareReplicas, OneTensorLargerThanAllOthersIsSpreadToo) {
  const std::vector<std::uint64_t> sizes =
      check_shares({replica_of("huge", {1, 100'000, 3}), replica_of("small", {10}, 8)}, 7);
  const auto [least, most] = std::ranges::minmax(sizes);
  EXPECT_LT(most - least, 2 * 12u);
}

TEST(ShareReplicas, FewerRowsThanReplicasScalarsAndEmptyTensors) {
  check_shares({replica_of("two", {2, 1000})}, 16);
  check_shares({replica_of("one", {1, 1}), replica_of("scalar", {}, 8), replica_of("three", {3}, 64)}, 5);
  check_shares({replica_of("scalar", {})}, 3);
  const std::vector<Tensor> empty = share_of({replica_of("empty", {0, 4})}, 1, 2);
  ASSERT_EQ(empty.size(), 1u);  // it takes no bytes, and is what tells of the tensor
  EXPECT_EQ(empty[0].shape, (Shape{0, 4}));
}

TEST(ShareReplicas, StridedBoxesOfSeveralGroupsAreCutInPlace) {
  Tensor turned = replica_of("turned", {64, 10}, 1 << 20, "a");
  turned.strides = {1, 64};
  Tensor reversed = replica_of("reversed", {30, 4}, 1 << 22, "a");
  reversed.strides = {-4, 1};
  Tensor inner = replica_of("inner", {16, 8}, 1 << 24, "b");
  inner.shard->global_shape = {64, 64};
  inner.shard->offset = {32, 8};
  check_shares({turned, reversed, inner}, 4);
}

TEST(ShareReplicas, TheOrderOfTheStateDoesNotMatter) {
  std::vector<Tensor> tensors = gpt(4, 64);
  const std::vector<Tensor> first = share_of(tensors, 1, 3);
  std::mt19937 random(5);
  std::ranges::shuffle(tensors, random);
  std::vector<Tensor> second = share_of(tensors, 1, 3);
  ASSERT_EQ(first.size(), second.size());
  for (const Tensor& tensor : first) {
    const auto same = std::ranges::find(second, tensor.name, &Tensor::name);
    ASSERT_NE(same, second.end()) << tensor.name;
    EXPECT_EQ(same->shape, tensor.shape);
    EXPECT_EQ(same->shard->offset, tensor.shard->offset);
  }
}

TEST(ShareReplicas, TiedTensorsAreCutAlikeAndCountOnce) {
  const std::vector<Tensor> tensors{replica_of("head", {1000, 8}), replica_of("other", {1000, 8}, 1 << 28),
                                    replica_of("embedding", {1000, 8})};
  std::uint64_t stored = 0;
  for (std::uint32_t replica = 0; replica < 4; ++replica) {
    const std::vector<Tensor> own = share_of(tensors, replica, 4);
    const auto head = std::ranges::find(own, "head", &Tensor::name);
    const auto embedding = std::ranges::find(own, "embedding", &Tensor::name);
    ASSERT_EQ(head == own.end(), embedding == own.end());
    stored += bytes_in(own);
    if (head == own.end()) continue;
    stored -= *packed_bytes(head->dtype, head->shape);
    EXPECT_EQ(head->data, embedding->data);
    EXPECT_EQ(head->shape, embedding->shape);
    EXPECT_EQ(head->shard->offset, embedding->shard->offset);
  }
  EXPECT_EQ(stored, 2u * 1000 * 8 * 4);
}

// Wherever in the line the tensor lies that another is tied to.
TEST(ShareReplicas, ATiedTensorIsCutWhereTheOneItIsTiedToIsCut) {
  std::vector<Tensor> tensors = gpt(3, 16);
  for (std::size_t i = 0, count = tensors.size(); i < count; ++i) {
    tensors.push_back(tensors[i]);
    tensors.back().name = "tied." + tensors[i].name;
  }
  for (std::uint32_t replica = 0; replica < 3; ++replica) {
    const std::vector<Tensor> own = share_of(tensors, replica, 3);
    for (const Tensor& tensor : own) {
      if (!tensor.name.starts_with("tied.")) continue;
      const auto stored = std::ranges::find(own, tensor.name.substr(5), &Tensor::name);
      ASSERT_NE(stored, own.end()) << tensor.name << " is written by another rank than what it is tied to";
      EXPECT_EQ(stored->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(stored->shard->offset, tensor.shard->offset) << tensor.name;
    }
  }
}

TEST(ShareReplicas, EachEndIsMovedToTheNearestRow) {
  const std::vector<Tensor> tensors{replica_of("w", {10})};
  EXPECT_EQ(check_shares(tensors, 4), (std::vector<std::uint64_t>{12, 8, 12, 8}));
}

TEST(ShareReplicas, NoArithmeticOverflowsForTheLargestStates) {
  const std::vector<Tensor> tensors{replica_of("w", {std::int64_t{1} << 60})};
  for (const std::uint64_t size : check_shares(tensors, 64)) EXPECT_EQ(size, std::uint64_t{1} << 56);
}

TEST(ShareReplicas, WhatIsNoReplicaStaysAsItIs) {
  Tensor local = replica_of("local", {10});
  local.shard.reset();
  Tensor alone = replica_of("alone", {10});
  const std::vector<Tensor> own = share_of({.tensors = {local, alone}});
  ASSERT_EQ(own.size(), 2u);
  EXPECT_EQ(own[0].shape, (Shape{10}));
  EXPECT_EQ(own[1].shape, (Shape{10}));
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].data, b[i].data) << a[i].name;
    EXPECT_EQ(a[i].shape, b[i].shape) << a[i].name;
    EXPECT_EQ(a[i].shard->offset, b[i].shard->offset) << a[i].name;
  }
}

TEST(ShareReplicas, AStructureThatStaysIsNotWorkedOutAgain) {
  State state = state_of(gpt(4, 64), 1, 3);
  const std::vector<Tensor> expected = share_of(state);
  ReplicaShares shares;
  EXPECT_TRUE(shares.study(state));
  EXPECT_TRUE(shares.study(state)) << "nobody says that it is the same";
  state.structure = std::make_shared<int>();
  EXPECT_TRUE(shares.study(state));
  const std::uint64_t list = shares.list();
  for (int save = 0; save < 3; ++save) {
    EXPECT_FALSE(shares.study(state));
    EXPECT_EQ(shares.list(), list);
    expect_same(shares.take(state.tensors), expected);
  }
  State longer = state;  // somebody says that it is the same, and is wrong
  longer.tensors.push_back(replica_of("more", {10}, std::uintptr_t{1} << 45));
  longer.tensors.back().shard->replica = 1;
  longer.tensors.back().shard->replicas = 3;
  EXPECT_TRUE(shares.study(longer));
  expect_same(shares.take(longer.tensors), share_of(longer));

  state.structure = std::make_shared<int>();
  state.tensors.pop_back();
  EXPECT_TRUE(shares.study(state));
  EXPECT_NE(shares.list(), list);
  expect_same(shares.take(state.tensors), share_of(state));
}

TEST(ShareReplicas, TensorsThatMovedMayBeTiedOtherwiseAndAreSharedAnew) {
  State state = state_of({replica_of("head", {1000, 8}), replica_of("embedding", {1000, 8})}, 0, 4);
  state.structure = std::make_shared<int>();
  ReplicaShares shares;
  EXPECT_TRUE(shares.study(state));
  EXPECT_EQ(bytes_in(shares.take(state.tensors)), 2 * 1000 * 8 * 4 / 4);  // a quarter of both, which are one
  state.tensors[1].data = static_cast<const char*>(state.tensors[1].data) + (1 << 20);
  EXPECT_TRUE(shares.study(state));
  const std::vector<Tensor> own = shares.take(state.tensors);
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(bytes_in(own), 2 * 1000 * 8 * 4 / 4);  // half of one
  EXPECT_FALSE(shares.study(state));
}

TEST(DigestValues, EachTextUnderItsName) {
  const std::string tree = R"({"model":{"$t":"model.w"},"n":[1],"s":"1"})";
  const auto a = digest_values({{"model", R"({"$t":"model.w"})"}, {"n", "[1]"}, {"s", "1"}}, tree);
  ASSERT_EQ(a.size(), 3u);
  EXPECT_EQ(a.at("n"), digest128(std::string_view("[1]")));
  const auto b = digest_values({{"model", R"({"$t":"model.w"})"}, {"n", "[2]"}, {"s", "1"}}, tree);
  EXPECT_EQ(a.at("model"), b.at("model"));
  EXPECT_EQ(a.at("s"), b.at("s"));
  EXPECT_NE(a.at("n"), b.at("n"));
}

TEST(DigestValues, ATreeWithoutValuesIsOneWithoutANameWhateverItHolds) {
  EXPECT_TRUE(digest_values({}, "").empty());
  EXPECT_EQ(digest_values({{"kind", "true"}, {"b", "null"}}, "").size(), 2u);
  for (const char* text : {"plain words", "[1,2]", "{\"open\":", R"({"a" 1})", R"({"a":})", "7",
                           R"({"slackwater_tree":1,"state":{"a":1}})", R"({"slackwater_tree":1,"state":[1]})"}) {
    const auto digests = digest_values({}, text);
    ASSERT_EQ(digests.size(), 1u) << text;
    EXPECT_EQ(digests.at(""), digest128(std::string_view(text))) << text;
  }
}

}  // namespace
}  // namespace slackwater
