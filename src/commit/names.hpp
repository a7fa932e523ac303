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
inline constexpr const char* kReserveName = "reserve";

struct VersionName {
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  friend auto operator<=>(const VersionName&, const VersionName&) = default;
};

[[nodiscard]] std::string version_directory(const VersionName& version);  // "step-0000000042.a7"
[[nodiscard]] std::optional<VersionName> parse_version_directory(std::string_view name);
[[nodiscard]] std::string attempt_file(std::uint32_t attempt);  // "attempt-0007.json"
[[nodiscard]] std::optional<std::uint32_t> parse_attempt_file(std::string_view name);
[[nodiscard]] std::string record_file(std::uint32_t rank);       // "rank-00000.record"; see RankFiles for where it lies
[[nodiscard]] std::string pin_file(const VersionName& version);  // "pin-0000000042.a7"
[[nodiscard]] std::optional<VersionName> parse_pin_file(std::string_view name);

// A directory takes the files of this many ranks; where there are more, each such number has a subdirectory.
inline constexpr std::uint32_t kRanksInDirectory = 1024;

// What the files of a version's ranks are called, as seen from its directory. Index and manifest always lie in that
// itself. Which it is follows from the world; a version that has subdirectories says so in its manifest.
struct RankFiles {
  std::uint32_t ranks_in_directory = 0;  // 0: no subdirectories

  [[nodiscard]] static RankFiles of_world(std::uint32_t world);

  [[nodiscard]] std::string directory(std::uint32_t rank) const;                 // "g0003"; empty: no subdirectory
  [[nodiscard]] std::string data(std::uint32_t rank, std::uint32_t part) const;  // "g0003/rank-03072.safetensors"
  [[nodiscard]] std::string record(std::uint32_t rank) const;                    // "g0003/rank-03072.record"
  // Whether a data file of this rank is called so here, whichever part it is.
  [[nodiscard]] bool is_data(std::string_view name, std::uint32_t rank) const;

  friend bool operator==(const RankFiles&, const RankFiles&) = default;
};

// Whether Slackwater makes files of this name in a version's directory: data, records, index, manifest, and the
// manifest's private name while it is published. Nothing else is ever deleted there, and nothing but data and records in
// its subdirectories.
[[nodiscard]] bool is_version_file(std::string_view name);
// "g0003".
[[nodiscard]] bool is_rank_directory(std::string_view name);

// The rank whose data or record this is, in whatever subdirectory.
[[nodiscard]] std::optional<std::uint32_t> rank_of_file(std::string_view name);

// A name that stays in its version's directory: a plain one, or that of a rank's file in a subdirectory. Whether it is the
// right one, RankFiles knows. Names of files that come from files must pass before they touch a path.
[[nodiscard]] bool stays_in_version(std::string_view name);

// A plain file name: not empty, no '/', no NUL, not "." or "..", at most 255 bytes.
[[nodiscard]] bool is_plain_name(std::string_view name);

}  // namespace slackwater
