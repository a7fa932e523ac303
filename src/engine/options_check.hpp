// What Engine::open() does with its options before anything else: settles what follows from them, and refuses what
// cannot be. Functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "slackwater/options.hpp"

namespace slackwater {

// "true", "no", "1".
[[nodiscard]] Result<bool> parse_flag(std::string_view text);

[[nodiscard]] Status check_world(std::uint32_t world);

// Without a path, the first tier takes its place. A single rank has a single node.
[[nodiscard]] Status settle_options(Options& options);
[[nodiscard]] Status check_options(const Options& options);

}  // namespace slackwater
