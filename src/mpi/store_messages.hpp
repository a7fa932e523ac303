// Requests to rank 0 and its replies, encoded as bytes. Both ends are the same program on the same kind of machine,
// because MPI starts nothing else together. So numbers are sent as they are in memory, but lengths are checked all the
// same. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

enum class StoreCall : std::uint8_t {
  kSet,  // sets keys[0] to `value`
  kGet,
  kRemove,
  kGoodbye,  // the last request of this rank; it gets no reply
};

struct StoreRequest {
  std::uint64_t number = 0;  // returned in the reply, so that a late reply is not taken for another
  StoreCall call = StoreCall::kGet;
  std::vector<std::string> keys;
  std::string value;
};

struct StoreReply {
  std::uint64_t number = 0;
  std::string error;  // empty if the request succeeded
  std::vector<std::optional<std::string>> values;
};

[[nodiscard]] std::string encode(const StoreRequest& request);
[[nodiscard]] std::string encode(const StoreReply& reply);
// kCorrupt if lengths and bytes do not match.
[[nodiscard]] Result<StoreRequest> decode_request(std::string_view bytes);
[[nodiscard]] Result<StoreReply> decode_reply(std::string_view bytes);

}  // namespace slackwater
