// NameTable: finds a name among many that live elsewhere, by index. 16 bytes a slot and no allocation a name, which is
// why it stands in for std::unordered_map where a save has 2 µs a tensor. Thread rule: one thread. Lifetime: the names
// outlive the table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace slackwater {

class NameTable {
 public:
  // `name_of` tells the name of an index given to insert(). At most `capacity` names can be inserted.
  NameTable(std::size_t capacity, std::function<std::string_view(std::uint32_t)> name_of);

  // The index of the same name inserted earlier; nullopt if it is new, which it then no longer is.
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
  std::vector<Slot> slots_;  // a power of two, at most half full
};

}  // namespace slackwater
