// The names of the files by which ranks talk (DirectoryCoordinator). A message is a file with its text, called
// "<attempt>.<step>.<rank>". On a disk that is full to the last byte it is spelled in the names of empty files, which many
// file systems can still make: "<attempt>.<step>.<rank>=<digest>.<number>.<count>.<text>", made in the order of their
// numbers. The digest tells apart the pieces of different texts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/coordinator.hpp"
#include "os/file_system.hpp"

namespace slackwater {

struct MessageName {
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  // Of a piece; a count of 0 means a file with the whole text.
  std::string digest;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
  std::string text;

  [[nodiscard]] bool is_about(const Topic& topic) const { return attempt == topic.attempt && step == topic.step; }
  // Who sees it sees the whole message, or will at the next look.
  [[nodiscard]] bool completes() const { return count == 0 || number + 1 == count; }
};

[[nodiscard]] std::string message_file(const Topic& topic, std::uint32_t rank);
[[nodiscard]] std::optional<MessageName> parse_message_file(std::string_view name);

// The names of the files that spell this text, in order; empty if it is too long for that.
[[nodiscard]] std::vector<std::string> spell_message(const Topic& topic, std::uint32_t rank, std::string_view text);
// The text whose last piece this is; nullopt: not all of its pieces are among these entries.
[[nodiscard]] std::optional<std::string> spelled_text(const std::vector<DirectoryEntry>& entries,
                                                      const MessageName& last);

}  // namespace slackwater
