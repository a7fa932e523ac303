// kMiB: for fixtures that one file may include together.
#pragma once

#include <cstdint>

namespace slackwater::test {

inline constexpr std::uint64_t kMiB = 1u << 20;

}  // namespace slackwater::test
