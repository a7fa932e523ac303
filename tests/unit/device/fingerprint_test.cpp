#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.hpp"

namespace slackwater {
namespace {

class Fingerprint : public ::testing::Test {
 protected:
  std::uint64_t of(const StridedMemory& tensor, std::uint64_t seed, bool whole = false) {
    const auto result = device_->fingerprint(tensor, seed, whole);
    EXPECT_TRUE(result.has_value());
    return result.value_or(0);
  }
  static std::vector<std::byte> random_bytes(std::size_t size) {
    std::vector<std::byte> bytes(size);
    std::mt19937_64 random(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
    return bytes;
  }
  static StridedMemory flat(std::vector<std::byte>& bytes) {
    return {bytes.data(), 1, {static_cast<std::int64_t>(bytes.size())}, {}};
  }

  std::unique_ptr<Device> device_ = make_host_device();
};

TEST_F(Fingerprint, TheSameBytesAndSeedGiveTheSameValue) {
  auto bytes = random_bytes(100'000);
  auto twin = bytes;
  EXPECT_EQ(of(flat(bytes), 7), of(flat(twin), 7));
  EXPECT_NE(of(flat(bytes), 7), of(flat(bytes), 8)) << "another seed samples other places";
}

TEST_F(Fingerprint, ManyTensorsAtOnceGetTheFingerprintThatEachGetsAlone) {
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t i = 0; i < 40; ++i) bytes.push_back(random_bytes(i % 3 == 0 ? i : 1'000 + 77 * i));
  std::vector<StridedMemory> memories;
  for (auto& one : bytes) memories.push_back(flat(one));
  memories[20] = {bytes[20].data(), 4, {50, 5}, {1, 50}};
  memories[23] = {bytes[23].data(), 2, {3, 4}, {9, 2}};
  for (const std::size_t count : {0u, 1u, 3u, 40u}) {
    std::vector<const StridedMemory*> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(&memories[i]);
    const auto all = device_->fingerprints(tensors, 11);
    ASSERT_TRUE(all.has_value());
    ASSERT_EQ(all->size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ((*all)[i], of(memories[i], 11)) << i;
  }
}

TEST_F(Fingerprint, EveryByteOfASmallTensorCounts) {
  for (const std::size_t size : {1u, 7u, 8u, 64u, 127u, 128u}) {
    auto bytes = random_bytes(size);
    const auto before = of(flat(bytes), 3);
    for (std::byte& byte : bytes) {
      byte ^= std::byte{1};
      EXPECT_NE(of(flat(bytes), 3), before) << size;
      byte ^= std::byte{1};
    }
  }
}

TEST_F(Fingerprint, AnUpdateOfTheWholeTensorIsNoticed) {
  auto bytes = random_bytes(129);
  const auto before = of(flat(bytes), 1);
  for (std::byte& byte : bytes) byte ^= std::byte{0x10};
  EXPECT_NE(of(flat(bytes), 1), before);
}

TEST_F(Fingerprint, AChangeOfMoreThanAnEighthInOnePieceIsAlwaysNoticed) {
  auto bytes = random_bytes(16'000);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto before = of(flat(bytes), seed);
    for (std::size_t begin = 0; begin + 2100 <= bytes.size(); begin += 487) {
      for (std::size_t i = begin; i < begin + 2100; ++i) bytes[i] ^= std::byte{1};
      EXPECT_NE(of(flat(bytes), seed), before) << "seed " << seed << " from " << begin;
      for (std::size_t i = begin; i < begin + 2100; ++i) bytes[i] ^= std::byte{1};
    }
  }
}

TEST_F(Fingerprint, SeedsReachEveryByteOfATensorSoonerOrLater) {
  auto bytes = random_bytes(200);
  for (const std::size_t place : {0u, 1u, 99u, 198u, 199u}) {
    bool noticed = false;
    for (std::uint64_t seed = 0; seed < 500 && !noticed; ++seed) {
      const auto before = of(flat(bytes), seed);
      bytes[place] ^= std::byte{1};
      noticed = of(flat(bytes), seed) != before;
      bytes[place] ^= std::byte{1};
    }
    EXPECT_TRUE(noticed) << "byte " << place << " is never sampled";
  }
}

TEST_F(Fingerprint, WholeNoticesASingleBitAnywhere) {
  auto bytes = random_bytes(200'000);
  const auto before = of(flat(bytes), 5, true);
  for (const std::size_t place : {std::size_t{0}, std::size_t{65'535}, std::size_t{65'536}, bytes.size() - 1}) {
    bytes[place] ^= std::byte{1};
    EXPECT_NE(of(flat(bytes), 5, true), before);
    bytes[place] ^= std::byte{1};
  }
}

TEST_F(Fingerprint, WholeOfAStridedTensorEqualsThatOfItsPackedForm) {
  auto bytes = random_bytes(300 * 400 * 2);
  const StridedMemory transposed{bytes.data(), 2, {300, 400}, {1, 300}};
  std::vector<std::byte> packed(transposed.size_bytes());
  const CopyPiece piece{&transposed, 0, packed.size(), packed.data()};
  ASSERT_TRUE(device_->copy_to_host({&piece, 1}));
  EXPECT_EQ(of(transposed, 0, true), of(flat(packed), 0, true));
}

TEST_F(Fingerprint, AStridedTensorIsJudgedByItsElementsOnly) {
  auto bytes = random_bytes(64 * 1024);
  const StridedMemory every_fourth{bytes.data(), 4, {4096}, {4}};
  const auto before = of(every_fourth, 11);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i % 16 >= 4) bytes[i] ^= std::byte{0xff};
  }
  EXPECT_EQ(of(every_fourth, 11), before) << "bytes between the elements do not belong to it";
  for (std::size_t i = 0; i < bytes.size(); i += 16) bytes[i] ^= std::byte{0xff};
  EXPECT_NE(of(every_fourth, 11), before);
}

TEST_F(Fingerprint, AnEmptyTensorHasOne) { EXPECT_EQ(of({nullptr, 4, {0}, {}}, 1), of({nullptr, 4, {0}, {}}, 2)); }

}  // namespace
}  // namespace slackwater
