// NameTable: finds the index of a name among many names that live elsewhere. It takes 16 bytes per slot and no
// allocation per name. std::unordered_map would be too slow for save(), which has 2 µs per tensor.
// Thread rule: one thread. Lifetime: the names outlive the table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace slackwater {

class NameTable {
 public:
  // `name_of` returns the name of an index that was inserted. At most `capacity` names can be inserted.
  NameTable(std::size_t capacity, std::function<std::string_view(std::uint32_t)> name_of);

  // Inserts the name of `index` if it is new. Otherwise returns the index under which it was inserted.
  [[nodiscard]] std::optional<std::uint32_t> insert(std::uint32_t index);
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kFree;
  };
  static constexpr std::uint32_t kFree = 0xffffffff;
  [[nodiscard]] std::size_t locate(std::string_view name, std::uint64_t hash) const;

  std::function<std::string_view(std::uint32_t)> name_of_;
  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
};

}  // namespace slackwater
