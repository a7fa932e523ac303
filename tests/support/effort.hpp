// effort: how much a harness does. The usual amount in `make test`, a tenth of it under a sanitizer, any other when the
// environment says so (`make soak` does).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace slackwater::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

[[nodiscard]] inline std::uint64_t effort(const char* variable, std::uint64_t usual) {
  const char* text = std::getenv(variable);
  if (text != nullptr && *text != '\0') return std::strtoull(text, nullptr, 10);
  return kSanitized && usual > 0 ? std::max<std::uint64_t>(usual / 10, 1) : usual;
}

// Printed by every harness, so that what was found can be found again.
[[nodiscard]] inline std::uint64_t harness_seed() {
  const char* text = std::getenv("SLACKWATER_SEED");
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : 20260101;
}

}  // namespace slackwater::test
