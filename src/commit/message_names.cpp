#include "commit/message_names.hpp"

#include <charconv>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "base/digest.hpp"

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
  const char* at = name.data();
  const char* const end = at + name.size();
  const auto take = [&](auto& number) {
    const auto [stop, trouble] = std::from_chars(at, end, number);
    at = stop;
    return trouble == std::errc();
  };
  const auto sign = [&](char expected) { return at != end && *at++ == expected; };
  if (!take(parsed.attempt) || !sign('.') || !take(parsed.step) || !sign('.') || !take(parsed.rank))
    return std::nullopt;
  if (at == end) return parsed;
  if (!sign('=') || static_cast<std::size_t>(end - at) < kDigestDigits) return std::nullopt;
  parsed.digest.assign(at, kDigestDigits);
  at += kDigestDigits;
  if (!sign('.') || !take(parsed.number) || !sign('.') || !take(parsed.count) || !sign('.')) return std::nullopt;
  auto text = from_digits({at, end});
  if (!text || parsed.number >= parsed.count) return std::nullopt;
  parsed.text = std::move(*text);
  return parsed;
}

std::vector<std::string> spell_message(const Topic& topic, std::uint32_t rank, std::string_view text) {
  const std::size_t count = (text.size() + kTextInName - 1) / kTextInName;
  if (count > kMaxNamePieces) return {};
  const std::string start =
      fmt::format("{}={}", message_file(topic, rank), to_hex(digest128(text)).substr(0, kDigestDigits));
  std::vector<std::string> names;
  for (std::size_t number = 0; number < count; ++number) {
    const std::string_view piece = text.substr(number * kTextInName, kTextInName);
    names.push_back(fmt::format("{}.{}.{}.{}", start, number, count, to_digits(piece)));
  }
  return names;
}

std::optional<std::string> spelled_text(const std::vector<DirectoryEntry>& entries, const MessageName& last) {
  std::map<std::uint32_t, std::string> pieces;
  for (const DirectoryEntry& entry : entries) {
    const auto piece = parse_message_file(entry.name);
    if (piece && piece->attempt == last.attempt && piece->step == last.step && piece->rank == last.rank &&
        piece->count == last.count && piece->digest == last.digest)
      pieces[piece->number] = piece->text;
  }
  if (pieces.size() != last.count) return std::nullopt;
  std::string text;
  for (const auto& [number, piece] : pieces) text += piece;
  return text;
}

}  // namespace slackwater
