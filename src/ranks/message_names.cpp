#include "ranks/message_names.hpp"

#include <charconv>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/scan.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kTextInName = 96;  // bytes, two digits each: no name has more than 255 characters
constexpr std::size_t kDigestDigits = 8;
constexpr std::uint32_t kMaxNamePieces = 4096;

std::string to_digits(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

std::optional<std::string> from_digits(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    unsigned byte = 0;
    const char* const end = digits.data() + at + 2;
    if (const auto [stop, trouble] = std::from_chars(digits.data() + at, end, byte, 16);
        trouble != std::errc() || stop != end)
      return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace

std::string message_file(const Topic& topic, std::uint32_t rank) {
  return fmt::format("{}.{}.{}", topic.attempt, topic.step, rank);
}

std::optional<MessageName> parse_message_file(std::string_view name) {
  MessageName parsed;
  if (!take_number(name, parsed.attempt) || !take_prefix(name, ".") || !take_number(name, parsed.step) ||
      !take_prefix(name, ".") || !take_number(name, parsed.rank) || !name.empty())
    return std::nullopt;
  return parsed;
}

std::optional<NamePiece> parse_name_piece(std::string_view name) {
  const std::size_t equals = name.find('=');
  if (equals == std::string_view::npos || name.size() - equals <= kDigestDigits) return std::nullopt;
  NamePiece piece;
  piece.file = name.substr(0, equals);
  piece.digest = name.substr(equals + 1, kDigestDigits);
  name.remove_prefix(equals + 1 + kDigestDigits);
  if (!take_prefix(name, ".") || !take_number(name, piece.number) || !take_prefix(name, ".") ||
      !take_number(name, piece.count) || !take_prefix(name, ".") || piece.number >= piece.count)
    return std::nullopt;
  auto text = from_digits(name);
  if (!text) return std::nullopt;
  piece.text = std::move(*text);
  return piece;
}

std::vector<std::string> spell_in_names(const std::string& file, std::string_view text) {
  const std::size_t count = (text.size() + kTextInName - 1) / kTextInName;
  if (count > kMaxNamePieces) return {};
  const std::string start = fmt::format("{}={}", file, to_hex(digest128(text)).substr(0, kDigestDigits));
  std::vector<std::string> names;
  for (std::size_t number = 0; number < count; ++number) {
    const std::string_view piece = text.substr(number * kTextInName, kTextInName);
    names.push_back(fmt::format("{}.{}.{}.{}", start, number, count, to_digits(piece)));
  }
  return names;
}

std::optional<std::string> spelled_text(const std::vector<DirectoryEntry>& entries, const NamePiece& last) {
  std::map<std::uint32_t, std::string> pieces;
  for (const DirectoryEntry& entry : entries) {
    const auto piece = parse_name_piece(entry.name);
    if (piece && piece->file == last.file && piece->count == last.count && piece->digest == last.digest)
      pieces[piece->number] = piece->text;
  }
  if (pieces.size() != last.count) return std::nullopt;
  std::string text;
  for (const auto& [number, piece] : pieces) text += piece;
  return text;
}

}  // namespace slackwater
