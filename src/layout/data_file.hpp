// The name of a data file. Here and not in commit/names.hpp, because a layout names the files it fills.
#pragma once

#include <cstdint>
#include <string>

namespace slackwater {

[[nodiscard]] std::string data_file(std::uint32_t rank, std::uint32_t part);  // "rank-00000.safetensors", "rank-00000-1.safetensors"

}  // namespace slackwater
