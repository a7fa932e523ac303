#include "cli/text.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "layout/json_text.hpp"

namespace slackwater::cli {
namespace {

constexpr std::size_t kLongestCharacter = 4;

// Length of the UTF-8 character at the start of `text`; 0 if there is none.
std::size_t character_length(std::string_view text) {
  for (std::size_t length = 1; length <= std::min(kLongestCharacter, text.size()); ++length)
    if (is_utf8(text.substr(0, length))) return length;
  return 0;
}

std::string format_time(std::int64_t unix_ms, bool utc, const char* format) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  if ((utc ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts)) == nullptr) return "?";
  char text[64];
  const std::size_t length = std::strftime(text, sizeof text, format, &parts);
  return {text, length};
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = character_length(text);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", lead);
    } else if (lead < 0x20 || lead == 0x7F) {
      out += fmt::format("\\u{:04x}", lead);
    } else if (lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[1]));
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string local_time(std::int64_t unix_ms) { return format_time(unix_ms, false, "%Y-%m-%d %H:%M:%S"); }
std::string utc_time(std::int64_t unix_ms) { return format_time(unix_ms, true, "%Y-%m-%dT%H:%M:%SZ"); }

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string plural(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

std::string rate_text(std::uint64_t bytes, double seconds) {
  return fmt::format("{:.2f} GB/s", seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0.0);
}

void print_problem(std::string_view label, std::string_view message) {
  const std::string line = fmt::format("{}: {}\n", label, escape_controls(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Table::Table(std::vector<Align> columns) : columns_(std::move(columns)), widths_(columns_.size(), 0) {}

void Table::add(std::vector<std::string> cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) widths_[i] = std::max(widths_[i], cells[i].size());
  rows_.push_back(std::move(cells));
}

void Table::print(std::FILE* to, std::string_view indent) const {
  for (const std::vector<std::string>& row : rows_) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      if (columns_[i] == Align::kRight)
        line += fmt::format("{:>{}}", row[i], widths_[i]);
      else if (i + 1 < row.size())
        line += fmt::format("{:<{}}", row[i], widths_[i]);
      else
        line += row[i];
    }
    fmt::print(to, "{}\n", line);
  }
}

}  // namespace slackwater::cli
