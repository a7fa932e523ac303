#include "formats/pickle_writer.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace slackwater::formats {
namespace {

template <class Number>
void append_raw(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

unsigned hex_digit(char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10) & 15; }

}  // namespace

PickleWriter::PickleWriter() : out_("\x80\x02") {}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= UINT8_MAX) {
    out_ += 'K';
    out_ += static_cast<char>(value);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J';
    append_raw(out_, static_cast<std::int32_t>(value));
  } else {
    out_ += "\x8a\x08";
    append_raw(out_, value);
  }
}

void PickleWriter::hex_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  text.remove_prefix(std::min<std::size_t>(2, text.size()));  // "0x"
  std::vector<unsigned char> digits;                          // little-endian, two's complement
  for (std::size_t end = text.size(); end > 0; end -= std::min<std::size_t>(2, end)) {
    const unsigned low = hex_digit(text[end - 1]);
    const unsigned high = end > 1 ? hex_digit(text[end - 2]) : 0;
    digits.push_back(static_cast<unsigned char>(high << 4 | low));
  }
  digits.push_back(0);  // room for the sign
  unsigned carry = 1;
  for (unsigned char& digit : digits) {
    if (!negative) break;
    const unsigned value = static_cast<unsigned char>(~digit) + carry;
    digit = static_cast<unsigned char>(value);
    carry = value >> 8;
  }
  out_ += '\x8a';
  out_ += static_cast<char>(digits.size());
  out_.append(digits.begin(), digits.end());
}

void PickleWriter::real(double value) {
  out_ += 'G';
  append_raw(out_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::text(std::string_view utf8) {
  out_ += 'X';
  append_raw(out_, static_cast<std::uint32_t>(utf8.size()));
  out_ += utf8;
}

void PickleWriter::bytes(std::string_view value) {
  global("_codecs", "encode");
  mark();
  text(latin1_text(value));
  text("latin1");
  tuple();
  call();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

std::string PickleWriter::finish() {
  out_ += '.';
  return std::move(out_);
}

std::string latin1_text(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xc0 | byte >> 6);
      out += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return out;
}

}  // namespace slackwater::formats
