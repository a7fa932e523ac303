#include "mpi/store_messages.hpp"

#include <cstring>
#include <limits>
#include <utility>

namespace slackwater {
namespace {

constexpr std::uint64_t kAbsent = std::numeric_limits<std::uint64_t>::max();  // instead of a length

void append(std::string& bytes, std::uint64_t number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

void append(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<std::uint64_t>(text.size()));
  bytes.append(text);
}

// Reads a message. Once something is missing, everything after it is empty and good() is false.
class MessageBytes {
 public:
  explicit MessageBytes(std::string_view bytes) : left_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    if (const std::string_view raw = take(sizeof value); !raw.empty()) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  std::optional<std::string> text() {
    const std::uint64_t size = number();
    if (size == kAbsent) return std::nullopt;
    return std::string(take(size));
  }
  // How many items follow. Each takes at least a length, so their number is bounded by the bytes left.
  std::uint64_t count() {
    const std::uint64_t items = number();
    if (items > left_.size() / sizeof(std::uint64_t)) good_ = false;
    return good_ ? items : 0;
  }
  [[nodiscard]] bool good() const { return good_ && left_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > left_.size()) good_ = false;
    if (!good_) return {};
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }

  std::string_view left_;
  bool good_ = true;
};

std::unexpected<Error> garbled(const char* what) {
  return fail(ErrorKind::kCorrupt, std::string(what) + " arrived garbled over MPI; run the same program on all ranks");
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string bytes;
  append(bytes, request.number);
  append(bytes, static_cast<std::uint64_t>(request.call));
  append(bytes, request.value);
  append(bytes, static_cast<std::uint64_t>(request.keys.size()));
  for (const std::string& key : request.keys) append(bytes, std::string_view(key));
  return bytes;
}

std::string encode(const StoreReply& reply) {
  std::string bytes;
  append(bytes, reply.number);
  append(bytes, reply.error);
  append(bytes, static_cast<std::uint64_t>(reply.values.size()));
  for (const auto& value : reply.values) {
    if (value) {
      append(bytes, std::string_view(*value));
    } else {
      append(bytes, kAbsent);
    }
  }
  return bytes;
}

Result<StoreRequest> decode_request(std::string_view bytes) {
  MessageBytes message(bytes);
  StoreRequest request;
  request.number = message.number();
  const std::uint64_t call = message.number();
  request.value = message.text().value_or("");
  for (std::uint64_t left = message.count(); left > 0; --left) request.keys.push_back(message.text().value_or(""));
  if (!message.good() || call > static_cast<std::uint64_t>(StoreCall::kGoodbye)) return garbled("a request");
  request.call = static_cast<StoreCall>(call);
  if (request.call == StoreCall::kSet && request.keys.size() != 1) return garbled("a request");
  return request;
}

Result<StoreReply> decode_reply(std::string_view bytes) {
  MessageBytes message(bytes);
  StoreReply reply;
  reply.number = message.number();
  reply.error = message.text().value_or("");
  for (std::uint64_t left = message.count(); left > 0; --left) reply.values.push_back(message.text());
  if (!message.good()) return garbled("a reply");
  return reply;
}

}  // namespace slackwater
