#include "capture/replica_samples.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "capture/value_digests.hpp"
#include "support/bytes.hpp"

namespace slackwater::test {
namespace {

using Shape = std::vector<std::int64_t>;

Tensor replica_of(const std::string& name, const Bytes& bytes, Shape shape, Shape strides = {}) {
  Tensor tensor{.name = name, .dtype = DType::kU8, .shape = shape, .strides = std::move(strides), .data = bytes.data()};
  tensor.shard = Shard{.global_shape = shape, .offset = Shape(shape.size()), .replica_group = "dp", .replicas = 2};
  return tensor;
}
Tensor replica_of(const std::string& name, const Bytes& bytes) {
  return replica_of(name, bytes, {static_cast<std::int64_t>(bytes.size())});
}

class ReplicaSamplerTest : public ::testing::Test {
 protected:
  ReplicaSamples look(const State& state, std::uint64_t step) {
    ReplicaSampler fresh;
    return look(state, step, fresh);
  }
  ReplicaSamples look(const State& state, std::uint64_t step, ReplicaSampler& sampler) {
    auto seen = sampler.sample(state, devices_, step);
    if (!seen) throw std::runtime_error(seen.error().to_string());
    auto samples = seen->samples(3);
    if (!samples) throw std::runtime_error(samples.error().to_string());
    EXPECT_EQ(samples->size(), 1u);
    return samples->at("dp");
  }
  static Bytes patterned(std::size_t size, std::uint64_t seed) {
    Bytes bytes(size);
    fill_pattern(bytes, seed);
    return bytes;
  }

