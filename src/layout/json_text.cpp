#include "layout/json_text.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>

namespace slackwater {
namespace {

constexpr std::array<bool, 256> kNeedsEscape = [] {
  std::array<bool, 256> table{};
  for (unsigned c = 0; c < 256; ++c) table[c] = c < 0x20 || c == '"' || c == '\\';
  return table;
}();

void append_escape(std::string& out, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

// Length of the well-formed sequence at `at`, which is not ASCII; 0 if it is malformed.
std::size_t sequence_length(const unsigned char* at, std::size_t left) {
  const auto continues = [&](std::size_t i, unsigned char low = 0x80, unsigned char high = 0xbf) {
    return i < left && at[i] >= low && at[i] <= high;
  };
  const unsigned char lead = at[0];
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned char low = lead == 0xe0 ? 0xa0 : 0x80;   // overlong below
    const unsigned char high = lead == 0xed ? 0x9f : 0xbf;  // surrogates above
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned char low = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xf4 ? 0x8f : 0xbf;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t left = text.size();
  while (left > 0) {
    while (left >= 8) {  // nearly all names are ASCII
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
      left -= 8;
    }
    if (left == 0) break;
    const std::size_t length = *at < 0x80 ? 1 : sequence_length(at, left);
    if (length == 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t run = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (!kNeedsEscape[c]) [[likely]]
      continue;
    out.append(text, run, i - run);
    append_escape(out, c);
    run = i + 1;
  }
  out.append(text, run, text.size() - run);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_decimal(std::string& out, std::uint64_t number) {
  std::array<char, 20> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

void append_dimensions(std::string& out, std::span<const std::int64_t> dimensions) {
  out += '[';
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (i > 0) out += ',';
    append_decimal(out, static_cast<std::uint64_t>(dimensions[i]));
  }
  out += ']';
}

}  // namespace slackwater
