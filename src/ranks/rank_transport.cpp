#include "ranks/rank_transport.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

Json about(const std::string& session, const Topic& topic, std::uint32_t rank) {
  return {{"session", session},
          {"channel", topic.channel},
          {"attempt", topic.attempt},
          {"step", topic.step},
          {"rank", rank}};
}

}  // namespace

// One line of sealed JSON, then the attachment.
std::string seal_message(const std::string& session, const Topic& topic, std::uint32_t rank, const Message& message) {
  Json head = about(session, topic, rank);
  head["body"] = message.body;
  if (!message.attachment.empty()) head["attachment"] = to_hex(digest128(message.attachment));
  return seal_json(head) + message.attachment;
}

Result<Message> open_message(std::string_view text, const std::string& session, const Topic& topic, std::uint32_t rank,
                             const std::string& path) {
  const std::size_t head_bytes = std::min(text.find('\n'), text.size() - 1) + 1;
  const std::string_view attachment = text.substr(head_bytes);
  SW_ASSIGN(Json json, open_sealed_json(text.substr(0, head_bytes), path));
  const Json named = about(session, topic, rank);
  for (const auto& [field, expected] : named.items()) {
    if (!json.contains(field) || json[field] != expected)
      return corrupt("the message does not belong to the topic in its name", path);
  }
  if (json.contains("attachment") || !attachment.empty()) {
    SW_ASSIGN(const Digest128 expected, json_digest(json, "attachment", path));
    if (expected != digest128(attachment))
      return corrupt("the attachment of the message is incomplete or damaged", path);
  }
  SW_TRY(json_object(json, "body", path));
  return Message(std::move(json["body"]), std::string(attachment));
}

std::string name_ranks(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kRunsNamed = 8;
  std::vector<std::uint32_t> sorted = ranks;
  std::ranges::sort(sorted);
  std::string text = sorted.size() == 1 ? "rank " : "ranks ";
  std::size_t runs = 0;
  for (std::size_t first = 0; first < sorted.size();) {
    if (runs == kRunsNamed) return fmt::format("{} and {} more", text, sorted.size() - first);
    std::size_t last = first;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (runs++ > 0) text += ", ";
    text += fmt::format("{}", sorted[first]);
    if (last > first) text += fmt::format("{}{}", last == first + 1 ? ", " : " to ", sorted[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace slackwater