  Devices devices_{"none"};
};

TEST_F(ReplicaSamplerTest, SeesTheSameWhateverTheOrderOfTheStateAndTheStridesOfTheTensors) {
  const Bytes w = patterned(400 * 300, 1);
  const Bytes b = patterned(30 * 40, 2);
  Bytes turned_w(w.size()), turned_b(b.size());
  for (std::size_t i = 0; i < 400; ++i) {
    for (std::size_t j = 0; j < 300; ++j) turned_w[j * 400 + i] = w[i * 300 + j];
  }
  for (std::size_t i = 0; i < 30; ++i) {
    for (std::size_t j = 0; j < 40; ++j) turned_b[j * 30 + i] = b[i * 40 + j];
  }
  const State packed{.tensors = {replica_of("w", w, {400, 300}), replica_of("b", b, {30, 40})}};
  const State strided{
      .tensors = {replica_of("b", turned_b, {30, 40}, {1, 30}), replica_of("w", turned_w, {400, 300}, {1, 400})}};
  for (std::uint64_t step = 1; step < 20; ++step) {
    const ReplicaSamples a = look(packed, step);
    const ReplicaSamples other = look(strided, step);
    EXPECT_EQ(a.list, other.list);
    EXPECT_EQ(a.all, other.all);
    EXPECT_EQ(a.some, other.some);
    EXPECT_EQ(a.ranks, std::vector<std::uint32_t>{3});
    EXPECT_EQ(a.count, 2u);
  }
}

TEST_F(ReplicaSamplerTest, LooksAtOtherPlacesAtEachStepAndInTheEndEverywhere) {
  const Bytes zeros(100'000);
  for (std::size_t tenth = 0; tenth < 10; ++tenth) {
    Bytes other = zeros;
    std::fill_n(other.begin() + static_cast<std::ptrdiff_t>(tenth * 10'000 + 4'000), 1'000, std::byte{1});
    unsigned found = 0;
    for (std::uint64_t step = 1; step <= 200; ++step) {
      const State a{.tensors = {replica_of("w", zeros)}};
      const State b{.tensors = {replica_of("w", other)}};
      found += look(a, step).all != look(b, step).all ? 1 : 0;
    }
    EXPECT_GT(found, 4u) << "a hundredth of it: one step in 12.5 sees it";
    EXPECT_LT(found, 50u);
  }
}

TEST_F(ReplicaSamplerTest, ADifferenceOfAnEighthInOnePieceIsSeenAtEveryStep) {
  for (const std::size_t size : {65'537, 100'003, 1'000'000}) {
    const Bytes zeros(size);
    const std::size_t piece = (size + 7) / 8 + 8;
    for (const std::size_t begin : {std::size_t{0}, size / 3, size - piece}) {
      Bytes other = zeros;
      std::fill_n(other.begin() + static_cast<std::ptrdiff_t>(begin), piece, std::byte{1});
      for (std::uint64_t step = 1; step <= 50; ++step) {
        EXPECT_NE(look({.tensors = {replica_of("w", zeros)}}, step).all,
                  look({.tensors = {replica_of("w", other)}}, step).all)
            << size << " " << begin << " " << step;
      }
    }
  }
}

// 64 tensors of 64 KiB: a quarter of them may be read whole at a step, and the others have their turn later.
TEST_F(ReplicaSamplerTest, SmallTensorsThatAreTooManyTakeTurns) {
  const Bytes zeros(kWholeTensorBytes);
  Bytes other = zeros;
  other[12'345] = std::byte{1};
  State a, b;
  for (int i = 0; i < 64; ++i) {
    a.tensors.push_back(replica_of("t" + std::to_string(i), zeros));
    b.tensors.push_back(replica_of("t" + std::to_string(i), i == 17 ? other : zeros));
  }
  unsigned found = 0;
  for (std::uint64_t step = 1; step <= 100; ++step) found += look(a, step).all != look(b, step).all ? 1 : 0;
  EXPECT_GT(found, 10u);
  EXPECT_LT(found, 50u);
}

TEST_F(ReplicaSamplerTest, AStateOfTheSameStructureIsSeenAtItsNewAddresses) {
  Bytes first = patterned(100'000, 1);
  const Bytes second = patterned(100'000, 2);
  State state{.tensors = {replica_of("w", first)}, .structure = std::make_shared<char>()};
  ReplicaSampler sampler;
  const Digest128 of_first = look(state, 1, sampler).all;
  state.tensors[0].data = second.data();
  EXPECT_NE(look(state, 1, sampler).all, of_first);
  EXPECT_EQ(look(state, 1, sampler).all, look(state, 1).all);
  state.structure = std::make_shared<char>();  // another one
  state.tensors = {replica_of("v", first), replica_of("w", first)};
  EXPECT_EQ(look(state, 1, sampler).count, 2u);
}

TEST_F(ReplicaSamplerTest, EveryTensorIsListedInItsTurn) {
  std::vector<Bytes> bytes;
  for (std::size_t i = 0; i < 40; ++i) bytes.push_back(patterned(100, i));
  State state;
  for (std::size_t i = 0; i < 40; ++i) state.tensors.push_back(replica_of("t" + std::to_string(i), bytes[i]));
  std::set<std::string> listed;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    const ReplicaSamples samples = look(state, step);
    EXPECT_EQ(samples.some.size(), kListedSamples);
    EXPECT_TRUE(std::ranges::is_sorted(samples.some));
    for (const auto& [name, digest] : samples.some) listed.insert(name);
  }
  EXPECT_EQ(listed.size(), 40u);
}

TEST(DigestLeaves, MembersAreNamedAndComparedOneByOne) {
  const auto a = digest_leaves({{"data", R"({"order":[1,2],"deep":{"x":1,"y":2}})"}, {"epoch", "3"}});
  const auto b = digest_leaves({{"data", R"({"deep":{"y":2,"x":1},"order":[1,2]})"}, {"epoch", "4"}});
  ASSERT_EQ(a.size(), 4u);
  for (const char* name : {"data.order", "data.deep.x", "data.deep.y"}) EXPECT_EQ(a.at(name), b.at(name)) << name;
  EXPECT_NE(a.at("epoch"), b.at("epoch"));
}

TEST(DigestLeaves, WhatIsTypedHasTheNameOfTheWhole) {
  const auto leaves = [](const std::string& text) { return digest_leaves({{"data", text}}); };
  const auto a = leaves(R"({"$":"object","class":"A","v":{"place":1}})");
  EXPECT_EQ(a.size(), 2u);
  EXPECT_NE(a.at("data"), leaves(R"({"$":"object","class":"B","v":{"place":1}})").at("data"));
  EXPECT_NE(a.at("data.place"), leaves(R"({"$":"object","class":"A","v":{"place":2}})").at("data.place"));
  EXPECT_NE(leaves(R"({"$":"set","v":[1]})"), leaves(R"({"$":"set","v":[2]})"));
  EXPECT_NE(leaves("{}"), leaves("[]"));
}

}  // namespace
}  // namespace slackwater::test
