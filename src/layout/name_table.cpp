#include "layout/name_table.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "base/digest.hpp"

namespace slackwater {
namespace {

std::uint64_t hash_of(std::string_view name) { return digest64(std::as_bytes(std::span(name))); }

}  // namespace

NameTable::NameTable(std::size_t capacity, std::function<std::string_view(std::uint32_t)> name_of)
    : name_of_(std::move(name_of)), slots_(std::bit_ceil(std::max<std::size_t>(capacity * 2, 2))) {}

// The slot of the name, or the free slot where it belongs.
std::size_t NameTable::locate(std::string_view name, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].index != kFree && (slots_[at].hash != hash || name_of_(slots_[at].index) != name))
    at = (at + 1) & mask;
  return at;
}

std::optional<std::uint32_t> NameTable::insert(std::uint32_t index) {
  const std::string_view name = name_of_(index);
  const std::uint64_t hash = hash_of(name);
  Slot& slot = slots_[locate(name, hash)];
  if (slot.index != kFree) return slot.index;
  slot = {hash, index};
  return std::nullopt;
}

std::optional<std::uint32_t> NameTable::find(std::string_view name) const {
  const Slot& slot = slots_[locate(name, hash_of(name))];
  if (slot.index == kFree) return std::nullopt;
  return slot.index;
}

}  // namespace slackwater
