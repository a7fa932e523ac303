// What a rank asks of rank 0, and the answer, as bytes. Pure. Both ends are the same program on the same kind of machine (MPI does
// not start others together), so numbers travel as they lie in memory; lengths are checked all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

enum class StoreCall : std::uint8_t {
  kSet,  // keys[0], to `value`
  kGet,
  kRemove,
  kGoodbye,  // nothing will be asked any more; it has no answer
};

struct StoreRequest {
  std::uint64_t number = 0;  // comes back in the answer: one that is late is not taken for another
  StoreCall call = StoreCall::kGet;
  std::vector<std::string> keys;
  std::string value;
};

struct StoreReply {
  std::uint64_t number = 0;
  std::string trouble;  // empty: it was done
  std::vector<std::optional<std::string>> values;
};

[[nodiscard]] std::string encode(const StoreRequest& request);
[[nodiscard]] std::string encode(const StoreReply& reply);
// kCorrupt where lengths and bytes do not agree.
[[nodiscard]] Result<StoreRequest> decode_request(std::string_view bytes);
[[nodiscard]] Result<StoreReply> decode_reply(std::string_view bytes);

}  // namespace slackwater
