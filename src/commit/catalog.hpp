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
  VersionInfo info;            // filled when the manifest could be read
  std::optional<Error> error;  // kUnreadable
};

struct Catalog {
  std::optional<Attempt> newest_attempt;
  std::vector<CatalogEntry> entries;  // by step, then attempt
  std::vector<std::string> warnings;  // one sentence each: a damaged attempt file, a name that is not ours
  [[nodiscard]] std::vector<VersionInfo> counting() const;  // oldest first
};

// kNotFound when `root` does not exist. A root without .slackwater is an empty catalog.
[[nodiscard]] Result<Catalog> scan_catalog(FileSystem& fs, const std::string& root);

// Manifest of one version, checked against the directory's name.
[[nodiscard]] Result<Manifest> read_manifest(FileSystem& fs, const std::string& root, const VersionName& version);

}  // namespace slackwater
