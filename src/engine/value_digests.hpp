// What of a state's plain values is the same on all ranks is found out by digests of the members at the top of its tree.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace slackwater {

// Member -> digest of its text. The tree as Python writes it ({"slackwater_tree":1,"state":{...}}): members of the state.
// Any other JSON object: its own. A text that is none, or a state that is no dict of texts: one member, without a name.
[[nodiscard]] std::map<std::string, Digest128> digest_values(std::string_view tree);

// Of texts that all ranks should have alike: a digest for each, or for each member of the objects they are, down to
// kLeafDepth, under its name: "data.place". What is inside typed JSON has the name of the whole.
inline constexpr unsigned kLeafDepth = 8;
inline constexpr std::size_t kMaxMembers = 256;  // of an object that is taken apart
[[nodiscard]] std::map<std::string, std::uint64_t> digest_leaves(const std::map<std::string, std::string>& texts);

}  // namespace slackwater
