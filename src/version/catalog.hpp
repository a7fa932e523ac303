// Catalog: what is on a tier, and which versions are live. It only reads: it takes no lock and changes nothing.
// Plain values and functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "version/attempt.hpp"
#include "version/manifest.hpp"
#include "version/manifest_cache.hpp"
#include "version/names.hpp"

namespace slackwater {

enum class VersionState : std::uint8_t {
  kLive,      // committed, and of the newest attempt or adopted by it
  kReplaced,  // committed, but neither: a rollback left it behind, or a run that was over wrote it
  kSetAside,  // a restore skipped it as damaged, or another run saved it and nobody went on from there, or a damaged
              // attempt file leaves open whether a rollback left it behind; it is kept until somebody removes it
  kAborted,
  kUndecided,   // no manifest: being written, or debris
  kUnreadable,  // the manifest is damaged or of a newer format; see `error`
};

struct CatalogEntry {
  VersionName name;
  VersionState state = VersionState::kUndecided;
  bool current = false;        // of the newest attempt, or adopted by it: live if it is committed and readable
  VersionInfo info;            // name, directory and pin always; the rest if the manifest can be read
  std::optional<Error> error;  // the manifest cannot be read: kUnreadable, and some of kSetAside
  std::string why = {};        // kSetAside: what was wrong with it
  std::string run = {};        // that saved it, if the manifest can be read

  // Whether a run that goes on from a later version adopts this one: it is live, or will be once its manifest can be
  // read again.
  [[nodiscard]] bool adoptable() const {
    return state == VersionState::kLive || (state == VersionState::kUnreadable && current);
  }
};

struct Catalog {
  std::optional<Attempt> newest_attempt;  // nullopt: there is none, or its file cannot be read (see `warnings`)
  std::vector<CatalogEntry> entries;      // by step, then attempt
  std::vector<std::string> warnings;      // one sentence each: a damaged attempt file, a name that is not ours
  [[nodiscard]] std::vector<VersionInfo> live_versions() const;  // oldest first
  [[nodiscard]] std::vector<SetAside> set_aside() const;
};

// kNotFound if `root` does not exist. A root without .slackwater and without versions is an empty catalog. Versions
// that others make or delete during the scan are not an error. With a `cache`, only manifests that it does not have are
// read. Storage errors are retried. If one persists for the directory or an attempt file, the scan fails, because what
// is live would be a guess. If it persists for one manifest, that version is kUnreadable.
// If the newest attempt's file is damaged or missing, its own versions are live, and so are the versions that were live
// before it and are below its first step (all of them, if it has no versions). Nobody loses access to checkpoints.
[[nodiscard]] Result<Catalog> scan_catalog(FileSystem& fs, const std::string& root, ManifestCache* cache = nullptr);

// kCorrupt unless this is a real directory: a link would lead reads and writes out of the tier. kNotFound if missing.
[[nodiscard]] Status check_own_directory(FileSystem& fs, const std::string& path);

// The same for .slackwater.
[[nodiscard]] Status check_control_directory(FileSystem& fs, const std::string& root);

// Reads a file that another host may have made a moment ago. On NFS, a name that this host once found missing may seem
// missing for a minute. So "not found" is believed only if the directory listing, which the server answers, agrees. A
// file that is listed but cannot be opened is a storage error (kIo), which may pass.
[[nodiscard]] Result<std::string> read_listed(FileSystem& fs, const std::string& directory, const std::string& name,
                                              std::uint64_t max_bytes);

// Number of the newest attempt file, whatever it holds; 0 if there is none.
[[nodiscard]] Result<std::uint32_t> newest_attempt_number(FileSystem& fs, const std::string& root);

[[nodiscard]] Result<Attempt> read_attempt(FileSystem& fs, const std::string& root, std::uint32_t number);

// Manifest of one version, checked against the directory's name.
[[nodiscard]] Result<Manifest> read_manifest(FileSystem& fs, const std::string& root, const VersionName& version);

}  // namespace slackwater
