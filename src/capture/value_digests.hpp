// Digests of the plain values of a state. With them the ranks find out which values are the same on all of them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace slackwater {

// The digest of each text in State::values, by name. If there are none, the whole tree is one value with an empty name.
[[nodiscard]] std::map<std::string, Digest128> digest_values(const std::map<std::string, std::string>& values,
                                                             std::string_view tree);

// Digests of texts that should be the same on all ranks. A text that is a JSON object is taken apart, down to
// kLeafDepth, and each member gets a digest under its own name: "data.place". Whatever is inside typed JSON has the
// name of the whole.
inline constexpr unsigned kLeafDepth = 8;
inline constexpr std::size_t kMaxMembers = 256;  // of an object that is taken apart
[[nodiscard]] std::map<std::string, std::uint64_t> digest_leaves(const std::map<std::string, std::string>& texts);

}  // namespace slackwater
