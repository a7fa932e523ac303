#include "formats/tensor_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace slackwater::formats {
namespace {

constexpr std::array<std::string_view, 2> kReservedNames{"__metadata__", "__slackwater"};
constexpr std::array<std::string_view, 2> kWrappersAnywhere{"_orig_mod", "_checkpoint_wrapped_module"};
constexpr std::string_view kWrapperInFront = "module.";

bool is_reserved(std::string_view name) {
  return std::ranges::any_of(kReservedNames, [&](std::string_view one) { return name.starts_with(one); });
}

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

bool looks_like_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::ranges::all_of(text, is_ascii_digit);
}

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !text.empty() && letter(text[0]) &&
         std::ranges::all_of(text, [&](char c) { return letter(c) || is_ascii_digit(c); });
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '.')
      out += "%2E";
    else if (c == '%')
      out += "%25";
    else
      out += c;
  }
  return out;
}

// Whether a key may be in a name as it is, provided that no other path can lead there.
bool is_clean(const TreeNode& key) {
  return key.kind == TreeNode::Kind::kText && !key.text.empty() && !is_reserved(key.text) &&
         key.text.find('%') == std::string::npos;
}

std::string without_wrappers_anywhere(std::string_view key) {
  std::string out;
  for (bool first = true;; first = false) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    const std::string_view part = key.substr(0, dot);
    if (std::ranges::find(kWrappersAnywhere, part) == kWrappersAnywhere.end()) {
      if (!out.empty() || (!first && part.empty())) out += '.';
      out += part;
    }
    if (dot == key.size()) return out;
    key.remove_prefix(dot + 1);
  }
}

// Keys of a state_dict() without what torch.compile, DDP and others add. Unchanged if two would become one.
std::vector<std::string> strip_wrappers(const std::vector<TreeNode>& keys) {
  std::vector<std::string> plain;
  for (const TreeNode& key : keys) plain.push_back(key.text);
  std::vector<std::string> stripped = plain;
  for (std::string& key : stripped) {
    const bool wrapped = std::ranges::any_of(
        kWrappersAnywhere, [&](std::string_view wrapper) { return key.find(wrapper) != std::string::npos; });
    if (wrapped) key = without_wrappers_anywhere(key);
  }
  const auto in_front = [](const std::string& key) { return key.starts_with(kWrapperInFront); };
  while (!stripped.empty() && std::ranges::all_of(stripped, in_front))
    for (std::string& key : stripped) key.erase(0, kWrapperInFront.size());
  const bool all_named = std::ranges::none_of(stripped, &std::string::empty);
  const bool unique = std::set<std::string_view>(stripped.begin(), stripped.end()).size() == stripped.size();
  return all_named && unique ? stripped : plain;
}

std::optional<unsigned> hex_code(std::string_view digits) {
  unsigned code = 0;
  const auto [stop, trouble] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (trouble != std::errc() || stop != digits.data() + digits.size()) return std::nullopt;
  return code;
}

}  // namespace

std::string join_name(std::string_view prefix, std::string_view part) {
  if (!prefix.empty()) return fmt::format("{}.{}", prefix, part);
  if (is_reserved(part)) return fmt::format("%5F{}", part.substr(1));
  return std::string(part);
}

std::string name_segment(const TreeNode& key) {
  if (key.kind == TreeNode::Kind::kInt) return fmt::format("{}", key.number);
  if (key.kind == TreeNode::Kind::kText) {
    if (key.text.empty()) return "%";
    if (looks_like_number(key.text))
      return fmt::format("%{:02X}{}", static_cast<unsigned>(key.text[0]), key.text.substr(1));
    return escaped(key.text);
  }
  std::string described;
  append_node(described, key);
  return fmt::format("%({})", escaped(described));
}

std::vector<std::string> child_names(std::string_view prefix, const std::vector<TreeNode>& keys,
                                     const std::function<bool()>& nested) {
  std::vector<std::string> segments;
  bool simple = true;
  for (const TreeNode& key : keys) {
    segments.push_back(name_segment(key));
    simple &= key.kind == TreeNode::Kind::kText && segments.back() == key.text;
  }
  if (!simple && std::ranges::all_of(keys, is_clean) && !nested()) segments = strip_wrappers(keys);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool itself = !prefix.empty() && keys[i].kind == TreeNode::Kind::kText && is_identifier(keys[i].text);
    names.push_back(join_name(prefix, itself ? std::string_view(keys[i].text) : std::string_view(segments[i])));
  }
  return names;
}

std::string plain_name(std::string_view name) {
  constexpr std::size_t kCodeLength = 3;  // "%2E"
  std::string out;
  while (!name.empty()) {
    if (name.starts_with('%') && name.size() >= kCodeLength) {
      if (const auto code = hex_code(name.substr(1, kCodeLength - 1)); code && *code < 128) {
        out += static_cast<char>(*code);
        name.remove_prefix(kCodeLength);
        continue;
      }
    }
    out += name[0];
    name.remove_prefix(1);
  }
  return out;
}

}  // namespace slackwater::formats
