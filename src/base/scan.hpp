// Takes texts apart from left to right: each call removes what it found from the front of `text`. Pure.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace slackwater {

// A decimal number; 0 digits or an overflow is none.
template <class Number>
[[nodiscard]] bool take_number(std::string_view& text, Number& number) {
  const auto [stop, trouble] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (trouble != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return true;
}

[[nodiscard]] inline bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace slackwater
