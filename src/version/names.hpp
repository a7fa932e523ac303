// Names: the names of files and directories inside a tier, made and parsed here and nowhere else. Pure functions.
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
[[nodiscard]] std::string version_path(const std::string& root, const VersionName& version);  // below a tier's root
[[nodiscard]] std::string control_path(const std::string& root);                              // of .slackwater
[[nodiscard]] std::string lock_path(const std::string& root);                                 // of the tier's lock file
[[nodiscard]] std::string attempt_file(std::uint32_t attempt);                                // "attempt-0007.json"
[[nodiscard]] std::optional<std::uint32_t> parse_attempt_file(std::string_view name);
[[nodiscard]] std::string record_file(std::uint32_t rank);  // "rank-00000.record"; RankFiles says where it is
// "rank-00003.a7.failed": a rank of that attempt cannot copy its files of this version to this tier, and says why.
struct FailureNote {
  std::uint32_t rank = 0;
  std::uint32_t attempt = 0;
};
[[nodiscard]] std::string failure_note_file(const FailureNote& note);
[[nodiscard]] std::optional<FailureNote> parse_failure_note_file(std::string_view name);
[[nodiscard]] std::string pin_file(const VersionName& version);  // "pin-0000000042.a7"
[[nodiscard]] std::optional<VersionName> parse_pin_file(std::string_view name);
// "delete-0000000042.a7.0123456789abcdef": delete() removed that version, and a lower tier still has it. The digits are
// the digest of the tier's location (delete_notes.hpp).
[[nodiscard]] std::string delete_note_file(const VersionName& version, std::string_view tier);
[[nodiscard]] std::optional<VersionName> parse_delete_note_file(std::string_view name);

// One directory holds the files of at most this many ranks. In a larger world, each group of this size has a
// subdirectory.
inline constexpr std::uint32_t kRanksInDirectory = 1024;

// The names of the ranks' files, relative to the version's directory. Index and manifest are always in that directory
// itself. The world decides whether there are subdirectories; the manifest of a version that has them says so.
struct RankFiles {
  std::uint32_t ranks_in_directory = 0;  // 0: no subdirectories

  [[nodiscard]] static RankFiles of_world(std::uint32_t world);

  [[nodiscard]] std::string directory(std::uint32_t rank) const;                 // "g0003"; empty: no subdirectory
  [[nodiscard]] std::string data(std::uint32_t rank, std::uint32_t part) const;  // "g0003/rank-03072.safetensors"
  [[nodiscard]] std::string record(std::uint32_t rank) const;                    // "g0003/rank-03072.record"
  // Whether this is the name of a data file of this rank, whichever part it is.
  [[nodiscard]] bool is_data(std::string_view name, std::uint32_t rank) const;

  friend bool operator==(const RankFiles&, const RankFiles&) = default;
};

// Whether Slackwater creates files of this name in a version's directory: data, records, index, manifest,
// failure notes, and the private names of a manifest that is being published or deleted. Nothing else is ever deleted
// there. In the subdirectories, only data and records are.
[[nodiscard]] bool is_version_file(std::string_view name);
[[nodiscard]] bool is_rank_directory(std::string_view name);  // "g0003"

// The rank that owns this data file or record, whatever the subdirectory.
[[nodiscard]] std::optional<std::uint32_t> rank_of_file(std::string_view name);

// Whether a name stays in its version's directory: a plain name, or that of a rank's file in a subdirectory. (RankFiles
// knows whether it is the right subdirectory.) A name that was read from a file must pass before it becomes part of a
// path.
[[nodiscard]] bool stays_in_version(std::string_view name);

// A plain file name: not empty, no '/', no NUL, not "." or "..", at most 255 bytes.
[[nodiscard]] bool is_plain_name(std::string_view name);

}  // namespace slackwater
