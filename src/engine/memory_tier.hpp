// MemoryTier: the newest versions in the memory of a keeper process, as the engine sees it. docs/memory-tier.md has the
// whole story.
//   open:     attaches to the keeper of an earlier trainer, which then publishes nothing any more
//   restore:  versions in memory are candidates beside those on disk, if the newest attempt is the one they belong to;
//             one that is only in memory is then written to disk in the background (MemoryTierFlush)
//   attempt:  before a new attempt is claimed, that write ends, the version that is continued gets the attempt as its
//             next owner, and all others go
//   save:     the pool lives in the keeper's memory (KeptSlabs)
//   close:    a clean end releases the memory, if no step is only there; otherwise the keeper keeps it
// Nothing here can fail a save or a restore. Without a keeper, training goes on, and the log says so once.
// Owner: EngineShared. Thread rule: any thread. Lifetime: ends after the pipeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "engine/kept_slabs.hpp"
#include "engine/memory_tier_flush.hpp"
#include "keeper/keeper_client.hpp"
#include "keeper/kept_files.hpp"
#include "os/file_system.hpp"
#include "slackwater/options.hpp"
#include "version/catalog.hpp"

namespace slackwater {

// For a run without a memory tier: ends the keeper of an earlier one. Waits for its flush first, as long as that makes
// progress. The log names a step that is lost with it.
void end_earlier_keeper(const Options& options, FileSystem& fs, const Log& log);

class MemoryTier {
 public:
  MemoryTier(const Options& options, FileSystem& fs, const Clock& clock, Log log);

  // Before the directory is opened: a keeper of an earlier run holds its lock while it flushes. If that run had another
  // number of ranks, this run can restore nothing from there. So the flush is waited for instead.
  void attach();
  // `on_flushed`: a version that was restored from memory is committed. Called without a lock. Call it once.
  void set_on_flushed(MemoryTierFlush::OnCommitted on_flushed) { on_flushed_ = std::move(on_flushed); }

  // For restore().
  // What is in memory and may be restored: `catalog` says which attempt is the newest.
  [[nodiscard]] std::vector<CatalogEntry> versions(const Catalog& catalog);
  [[nodiscard]] FileSystem* files_of(const VersionName& name) const;  // null: not in memory
  // With one rank, or on rank 0: begins to write it to disk, if it is not there.
  void note_restored(const VersionName& name);
  [[nodiscard]] bool is_only_in_memory(const VersionName& name) const;  // when versions() listed it
  [[nodiscard]] MemoryTierFlush& flush() { return flush_; }

  // Before an attempt is claimed, on each rank. `epoch`: as in LiveVersions::Start. `id`: this rank's in the attempt;
  // empty if there is one rank: then one is made up. Returns the id.
  [[nodiscard]] std::string begin_attempt(std::uint64_t epoch, std::string id);
  // Next: which versions that were found in memory are on disk, and may be adopted.
  void settle_adopted(std::vector<VersionName>& adopted) const;

  // Of the memory that is attached; 0: there is none. Whoever sizes a pool may count it as available.
  [[nodiscard]] std::uint64_t attached_bytes() const;
  // False: memory for this many slabs would have to be made again, and that would drop versions. So not before the
  // first save, when begin_attempt() has made sure that they are on disk.
  [[nodiscard]] bool can_prepare(std::uint32_t slab_count) const;
  // The keeper's memory for a pool of about this many slabs, with the versions that it holds. Null: there is none.
  [[nodiscard]] std::shared_ptr<KeptSlabs> memory_for(std::uint32_t slab_count);

  void mark_committed(const VersionName& name);
  void drop(const std::vector<VersionName>& names);  // they are being deleted
  void keep_after_close();                           // close() is not the end of the training
  // The Error says that a restored step is only in memory, and why.
  [[nodiscard]] Status close(bool all_committed);

 private:
  [[nodiscard]] KeeperSettings settings(std::uint32_t rank) const;
  void end_flush();  // waits for it, but not for ever; without mutex_
  // These need mutex_.
  void take_over();  // what the keeper held when this trainer attached
  [[nodiscard]] bool leaves_to_other_run(std::chrono::milliseconds wait);
  [[nodiscard]] bool end_other_run();
  [[nodiscard]] std::vector<RankPart> parts_of(const Region::Kept& own) const;  // of all ranks; empty: not complete
  [[nodiscard]] std::optional<std::uint64_t> newest_unsaved() const;
  void warn_once(const Error& error);

  const Options options_;
  FileSystem& fs_;
  const Log log_;
  MemoryTierFlush::OnCommitted on_flushed_;

  mutable std::mutex mutex_;  // guards what follows; the lock of KeptSlabs may be taken under it
  std::unique_ptr<KeeperClient> client_;
  std::shared_ptr<KeptSlabs> slabs_;
  std::unique_ptr<KeptFiles> files_;  // of the last versions()
  std::set<VersionName> offered_;     // that files_ has
  struct Unsaved {
    std::vector<RankPart> parts;
    std::string member;  // of this rank, in the attempt that staged it
  };
  std::map<VersionName, Unsaved> only_in_memory_;  // of those
  std::string newest_member_;                      // this rank's id in the newest attempt, as versions() saw it
  std::optional<VersionName> restored_;
  std::optional<VersionName> continued_;  // restored_, once an attempt goes on from it
  std::optional<VersionName> committed_;  // the newest that this run has saved
  std::shared_ptr<const Region> other_;   // of a run with another number of ranks, whose keeper still runs
  std::optional<std::uint64_t> epoch_;    // of the last begin_attempt()
  std::string id_;
  bool keep_after_close_ = false;
  bool warned_ = false;

  MemoryTierFlush flush_;  // last: its thread calls this object
};

}  // namespace slackwater
