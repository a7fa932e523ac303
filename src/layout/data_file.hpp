// Names of data files, and names that tensors of one rank get among those of all ranks. All other names are in
// version/names.hpp. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace slackwater {

// "rank-00000.safetensors" for part 0, "rank-00000-1.safetensors" for part 1. With `directory` "g0003", the name starts
// with "g0003/".
[[nodiscard]] std::string data_file(std::uint32_t rank, std::uint32_t part, std::string_view directory = {});

// The name of one rank's tensor among those of all ranks: "rank-00003/weight". Used only in versions of several ranks.
[[nodiscard]] std::string local_name(std::uint32_t rank, std::string_view tensor);
// The rank in such a name. A global tensor must not have one.
[[nodiscard]] std::optional<std::uint32_t> rank_of_local_name(std::string_view name);

}  // namespace slackwater
