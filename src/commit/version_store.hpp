// VersionStore: one tier directory as its writer sees it: lock, attempt, version directories, records, the decision,
// deletion.
// Every step of the durability order beyond a single file is here (see os/durable.hpp for the files themselves).
// Thread rule: one thread at a time (the engine's commit thread; the trainer's thread before the first save and in
// restore), except make_version(), scan(), clean_up(), remove() and pin(), which may run beside anything but claim().
// Lifetime: FileSystem and Clock outlive it. The lock is held from open() to destruction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "commit/catalog.hpp"
#include "commit/index.hpp"
#include "commit/record.hpp"
#include "commit/retention.hpp"
#include "commit/version_remover.hpp"
#include "os/clock.hpp"

namespace slackwater {

class VersionStore {
 public:
  // Rank 0 leads: it takes the lock, claims attempts and deletes. The others write below an attempt that lists them.
  enum class Role : std::uint8_t { kLeader, kMember };

  // Makes `root` (its parent must exist) and .slackwater; the leader takes the lock. kBusy: another run holds it, with a
  // hint; kPermission/kNotFound say which directory and what to do.
  // `files`: for tests, which cannot have a thousand ranks; otherwise they lie as the world of an attempt has it.
  [[nodiscard]] static Result<std::unique_ptr<VersionStore>> open(FileSystem& fs, const Clock& clock, std::string root,
                                                                  Log log, Role role = Role::kLeader,
                                                                  std::optional<RankFiles> files = {});
  ~VersionStore();

  [[nodiscard]] const std::string& root() const;
  [[nodiscard]] Result<Catalog> scan();  // reads every manifest
  [[nodiscard]] Result<Catalog>
  scan_cached();  // reads those that are new to this store; for rank 0, which alone deletes

  // Claims the next attempt number, adopting `adopted`. On a lost race tries the number after. May be called again:
  // after a rollback the run goes on under a new attempt. Files of attempts long past are removed, and what crashes left
  // behind in .slackwater. Where there is no space for it, undecided versions of earlier attempts go first: whoever holds
  // the lock knows that nobody can commit them any more. Then adopted ones beyond `policy`.
  // `members`: an id for each rank; none: one rank. `set_aside`: versions to be kept, though they are not live.
  [[nodiscard]] Result<Attempt> claim(const std::string& run_name, std::vector<VersionName> adopted,
                                      std::vector<std::string> members = {}, std::vector<SetAside> set_aside = {},
                                      const RetentionPolicy& policy = {.keep = 0});
  // For the other ranks: goes on under the attempt that rank 0 claimed. kAborted unless it lists `id` as this rank.
  [[nodiscard]] Result<Attempt> accept(std::uint32_t number, std::uint32_t rank, const std::string& id);

  // Makes the directory of a version of the claimed attempt, and this rank's subdirectory where there are some. Path of
  // the former. The one call that may run beside others: it asks for no
  // more than the attempt, so it must only not run beside claim().
  [[nodiscard]] Result<std::string> make_version(std::uint64_t step);

  // Data files are durable; now: index and record written and synced, version directory and every parent made are
  // synced.
  // Returns the record's digest: what the rank votes with.
  // `index_text` comes from serialize_index(): the engine makes it while the bytes still move. Of several ranks none
  // writes it here (an empty text): the leader does, when it has everybody's part.
  [[nodiscard]] Result<RecordReference> promise(const Record& record, const std::string& index_text);
  [[nodiscard]] Status write_index(const VersionName& version, const std::string& index_text);

  // Publishes the decision; a commit says where the files lie. If one exists already it is read, made durable and obeyed: the Manifest returned is the one
  // on disk. kInDoubt when the last sync failed. Before publishing a commit: fails with kAborted if a newer attempt has been
  // claimed.
  [[nodiscard]] Result<Manifest> decide(Manifest manifest);

  // Removes one version, pinned or not, as VersionRemover does. Refuses (kAborted) when a newer attempt than ours exists
  // (before claim(): than the newest that open() found).
  [[nodiscard]] Status remove(const VersionName& version, const std::string& why);

  // Gives back the space of one rank's own files in a version of this attempt that was given up. Leaves them where a
  // manifest says anything else than abort, or a newer attempt exists.
  [[nodiscard]] Status discard(const VersionName& version, std::uint32_t rank);

  // Removes what removable() allows (retention.hpp). With kOrder nothing goes while the newest commit is in doubt. The
  // first error is returned, the rest goes on. Returns what counts afterwards, oldest first.
  [[nodiscard]] Result<std::vector<VersionInfo>> clean_up(const RetentionPolicy& policy, Need need = Need::kOrder);
  [[nodiscard]] std::uint64_t removed_count() const;  // versions removed so far; thread-safe
  [[nodiscard]] bool removed_lately() const;          // within seconds: their space may not be free yet; thread-safe

  // From any rank, beside anything. kNotFound: it is not there, or was being deleted. kBusy: it is being deleted, and that
  // takes long; whether the pin came in time is not known yet.
  [[nodiscard]] Status pin(const VersionName& version);
  // The same for a version of this attempt before it is decided: if it is committed, it was pinned before. If not,
  // whoever removes it removes the pin.
  [[nodiscard]] Status pin_ahead(const VersionName& version);

 private:
  class Impl;
  explicit VersionStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
