// Catalog: what is on a tier, and which of it counts. Reading only; takes no lock; never changes anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/attempt.hpp"
#include "commit/manifest.hpp"
#include "commit/names.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

enum class VersionState : std::uint8_t {
  kCounts,      // committed, by the newest attempt or adopted by it
  kSuperseded,  // committed, but neither: a rollback left it behind, or a zombie wrote it
  kAborted,
  kUndecided,   // no manifest: under way, or debris
  kUnreadable,  // manifest damaged or of a newer format; see `error`
};

struct CatalogEntry {
  VersionName name;
  VersionState state = VersionState::kUndecided;
  bool current = false;        // of the newest attempt, or adopted by it: it counts if it is committed and readable
  VersionInfo info;            // name, directory and pin always; the rest when the manifest could be read
  std::optional<Error> error;  // kUnreadable
};

struct Catalog {
  std::optional<Attempt> newest_attempt;  // nullopt: there is none, or its file cannot be read (a warning says so)
  std::vector<CatalogEntry> entries;      // by step, then attempt
  std::vector<std::string> warnings;      // one sentence each: a damaged attempt file, a name that is not ours
  [[nodiscard]] std::vector<VersionInfo> counting() const;  // oldest first
};

// kNotFound when `root` does not exist. A root without .slackwater and without versions is an empty catalog. Versions
// that others delete or make meanwhile are no error. Where the newest attempt's file is damaged or missing, its own
// versions count, and of those that counted before it the ones below its first step (all, if it has none), so that
// nobody loses access to his checkpoints.
[[nodiscard]] Result<Catalog> scan_catalog(FileSystem& fs, const std::string& root);

// kCorrupt unless this is a directory itself: a link there would lead reads and writes out of the tier. kNotFound.
[[nodiscard]] Status check_own_directory(FileSystem& fs, const std::string& path);

// The same for .slackwater.
[[nodiscard]] Status check_control_directory(FileSystem& fs, const std::string& root);

// Number of the newest attempt file, whatever it holds; 0 if there is none.
[[nodiscard]] Result<std::uint32_t> newest_attempt_number(FileSystem& fs, const std::string& root);

[[nodiscard]] Result<Attempt> read_attempt(FileSystem& fs, const std::string& root, std::uint32_t number);

// Manifest of one version, checked against the directory's name.
[[nodiscard]] Result<Manifest> read_manifest(FileSystem& fs, const std::string& root, const VersionName& version);

}  // namespace slackwater
