// Names inside a tier, made and parsed in one place. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "layout/data_file.hpp"  // IWYU pragma: export

namespace slackwater {

inline constexpr const char* kControlDirectory = ".slackwater";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kIndexName = "index";
inline constexpr const char* kLockName = "lock";

struct VersionName {
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  friend auto operator<=>(const VersionName&, const VersionName&) = default;
};

[[nodiscard]] std::string version_directory(const VersionName& version);  // "step-0000000042.a7"
[[nodiscard]] std::optional<VersionName> parse_version_directory(std::string_view name);
[[nodiscard]] std::string attempt_file(std::uint32_t attempt);  // "attempt-0007.json"
[[nodiscard]] std::optional<std::uint32_t> parse_attempt_file(std::string_view name);
[[nodiscard]] std::string record_file(std::uint32_t rank);       // "rank-00000.record"
[[nodiscard]] std::string pin_file(const VersionName& version);  // "pin-0000000042.a7"
[[nodiscard]] std::optional<VersionName> parse_pin_file(std::string_view name);

// Whether Slackwater makes files of this name in a version's directory: data, records, index, manifest, and the
// manifest's private name while it is published. Nothing else is ever deleted there.
[[nodiscard]] bool is_version_file(std::string_view name);

// The rank whose data or record this is.
[[nodiscard]] std::optional<std::uint32_t> rank_of_file(std::string_view name);

// A plain file name: not empty, no '/', no NUL, not "." or "..", at most 255 bytes. Names from files must pass before
// they touch a path.
[[nodiscard]] bool is_plain_name(std::string_view name);

}  // namespace slackwater
