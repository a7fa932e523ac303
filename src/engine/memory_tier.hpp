// MemoryTier: the newest versions in the memory of a keeper process, as the engine sees it. docs/memory-tier.md has the
// whole story.
//   open:     attaches to the keeper of an earlier trainer, which then publishes nothing any more
//   restore:  versions in memory are candidates beside those on disk, if the newest attempt is the one they belong to
//   attempt:  before a new attempt is claimed, the version that it continues gets an heir, and all others go
//   save:     the pool lives in the keeper's memory (KeptSlabs)
//   close:    a clean end releases the memory; after anything else the keeper keeps it
// Nothing here can fail a save or a restore. Without a keeper, training goes on, and the log says so once.
// Owner: EngineShared. Thread rule: any thread. Lifetime: ends after the pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "engine/kept_slabs.hpp"
#include "keeper/keeper_client.hpp"
#include "keeper/kept_files.hpp"
#include "os/file_system.hpp"
#include "slackwater/options.hpp"
#include "version/catalog.hpp"

namespace slackwater {

class MemoryTier {
 public:
  MemoryTier(const Options& options, FileSystem& fs, Log log);

  // Before the directory is opened: a keeper of an earlier run holds its lock while it flushes.
  void attach();

  // For restore().
  // What is in memory and may be restored: `catalog` says which attempt is the newest.
  [[nodiscard]] std::vector<CatalogEntry> versions(const Catalog& catalog);
  [[nodiscard]] FileSystem* files_of(const VersionName& name) const;  // null: not in memory
  void note_restored(const VersionName& name);

  // Before an attempt is claimed, on each rank. `epoch`: as in LiveVersions::Start. `id`: this rank's in the attempt;
  // empty if there is one rank: then one is made up. Returns the id.
  [[nodiscard]] std::string begin_attempt(std::uint64_t epoch, std::string id);
  // For rank 0, next: which versions that were found in memory are on disk, and may be adopted.
  void settle_adopted(std::vector<VersionName>& adopted) const;

  // The keeper's memory for a pool of about this many slabs, with the versions that it holds. Null: there is none.
  [[nodiscard]] std::shared_ptr<KeptSlabs> memory_for(std::uint32_t slab_count);

  void mark_committed(const VersionName& name);
  void drop_step(std::uint64_t step);
  void keep_after_close();  // close() is not the end of the training
  void close(bool all_committed);

 private:
  [[nodiscard]] KeeperSettings settings(std::uint32_t rank) const;
  [[nodiscard]] std::vector<RankPart> parts_of(const Region::Kept& own) const;  // of all ranks; empty: not complete
  void warn_once(const Error& error);                                           // needs mutex_

  const Options options_;
  FileSystem& fs_;
  const Log log_;

  mutable std::mutex mutex_;  // guards what follows; the lock of KeptSlabs may be taken under it
  std::unique_ptr<KeeperClient> client_;
  std::shared_ptr<KeptSlabs> slabs_;
  std::unique_ptr<KeptFiles> files_;      // of the last versions()
  std::set<VersionName> offered_;         // that files_ has
  std::set<VersionName> only_in_memory_;  // of those
  std::string newest_member_;             // this rank's id in the newest attempt, as versions() saw it
  std::optional<VersionName> restored_;
  std::optional<std::uint64_t> epoch_;  // of the last begin_attempt()
  std::string id_;
  bool keep_after_close_ = false;
  bool warned_ = false;
};

}  // namespace slackwater
