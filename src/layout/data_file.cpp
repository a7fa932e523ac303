#include "layout/data_file.hpp"

#include <fmt/format.h>

namespace slackwater {

std::string data_file(std::uint32_t rank, std::uint32_t part) {
  return part == 0 ? fmt::format("rank-{:05}.safetensors", rank) : fmt::format("rank-{:05}-{}.safetensors", rank, part);
}

}  // namespace slackwater
