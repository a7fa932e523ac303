// Catalog: what is on a tier, and which of it counts. Reading only; takes no lock; never changes anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/attempt.hpp"
#include "commit/manifest.hpp"
#include "commit/manifest_cache.hpp"
#include "commit/names.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

enum class VersionState : std::uint8_t {
  kCounts,      // committed, by the newest attempt or adopted by it
  kSuperseded,  // committed, but neither: a rollback left it behind, or a zombie wrote it
  kSetAside,    // a restore passed over it as damaged, or a damaged attempt file leaves open whether a rollback left it
                // behind: kept until somebody removes it by hand
  kAborted,
  kUndecided,   // no manifest: under way, or debris
  kUnreadable,  // manifest damaged or of a newer format; see `error`
};

struct CatalogEntry {
  VersionName name;
  VersionState state = VersionState::kUndecided;
  bool current = false;        // of the newest attempt, or adopted by it: it counts if it is committed and readable
  VersionInfo info;            // name, directory and pin always; the rest when the manifest could be read
  std::optional<Error> error;  // kUnreadable, and of kSetAside those whose manifest cannot be read
  std::string why = {};        // kSetAside: what was wrong with it

  // Whether it is adopted by a run that goes on behind it: live, or live once its manifest can be read again.
  [[nodiscard]] bool belongs() const {
    return state == VersionState::kCounts || (state == VersionState::kUnreadable && current);
  }
};

struct Catalog {
  std::optional<Attempt> newest_attempt;  // nullopt: there is none, or its file cannot be read (a warning says so)
  std::vector<CatalogEntry> entries;      // by step, then attempt
  std::vector<std::string> warnings;      // one sentence each: a damaged attempt file, a name that is not ours
  [[nodiscard]] std::vector<VersionInfo> counting() const;  // oldest first
  [[nodiscard]] std::vector<SetAside> set_aside() const;
};

// kNotFound when `root` does not exist. A root without .slackwater and without versions is an empty catalog. Versions
// that others delete or make meanwhile are no error. Trouble of the storage with the directory or an attempt's file is
// retried, then an Error: what is live would be a guess. With one manifest it is told of that version (kUnreadable).
// With a `cache`, only manifests that it does not have are read. Where the newest attempt's file is damaged or missing, its own
// versions count, and of those that counted before it the ones below its first step (all, if it has none), so that
// nobody loses access to his checkpoints.
[[nodiscard]] Result<Catalog> scan_catalog(FileSystem& fs, const std::string& root, ManifestCache* cache = nullptr);

// kCorrupt unless this is a directory itself: a link there would lead reads and writes out of the tier. kNotFound.
[[nodiscard]] Status check_own_directory(FileSystem& fs, const std::string& path);

// The same for .slackwater.
[[nodiscard]] Status check_control_directory(FileSystem& fs, const std::string& root);

// Reads a file that another host may have made a moment ago. On NFS a name that this host missed before may stay missing
// for a minute, so a "not found" is believed only when the listing of the directory, which the server answers, says the
// same. A name that is listed and cannot be opened is trouble of the storage (kIo), and may pass.
[[nodiscard]] Result<std::string> read_listed(FileSystem& fs, const std::string& directory, const std::string& name,
                                              std::uint64_t max_bytes);

// Number of the newest attempt file, whatever it holds; 0 if there is none.
[[nodiscard]] Result<std::uint32_t> newest_attempt_number(FileSystem& fs, const std::string& root);

[[nodiscard]] Result<Attempt> read_attempt(FileSystem& fs, const std::string& root, std::uint32_t number);

// Manifest of one version, checked against the directory's name.
[[nodiscard]] Result<Manifest> read_manifest(FileSystem& fs, const std::string& root, const VersionName& version);

}  // namespace slackwater
