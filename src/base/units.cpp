#include "base/units.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace slackwater {
namespace {

struct Unit {
  std::string_view name;  // lower case
  std::uint64_t bytes;
};

constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"kb", 1'000},
    Unit{"mb", 1'000'000},
    Unit{"gb", 1'000'000'000},
    Unit{"tb", 1'000'000'000'000},
    Unit{"pb", 1'000'000'000'000'000},
    Unit{"kib", 1ull << 10},
    Unit{"mib", 1ull << 20},
    Unit{"gib", 1ull << 30},
    Unit{"tib", 1ull << 40},
    Unit{"pib", 1ull << 50},
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

const Unit* find_unit(std::string_view name) {
  std::string lower(name);
  for (char& letter : lower) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const auto unit = std::ranges::find(kUnits, lower, &Unit::name);
  return unit == kUnits.end() ? nullptr : &*unit;
}

std::size_t count_digits(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789");
  return end == std::string_view::npos ? text.size() : end;
}

std::unexpected<Error> not_a_size(std::string_view text) {
  return fail(ErrorKind::kInvalidArgument,
              fmt::format("'{}' is not a size in bytes; write a number such as 4096, 512MiB or 1.5GB", text));
}

// Three significant digits without trailing zeros: 1.5, 2.04, 12.3, 123.
std::string three_digits(double value) {
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  std::string_view rest = trim(text);
  const std::size_t whole_digits = count_digits(rest);
  std::uint64_t whole = 0;
  if (whole_digits == 0 || std::from_chars(rest.data(), rest.data() + whole_digits, whole).ec != std::errc{}) {
    return not_a_size(text);
  }
  rest.remove_prefix(whole_digits);

  double fraction = 0;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    const std::size_t fraction_digits = count_digits(rest);
    if (fraction_digits == 0) return not_a_size(text);
    double weight = 0.1;
    for (const char digit : rest.substr(0, fraction_digits)) {
      fraction += (digit - '0') * weight;
      weight /= 10;
    }
    rest.remove_prefix(fraction_digits);
  }

  const Unit* unit = find_unit(trim(rest));
  if (unit == nullptr) return not_a_size(text);
  const auto part = static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(unit->bytes)));
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(whole, unit->bytes, &bytes) || __builtin_add_overflow(bytes, part, &bytes)) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("'{}' is a size of more than 2^64 bytes; give a smaller one", text));
  }
  return bytes;
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<std::string_view, 7> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kNames[unit]);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return fmt::format("{} s", seconds);
  if (seconds < 0) return "-" + format_seconds(-seconds);
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 119.5) return three_digits(seconds) + " s";
  if (seconds > 1e15) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace slackwater
