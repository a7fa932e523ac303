// The name of a data file. Here and not in commit/names.hpp, because a layout names the files it fills.
#pragma once

#include <cstdint>
#include <string>

namespace slackwater {

// "rank-00000.safetensors" for part 0, "rank-00000-1.safetensors" for part 1.
[[nodiscard]] std::string data_file(std::uint32_t rank, std::uint32_t part);

}  // namespace slackwater
