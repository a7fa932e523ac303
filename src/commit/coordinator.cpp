#include "commit/coordinator.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "commit/fields.hpp"

namespace slackwater {

// One line of sealed JSON, and the attachment behind it.
std::string seal_message(const std::string& session, const Topic& topic, std::uint32_t rank, const Message& message) {
  Json head = {{"session", session}, {"box", topic.box}, {"attempt", topic.attempt},
               {"step", topic.step}, {"rank", rank},     {"body", message.body}};
  if (!message.attachment.empty()) head["attachment"] = to_hex(digest128(message.attachment));
  return seal_json(head) + message.attachment;
}

Result<Message> open_message(std::string_view text, const std::string& session, const Topic& topic, std::uint32_t rank,
                             const std::string& path) {
  const std::size_t head_bytes = std::min(text.find('\n'), text.size() - 1) + 1;
  const std::string_view attachment = text.substr(head_bytes);
  SW_ASSIGN(Json json, open_sealed_json(text.substr(0, head_bytes), path));
  SW_ASSIGN(const std::string found_session, json_string(json, "session", path));
  SW_ASSIGN(const std::string found_box, json_string(json, "box", path));
  SW_ASSIGN(const std::uint32_t found_attempt, json_u32(json, "attempt", path));
  SW_ASSIGN(const std::uint64_t found_step, json_u64(json, "step", path));
  SW_ASSIGN(const std::uint32_t found_rank, json_u32(json, "rank", path));
  if (found_session != session || found_box != topic.box || found_attempt != topic.attempt ||
      found_step != topic.step || found_rank != rank) {
    return corrupt("the message is about something else than its name says", path);
  }
  if (json.contains("attachment") || !attachment.empty()) {
    SW_ASSIGN(const Digest128 promised, json_digest(json, "attachment", path));
    if (promised != digest128(attachment)) return corrupt("what is attached to the message is not whole", path);
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
