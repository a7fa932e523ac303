#include "cli/json_layout.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/text.hpp"

namespace slackwater::cli {
namespace {

constexpr std::size_t kInlineBytes = 88;  // a container that fits stays on one line
constexpr std::size_t kIndent = 2;
// Deeper lines are not indented further: a megabyte of brackets must not become terabytes of spaces.
constexpr std::size_t kMaxIndentedDepth = 50;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// End of the string that begins at `begin`, past its closing quote.
std::size_t string_end(std::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

std::size_t scalar_end(std::string_view text, std::size_t begin) {
  std::size_t i = begin;
  while (i < text.size() && !is_space(text[i]) && std::string_view(",:[]{}\"").find(text[i]) == std::string_view::npos)
    ++i;
  return i;
}

// Whether the container that opens at `begin` closes within kInlineBytes.
bool fits_on_a_line(std::string_view text, std::size_t begin) {
  std::size_t depth = 0;
  std::size_t i = begin;
  while (i < text.size() && i - begin < kInlineBytes) {
    const char c = text[i];
    if (c == '"') {
      i = string_end(text, i);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return true;
    ++i;
  }
  return false;
}

}  // namespace

void layout_json(std::string_view text, const std::function<void(std::string_view line)>& on_line) {
  std::vector<bool> on_one_line;  // for each open container
  std::string line;
  const auto new_line = [&] {
    on_line(line);
    line.assign(std::min(on_one_line.size(), kMaxIndentedDepth) * kIndent, ' ');
  };
  std::size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (is_space(c)) {
      ++i;
    } else if (c == '{' || c == '[') {
      on_one_line.push_back((!on_one_line.empty() && on_one_line.back()) || fits_on_a_line(text, i));
      line += c;
      if (!on_one_line.back()) new_line();
      ++i;
    } else if (c == '}' || c == ']') {
      const bool inside_a_line = !on_one_line.empty() && on_one_line.back();
      if (!on_one_line.empty()) on_one_line.pop_back();
      if (!inside_a_line) new_line();
      line += c;
      ++i;
    } else if (c == ',') {
      line += c;
      if (on_one_line.empty() || on_one_line.back())
        line += ' ';
      else
        new_line();
      ++i;
    } else if (c == ':') {
      line += ": ";
      ++i;
    } else {
      const std::size_t end = c == '"' ? string_end(text, i) : std::max(scalar_end(text, i), i + 1);
      line += escape_controls(text.substr(i, end - i));
      i = end;
    }
  }
  if (!line.empty()) on_line(line);
}

}  // namespace slackwater::cli
