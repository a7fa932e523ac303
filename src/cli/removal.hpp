// What `rm` and `gc` share: the lock on the directory, the question before the last checkpoint goes, deletion in the
// engine's order (version/version_remover.hpp), and the report. These functions print their errors, with a hint, so
// that a verb only returns its exit code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_output.hpp"
#include "os/file_system.hpp"
#include "slackwater/options.hpp"
#include "version/catalog.hpp"
#include "version/version_remover.hpp"

namespace CLI {
class App;
}

namespace slackwater::cli {

struct RemovalOptions {
  bool dry_run = false;
  bool yes = false;      // remove even the last checkpoint
  bool no_lock = false;  // go on where the file system has no locks
  bool json = false;
  S3Options store;
};
void add_removal_flags(CLI::App& verb, RemovalOptions& options);

// While this lives, no run uses the directory.
struct LockedTier {
  std::unique_ptr<FileLock> lock;  // null: the file system has none, and the user accepted that
  Catalog catalog;                 // scanned under the lock
  std::uint32_t newest_attempt = 0;
};

// Takes the lock. If that fails, prints who has it. A dry run takes it as well, so that it fails where the real one
// would.
// `advice`: the hint for a user whose run is in the way.
[[nodiscard]] std::optional<LockedTier> lock_tier(FileSystem& fs, const std::string& directory,
                                                  const RemovalOptions& options, const std::string& advice);

struct Chosen {
  CatalogEntry entry;
  std::string why;        // for people; may be empty
  bool committed = true;  // false: it stays if it has been committed by now
};

// Removes them in this order, unless that would leave nothing to restore and the user does not confirm it. A version
// that cannot be removed does not stop the others. Returns the exit code. `more`: further members of --json.
[[nodiscard]] int remove_chosen(FileSystem& fs, const std::string& directory, const LockedTier& tier,
                                const std::vector<Chosen>& chosen, VersionRemover::Pinned pinned,
                                const RemovalOptions& options, const OrderedJson& more = {});

// "step 42 (attempt 7)".
[[nodiscard]] std::string spoken_name(const VersionName& version);

}  // namespace slackwater::cli
