// Text for people: escaping, times, tables, messages on stderr. Free functions for one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater::cli {

// Names come from untrusted files. Control characters (C0, DEL, C1) and bytes that are not UTF-8 become \xNN or \u00NN,
// so that they cannot control the terminal.
[[nodiscard]] std::string escape_controls(std::string_view text);

[[nodiscard]] std::string local_time(std::int64_t unix_ms);  // "2026-11-15 22:38:36"
[[nodiscard]] std::string utc_time(std::int64_t unix_ms);    // "2026-11-15T22:38:36Z"

[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);      // "[50304, 768]"
[[nodiscard]] std::string plural(std::uint64_t count, std::string_view singular);  // "1 tensor", "2 tensors"
[[nodiscard]] std::string rate_text(std::uint64_t bytes, double seconds);          // "1.94 GB/s"

// "label: message" on stderr, escaped.
void print_problem(std::string_view label, std::string_view message);

// Each column is as wide as its widest cell; the last one is not padded.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  explicit Table(std::vector<Align> columns);
  void add(std::vector<std::string> cells);
  void print(std::FILE* to, std::string_view indent = {}) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace slackwater::cli
