// What `rm` and `gc` share: the lock of the directory, the question before the last checkpoint goes, deletion in the
// engine's order (commit/version_remover.hpp), and the report. Errors are printed with a hint, so that verbs only
// return their code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/catalog.hpp"
#include "commit/version_remover.hpp"
#include "os/file_system.hpp"

namespace CLI {
class App;
}

namespace slackwater::cli {

struct RemovalOptions {
  bool dry_run = false;
  bool yes = false;      // the last checkpoint may go
  bool no_lock = false;  // go on where the file system has no locks
  bool json = false;
};
void add_removal_flags(CLI::App& verb, RemovalOptions& options);

// A directory that no run uses as long as this lives.
struct LockedTier {
  std::unique_ptr<FileLock> lock;  // null: the file system has none, and the user said that this is fine
  Catalog catalog;                 // found under the lock
  std::uint32_t newest_attempt = 0;
};

// Takes the lock, and says who has it if that fails. A dry run takes it too: it fails where the real one would.
// `advice`: the hint for somebody whose run is in the way.
[[nodiscard]] std::optional<LockedTier> lock_tier(FileSystem& fs, const std::string& directory,
                                                  const RemovalOptions& options, const std::string& advice);

struct Chosen {
  CatalogEntry entry;
  std::string why;  // for people; may be empty
  bool committed = true;  // false: it stays if that is not so any more
};

// Removes them in this order, unless nothing that can be restored would be left and nobody confirms that. Returns the
// exit code. One that fails does not keep the others.
[[nodiscard]] int remove_chosen(FileSystem& fs, const std::string& directory, const LockedTier& tier,
                                const std::vector<Chosen>& chosen, VersionRemover::Pinned pinned,
                                const RemovalOptions& options);

// "step 42 (attempt 7)".
[[nodiscard]] std::string spoken_name(const VersionName& version);

}  // namespace slackwater::cli
