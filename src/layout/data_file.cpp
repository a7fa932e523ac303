#include "layout/data_file.hpp"

#include <charconv>
#include <cstddef>
#include <system_error>

#include <fmt/format.h>

namespace slackwater {

std::string data_file(std::uint32_t rank, std::uint32_t part, std::string_view directory) {
  const std::string_view slash = directory.empty() ? "" : "/";
  return part == 0 ? fmt::format("{}{}rank-{:05}.safetensors", directory, slash, rank)
                   : fmt::format("{}{}rank-{:05}-{}.safetensors", directory, slash, rank, part);
}

std::string local_name(std::uint32_t rank, std::string_view tensor) {
  return fmt::format("rank-{:05}/{}", rank, tensor);
}

std::optional<std::uint32_t> rank_of_local_name(std::string_view name) {
  constexpr std::string_view kPrefix = "rank-";
  const std::size_t slash = name.find('/');
  if (!name.starts_with(kPrefix) || slash == std::string_view::npos) return std::nullopt;
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + slash, rank);
  if (error != std::errc() || !name.starts_with(local_name(rank, ""))) return std::nullopt;
  return rank;
}

}  // namespace slackwater
