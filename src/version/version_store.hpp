// VersionStore: one tier directory as its writer sees it: version directories, records, the decision. RunAttempt has
// the lock and the attempt under which this run writes. Deletion is delegated to VersionCleaner. The durability order
// beyond a single file is in version_store.cpp, with the reason for each step; os/durable.hpp has the order for the
// files themselves.
// Owned by VersionStoreAccess. Lifetime: FileSystem and Clock outlive it. The lock is held from open() to destruction.
// Thread rule: one thread at a time. sw-plan claims or accepts the attempt, sw-commit calls the rest, and the trainer's
// thread lists versions for a restore. Except: make_version(), scan(), clean_up(), remove() and pin() may run at the
// same time as the calls of sw-commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "os/clock.hpp"
#include "version/catalog.hpp"
#include "version/index.hpp"
#include "version/record.hpp"
#include "version/retention.hpp"
#include "version/run_attempt.hpp"
#include "version/version_cleaner.hpp"

namespace slackwater {

class VersionStore {
 public:
  // Rank 0 is the leader: it takes the lock, claims attempts and deletes. The members write under an attempt that lists
  // them.
  enum class Role : std::uint8_t { kLeader, kMember };

  // Creates `root` (its parent must exist) and .slackwater; the leader takes the lock. kBusy: another run holds it.
  // kPermission and kNotFound say which directory is meant and what to do.
  // `files` is for tests, which cannot have a thousand ranks. Otherwise the world decides where the files are.
  [[nodiscard]] static Result<std::unique_ptr<VersionStore>> open(FileSystem& fs, const Clock& clock, std::string root,
                                                                  Log log, Role role = Role::kLeader,
                                                                  std::optional<RankFiles> files = {});

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] Result<Catalog> scan() { return scan_catalog(fs_, root_); }  // reads every manifest
  // Reads only manifests that are new to this store. For rank 0, which alone deletes.
  [[nodiscard]] Result<Catalog> scan_cached() { return scan_catalog(fs_, root_, &cache_); }

  // The lock, and the attempt under which this run writes here.
  [[nodiscard]] RunAttempt& attempt() { return attempt_; }
  // For a lower tier: this run copies these here, or found them without a manifest when it started. Nobody else may
  // remove them, and this run removes no other copies (retention.hpp).
  void add_own_copies(const std::set<VersionName>& versions) { run_.lock()->add_own_copies(versions); }
  // For ranks whose directory is not that of rank 0 (Options::node_local): places what rank 0 decided. The index is
  // left out if its text is empty. May be called by several ranks of a node, with the same text.
  [[nodiscard]] Status place_decision(const VersionName& version, const std::string& manifest_text,
                                      const std::string& index_text);

  // Creates the directory of a version of the claimed attempt, and this rank's subdirectory if the world needs them.
  // Returns the path of the version's directory.
  [[nodiscard]] Result<std::string> make_version(std::uint64_t step);

  // Call it when the data files are durable. Writes and syncs index and record, then syncs the directories up to the
  // root. Returns the record's digest: the rank votes with it.
  // `index_text` comes from serialize_index(); the engine makes it while bytes still move. With several ranks it is
  // empty: the leader writes the index with write_index() once it has everybody's part.
  [[nodiscard]] Result<RecordReference> write_record(const Record& record, const std::string& index_text);
  // The same without an attempt of one's own, for parts (slackwater/part.hpp).
  [[nodiscard]] static Result<RecordReference> write_record_files(FileSystem& fs, const std::string& root,
                                                                  const RankFiles& files, const Record& record,
                                                                  const std::string& index_text);
  [[nodiscard]] Status write_index(const VersionName& version, const std::string& index_text);

  // Publishes the decision. A commit states where the files are. If there is a decision already, it is read, made
  // durable and obeyed: the Manifest returned is the one on disk. kInDoubt: the last sync failed. kAborted: a newer
  // attempt has been claimed, so this run may not commit.
  [[nodiscard]] Result<Manifest> decide(Manifest manifest);

  // Removes one version, pinned or not. kAborted if there is a newer attempt than ours (before one is claimed: than
  // the newest that open() found). `newest`: the newest there is, if the caller has just asked.
  [[nodiscard]] Status remove(const VersionName& version, const std::string& why,
                              std::optional<std::uint32_t> newest = {});

  // Frees the space of one rank's files in a version of this attempt that was given up. Leaves them if there is a
  // manifest that is not an abort, or a newer attempt.
  [[nodiscard]] Status discard(const VersionName& version, std::uint32_t rank);

  // Removes what removable() allows (retention.hpp). With kRoutine, nothing goes while the newest commit is in doubt.
  // Goes on after an error and returns the first one. Otherwise returns what is live afterwards, oldest first.
  [[nodiscard]] Result<std::vector<VersionInfo>> clean_up(const RetentionPolicy& policy, Need need = Need::kRoutine);
  // Versions that are still to be copied to a lower tier, or (on a lower tier) that are on their way here. clean_up()
  // asks for them when it has listed the tier. Call it once, before the first clean_up().
  void set_held(std::function<std::set<VersionName>()> held) { cleaner_.set_held(std::move(held)); }
  [[nodiscard]] std::uint64_t removed_count() const;  // versions removed so far; thread-safe
  [[nodiscard]] bool removed_lately() const;          // seconds ago: the space may not be free yet; thread-safe

  // From any rank, at any time (pins.hpp).
  [[nodiscard]] Status pin(const VersionName& version);
  // For a version of this attempt, before it is decided.
  [[nodiscard]] Status pin_ahead(const VersionName& version);

 private:
  VersionStore(FileSystem& fs, const Clock& clock, std::string root, Log log, std::optional<RankFiles> files);
  [[nodiscard]] Status prepare(Role role);
  [[nodiscard]] RankFiles files_of(std::uint32_t world) const { return files_.value_or(RankFiles::of_world(world)); }
  [[nodiscard]] Result<Manifest> follow_existing_decision(const VersionName& version);

  // Constant after construction.
  FileSystem& fs_;
  const std::string root_;
  const std::optional<RankFiles> files_;

  // Thread-safe.
  ManifestCache cache_;
  Guarded<RunState> run_;
  VersionCleaner cleaner_;

  RunAttempt attempt_;
};

}  // namespace slackwater
