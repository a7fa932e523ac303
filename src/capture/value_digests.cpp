#include "capture/value_digests.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "layout/json_reader.hpp"

namespace slackwater {
namespace {

using Members = std::map<std::string, std::string_view>;

std::optional<Members> members_of(std::string_view json) {
  Members members;
  JsonReader reader(json);
  std::string key;
  std::string_view value;
  reader.begin_object();
  while (reader.next_key(key)) {
    if (!reader.read_raw(value)) break;
    members.insert_or_assign(std::move(key), value);
  }
  if (!reader.finish()) return std::nullopt;
  return members;
}

// Typed JSON: an object with a member "$..." stands for something else than a dict.
bool is_typed(const Members& members) {
  const auto first = members.lower_bound("$");
  return first != members.end() && first->first.starts_with('$');
}

// Several texts may have one name, such as a typed value and its type.
void add_leaf(std::map<std::string, std::uint64_t>& leaves, const std::string& name, std::string_view text) {
  const Digest128 digest = digest128(fmt::format("{:016x}{}", leaves[name], text));
  leaves[name] = digest.low;
}

void add_leaves(std::map<std::string, std::uint64_t>& leaves, const std::string& name, std::string_view text,
                unsigned depth) {
  const std::optional<Members> members = depth < kLeafDepth ? members_of(text) : std::nullopt;
  if (!members || members->empty() || members->size() > kMaxMembers) {
    add_leaf(leaves, name, text);
    return;
  }
  const bool typed = is_typed(*members);
  for (const auto& [key, value] : *members) {
    if (!typed) {
      add_leaves(leaves, name.empty() ? key : name + "." + key, value, depth + 1);
    } else if (key == "v") {
      add_leaves(leaves, name, value, depth + 1);
    } else {
      add_leaf(leaves, name, key);
      add_leaf(leaves, name, value);
    }
  }
}

}  // namespace

std::map<std::string, std::uint64_t> digest_leaves(const std::map<std::string, std::string>& texts) {
  std::map<std::string, std::uint64_t> leaves;
  for (const auto& [name, text] : texts) add_leaves(leaves, name, text, 0);
  return leaves;
}

std::map<std::string, Digest128> digest_values(const std::map<std::string, std::string>& values,
                                               std::string_view tree) {
  std::map<std::string, Digest128> digests;
  for (const auto& [name, text] : values) digests.emplace(name, digest128(text));
  if (values.empty() && !tree.empty()) digests.emplace("", digest128(tree));
  return digests;
}

}  // namespace slackwater
