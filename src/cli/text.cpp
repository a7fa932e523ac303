#include "cli/text.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

namespace slackwater::cli {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  std::size_t length = 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF)
    length = 2;
  else if (lead >= 0xE0 && lead <= 0xEF)
    length = 3;
  else if (lead >= 0xF0 && lead <= 0xF4)
    length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool beyond = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
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
    const std::size_t length = utf8_length(text);
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
