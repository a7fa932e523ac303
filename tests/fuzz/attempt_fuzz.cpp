// The attempt file. Input: its text without the closing digest.
#include "fuzz.hpp"
#include "version/attempt.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  fuzz::round_trip(
      fuzz::text_of(data, size), [](std::string_view text) { return parse_attempt(text, "attempt"); },
      [](const Attempt& attempt) { return serialize(attempt); },
      [](const Attempt& attempt) {
        fuzz::require(attempt.members.size() == attempt.world, "an attempt lists each member");
        for (const VersionName& version : attempt.adopted)
          fuzz::require(version.attempt < attempt.number, "only earlier versions are adopted");
      });
  return 0;
}
