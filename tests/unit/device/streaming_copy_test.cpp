#include "device/streaming_copy.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(StreamingCopy, CopiesExactlyTheRangeWhateverItsSizeAndAlignment) {
  constexpr std::size_t kMargin = 128;
  std::mt19937_64 random(1);
  for (const std::size_t size : {0u, 1u, 63u, 4095u, 4096u, 4097u, 4159u, 8192u, 70'001u}) {
    for (const std::size_t skew : {0u, 1u, 15u, 16u, 63u}) {
      std::vector<std::byte> from(size + kMargin);
      std::ranges::generate(from, [&] { return static_cast<std::byte>(random()); });
      std::vector<std::byte> to(size + 2 * kMargin, std::byte{0xee});
      streaming_copy(to.data() + skew, from.data() + (skew * 7) % kMargin, size);
      const auto target = to.begin() + static_cast<std::ptrdiff_t>(skew);
      const auto after = target + static_cast<std::ptrdiff_t>(size);
      const auto is_margin = [](std::byte byte) { return byte == std::byte{0xee}; };
      EXPECT_TRUE(std::equal(target, after, from.begin() + static_cast<std::ptrdiff_t>((skew * 7) % kMargin)));
      EXPECT_TRUE(std::all_of(to.begin(), target, is_margin)) << "wrote before the range";
      EXPECT_TRUE(std::all_of(after, to.end(), is_margin)) << "wrote past the range";
    }
  }
}

}  // namespace
}  // namespace slackwater
