// Names that a layout must know: of the files it fills, and of tensors that no state may have. The others are in
// commit/names.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace slackwater {

// "rank-00000.safetensors" for part 0, "rank-00000-1.safetensors" for part 1; behind "g0003/" if that is the `directory`.
[[nodiscard]] std::string data_file(std::uint32_t rank, std::uint32_t part, std::string_view directory = {});

// What the tensor of one rank is called among those of all ranks: "rank-00003/weight". Only in versions of several ranks.
[[nodiscard]] std::string local_name(std::uint32_t rank, std::string_view tensor);
// The rank in such a name; a global tensor must not be called so.
[[nodiscard]] std::optional<std::uint32_t> rank_of_local_name(std::string_view name);

}  // namespace slackwater
