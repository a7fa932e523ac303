// The names of messages, and values spelled in file names. A message is named "<attempt>.<step>.<rank>", both as a file
// and as a key. On a disk that is full to the last byte, the value of a file is spelled in the names of empty files,
// which many file systems can still create: "<file>=<digest>.<number>.<count>.<text>", created in the order of their
// numbers. The digest separates the pieces of different texts. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "ranks/rank_transport.hpp"

namespace slackwater {

struct MessageName {
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  friend auto operator<=>(const MessageName&, const MessageName&) = default;
};

[[nodiscard]] std::string message_file(const Topic& topic, std::uint32_t rank);
[[nodiscard]] std::optional<MessageName> parse_message_file(std::string_view name);

// One of the names that spell the value of a file.
struct NamePiece {
  std::string file;
  std::string digest;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
  std::string text;

  // Pieces are created in order: whoever lists the last one sees the whole value, now or at the next listing.
  [[nodiscard]] bool completes() const { return number + 1 == count; }
};

[[nodiscard]] std::optional<NamePiece> parse_name_piece(std::string_view name);

// The file names that spell this text, in order. Empty: it is too long for that.
[[nodiscard]] std::vector<std::string> spell_in_names(const std::string& file, std::string_view text);
// The text whose last piece this is; nullopt: not all of its pieces are among these entries.
[[nodiscard]] std::optional<std::string> spelled_text(const std::vector<DirectoryEntry>& entries,
                                                      const NamePiece& last);

}  // namespace slackwater
