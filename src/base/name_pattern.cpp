#include "base/name_pattern.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace slackwater {
namespace {

// How many bytes a character has that begins like this; 1 for what begins none.
std::size_t length_of(unsigned char first) {
  if (first >= 0xF0 && first < 0xF8) return 4;
  if (first >= 0xE0 && first < 0xF0) return 3;
  if (first >= 0xC0 && first < 0xE0) return 2;
  return 1;
}

// `?` is one character, as in Python, however many bytes it has. Bytes that are not UTF-8 count one by one.
std::u32string characters(std::string_view text) {
  std::u32string found;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const std::size_t length = length_of(byte(at));
    char32_t code = length == 1 ? byte(at) : byte(at) & (0x7Fu >> length);
    std::size_t next = at + 1;
    while (next < at + length && next < text.size() && (byte(next) & 0xC0u) == 0x80u)
      code = code << 6 | (byte(next++) & 0x3Fu);
    const bool valid = next == at + length && (length > 1 || byte(at) < 0x80);
    found.push_back(valid ? code : 0xDC00u + byte(at));
    at = valid ? next : at + 1;
  }
  return found;
}

// What follows the `[` at `at`. nullopt: nothing closes it, so it is an ordinary character.
std::optional<std::size_t> end_of_set(std::u32string_view pattern, std::size_t at) {
  std::size_t end = at + 1;
  if (end < pattern.size() && pattern[end] == U'!') ++end;
  if (end < pattern.size() && pattern[end] == U']') ++end;  // the first one belongs to the set
  while (end < pattern.size() && pattern[end] != U']') ++end;
  return end < pattern.size() ? std::optional(end) : std::nullopt;
}

// `set` is what stands between the brackets.
bool is_in_set(std::u32string_view set, char32_t character) {
  const bool others = set.starts_with(U'!');
  if (others) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size();) {
    const bool range = i + 2 < set.size() && set[i + 1] == U'-';
    found |= range ? set[i] <= character && character <= set[i + 2] : set[i] == character;
    i += range ? 3 : 1;
  }
  return found != others;
}

// If a star is followed by what does not fit, it takes one character more. Only the last star has to try that: whatever
// an earlier one took, the rest of the name is at least as long for the later ones.
bool matches_whole(std::u32string_view pattern, std::u32string_view name) {
  std::size_t at = 0;
  std::size_t i = 0;
  std::optional<std::size_t> after_star;
  std::size_t taken = 0;  // where in the name the last star ends
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == U'*') {
      after_star = ++at;
      taken = i;
      continue;
    }
    bool fits = false;
    std::size_t next = at + 1;
    if (at < pattern.size()) {
      const auto end = pattern[at] == U'[' ? end_of_set(pattern, at) : std::nullopt;
      if (end) {
        fits = is_in_set(pattern.substr(at + 1, *end - at - 1), name[i]);
        next = *end + 1;
      } else {
        fits = pattern[at] == U'?' || pattern[at] == name[i];
      }
    }
    if (fits) {
      at = next;
      ++i;
    } else if (after_star) {
      at = *after_star;
      i = ++taken;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == U'*') ++at;
  return at == pattern.size();
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view name) {
  const std::u32string wanted = characters(pattern);
  const std::u32string given = characters(name);
  return matches_whole(wanted, given) || matches_whole(wanted + U".*", given);
}

}  // namespace slackwater
