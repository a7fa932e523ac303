#include "layout/json_reader.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "layout/json_text.hpp"

namespace slackwater {
namespace {

void append_utf8(std::string& out, std::uint32_t code) {
  const auto continuation = [&](unsigned shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    continuation(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    continuation(6);
    continuation(0);
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool JsonReader::refuse(std::string trouble) {
  if (trouble_.empty()) trouble_ = std::move(trouble);
  at_ = text_.size();
  return false;
}

bool JsonReader::expected(const char* what) { return refuse(fmt::format("{} is expected near byte {}", what, at_)); }

void JsonReader::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

bool JsonReader::take(char expected) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != expected) return false;
  ++at_;
  return true;
}

bool JsonReader::separated() { return std::exchange(first_, false) || take(',') || expected("a comma"); }

bool JsonReader::begin_object() {
  first_ = true;
  return take('{') || expected("an object");
}

bool JsonReader::begin_array() {
  first_ = true;
  return take('[') || expected("a list");
}

bool JsonReader::next_key(std::string& key) {
  if (failed()) return false;
  if (take('}')) {
    first_ = false;
    return false;
  }
  return separated() && read_string(key) && (take(':') || expected("a colon"));
}

bool JsonReader::next_item() {
  if (failed()) return false;
  if (take(']')) {
    first_ = false;
    return false;
  }
  return separated();
}

bool JsonReader::read_string(std::string& value) {
  value.clear();
  if (!take('"')) return expected("a text in quotes");
  const std::size_t begin = at_;
  for (;;) {
    std::size_t run = at_;
    while (run < text_.size() && text_[run] != '"' && text_[run] != '\\' &&
           static_cast<unsigned char>(text_[run]) >= 0x20)
      ++run;
    value.append(text_, at_, run - at_);
    at_ = run;
    if (at_ >= text_.size()) return expected("a closing quote");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') return expected("an escape in place of a control character");
    ++at_;
    if (!read_escape(value)) return false;
  }
  ++at_;
  if (!is_utf8(value)) {
    at_ = begin;
    return expected("text in UTF-8");
  }
  return true;
}

bool JsonReader::read_escape(std::string& value) {
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  switch (c) {
    case '"':
    case '\\':
    case '/': value += c; return true;
    case 'b': value += '\b'; return true;
    case 'f': value += '\f'; return true;
    case 'n': value += '\n'; return true;
    case 'r': value += '\r'; return true;
    case 't': value += '\t'; return true;
    case 'u': break;
    default: return expected("a known escape");
  }
  std::uint32_t code = 0;
  if (!read_hex4(code)) return false;
  if (code >= 0xd800 && code < 0xe000) {  // the first half of a surrogate pair; the second must follow
    std::uint32_t low = 0;
    if (code >= 0xdc00 || !text_.substr(at_).starts_with("\\u")) return expected("a pair of surrogates");
    at_ += 2;
    if (!read_hex4(low)) return false;
    if (low < 0xdc00 || low >= 0xe000) return expected("a pair of surrogates");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(value, code);
  return true;
}

bool JsonReader::read_hex4(std::uint32_t& unit) {
  unit = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const char lower = static_cast<char>(c | 0x20);
    if (is_digit(c)) {
      unit = unit * 16 + static_cast<std::uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      unit = unit * 16 + static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      return expected("a hexadecimal digit");
    }
  }
  return true;
}

bool JsonReader::read_u64(std::uint64_t& value) {
  skip_space();
  const std::size_t begin = at_;
  std::uint64_t number = 0;
  while (at_ < text_.size() && is_digit(text_[at_])) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (__builtin_mul_overflow(number, std::uint64_t{10}, &number) || __builtin_add_overflow(number, digit, &number)) {
      return expected("a number below 2^64");
    }
    ++at_;
  }
  const bool leading_zero = at_ - begin > 1 && text_[begin] == '0';
  const bool goes_on = at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E');
  if (at_ == begin || leading_zero || goes_on) return expected("a whole number");
  value = number;
  return true;
}

bool JsonReader::read_dimensions(std::vector<std::int64_t>& dimensions) {
  dimensions.clear();
  if (!begin_array()) return false;
  while (next_item()) {
    std::uint64_t dimension = 0;
    if (!read_u64(dimension)) return false;
    if (dimension > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return expected("a dimension below 2^63");
    dimensions.push_back(static_cast<std::int64_t>(dimension));
  }
  return !failed();
}

bool JsonReader::read_raw(std::string_view& value) {
  constexpr std::string_view kAfterWord = ",]} \n\r\t";
  skip_space();
  const std::size_t begin = at_;
  std::size_t depth = 0;
  std::string text;
  do {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (at_ >= text_.size()) return expected("the end of a value");
    if (c == '"') {
      if (!read_string(text)) return false;
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at_;
    } else if (depth > 0) {
      if (c == '}' || c == ']') --depth;
      ++at_;
    } else {
      at_ = std::min(text_.find_first_of(kAfterWord, at_), text_.size());
      if (at_ == begin) return expected("a value");
    }
  } while (depth > 0);
  value = text_.substr(begin, at_ - begin);
  first_ = false;
  return true;
}

bool JsonReader::finish() {
  if (failed()) return false;
  skip_space();
  return at_ == text_.size() || expected("the end of the text");
}

}  // namespace slackwater
