#include "base/digest.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "base/digest_kernels.hpp"

namespace slackwater {
namespace {

// Byte i is (i * 131 + 7) mod 256.
std::vector<std::byte> sample(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + 7);
  return bytes;
}

struct Vector {
  std::size_t size;
  std::uint64_t digest64;
  Digest128 digest128;
};

// Made with libxxhash 0.8.1 (XXH3_64bits, XXH3_128bits), over every branch of the algorithm by length.
const std::vector<Vector> kVectors = {
    {0, 0x2d06800538d394c2, {0x99aa06d3014798d8, 0x6001c324468d497f}},
    {1, 0x4c5cca45d0f4811f, {0x495b62073ef70ca4, 0x4c5cca45d0f4811f}},
    {3, 0x6e3e2670e61106ac, {0x390cdc5b4a895dd7, 0x6e3e2670e61106ac}},
    {4, 0x5c4c63133443d03f, {0xaa6e2f274640a3f4, 0x3d668af6f2a44d77}},
    {8, 0xf9fd4dd0b04d78f5, {0x6a86a3bda6af4e3d, 0x61ddbe7f31a6100d}},
    {9, 0x7c20df9712c26edf, {0x664c7ca18afd6255, 0x8c7b67fd458a936b}},
    {16, 0x86abf6baccea0858, {0x7f9a218b0425449a, 0xe2ce54a7c19c730d}},
    {17, 0xb58bf5dc5022d071, {0x66fc23f6439dbd77, 0x8d96ef110fcdebb4}},
    {128, 0x10d17f72c0ccba41, {0xaec730751478556c, 0xff361dec1385710a}},
    {129, 0x1648bdc3db49d1a2, {0x98cd36ccbb557926, 0x4545b3a09738e31a}},
    {240, 0xb6cfaf343fab81e6, {0x5293e17bf553903d, 0x3f2c53e72293711f}},
    {241, 0x956cae592c67279e, {0xb53840fe3fedf161, 0x956cae592c67279e}},
    {1024, 0x70bd377d9574f4bb, {0xf69630613f24324d, 0x70bd377d9574f4bb}},
    {1025, 0x66c4487c41e127a7, {0x621af7b8277effa4, 0x66c4487c41e127a7}},
    {4096, 0x9ddd66c14af0daff, {0x3e0ff38fa88a55ea, 0x9ddd66c14af0daff}},
    {65537, 0x44695d3cd219e355, {0xf3e72e61a830e4dd, 0x44695d3cd219e355}},
    {1048576, 0x6f7c82505ffbc516, {0x693782642cdfa231, 0x6f7c82505ffbc516}},
};

TEST(Digest, EqualsTheLibraryAtEveryLengthClass) {
  for (const Vector& expected : kVectors) {
    const std::vector<std::byte> bytes = sample(expected.size);
    EXPECT_EQ(digest64(bytes), expected.digest64) << expected.size;
    EXPECT_EQ(digest128(bytes), expected.digest128) << expected.size;
  }
}

TEST(Digest, IsTheSameForEveryInstructionSet) {
  for (std::size_t size = 0; size < 5000; size += 1 + size / 40) {
    const std::vector<std::byte> bytes = sample(size);
    const kernels::Wide wide = kernels::xxh3_128_portable(bytes.data(), size);
    EXPECT_EQ(digest64(bytes), kernels::xxh3_64_portable(bytes.data(), size)) << size;
    EXPECT_EQ(digest128(bytes), (Digest128{wide.high, wide.low})) << size;
  }
}

TEST(Digest, OfTextEqualsDigestOfItsBytes) {
  const std::string_view text = "slack water";
  EXPECT_EQ(digest128(text), digest128(std::as_bytes(std::span(text))));
}

TEST(Digest, ChangesWithAnyBit) {
  std::vector<std::byte> bytes = sample(4096);
  const std::uint64_t before = digest64(bytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1000}, std::size_t{4095}}) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_NE(digest64(bytes), before);
    bytes[at] ^= std::byte{0x10};
  }
  EXPECT_EQ(digest64(bytes), before);
}

TEST(DigestHex, PutsTheMostSignificantDigitFirst) {
  EXPECT_EQ(to_hex(0x0123456789abcdefu), "0123456789abcdef");
  EXPECT_EQ(to_hex(std::uint64_t{10}), "000000000000000a");
  EXPECT_EQ(to_hex(Digest128{1, 0xf}), "0000000000000001000000000000000f");
}

TEST(DigestHex, ReadsBackWhatItWrote) {
  const Digest128 digest = digest128(std::string_view("x"));
  EXPECT_EQ(digest128_from_hex(to_hex(digest)), digest);
  EXPECT_EQ(digest64_from_hex(to_hex(digest.low)), digest.low);
}

TEST(DigestHex, RefusesOtherSpellings) {
  for (const std::string_view bad : {"", "0123", "0123456789ABCDEF", "0x23456789abcdef", " 123456789abcdef",
                                     "0123456789abcdefa", "-123456789abcdef", "0123456789abcdeg"}) {
    EXPECT_FALSE(digest64_from_hex(bad)) << bad;
  }
  EXPECT_FALSE(digest128_from_hex("0123456789abcdef"));
  EXPECT_FALSE(digest128_from_hex("0123456789abcdef0123456789abcdeF"));
}

}  // namespace
}  // namespace slackwater
