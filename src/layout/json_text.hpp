// Writes JSON by appending to a string. For headers and indexes of 100,000 tensors, a tree in memory would take ten
// times as much as the text. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace slackwater {

// Well-formed by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text);

// `text` must be UTF-8. Adds no quotes, so that JSON text can be nested in a JSON string.
void append_json_escaped(std::string& out, std::string_view text);
void append_json_string(std::string& out, std::string_view text);  // with quotes

void append_decimal(std::string& out, std::uint64_t number);
void append_dimensions(std::string& out, std::span<const std::int64_t> dimensions);  // "[2,3]"; none negative

}  // namespace slackwater
