// KeptSlabs: which slabs of the pool hold versions that must survive the trainer. A slab that was written to disk goes
// back to the pool only when its version is dropped: because newer versions are staged, because the snapshot in flight
// needs its slabs, or because the version failed. The pool is never starved: versions that are kept go first.
// Its thread, "sw-memory", publishes each version in the keeper's memory once all of it is there: every slab, every
// digest, the index, and the caller's word that no tensor has changed. Only then is the snapshot reported as staged.
// Owner: MemoryTier and the Pipeline that uses the pool. Thread rule: any thread. Lifetime: detach() comes before the
// pool ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "engine/snapshot_impl.hpp"
#include "keeper/region.hpp"
#include "layout/file_layout.hpp"
#include "stage/pool.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"

namespace slackwater {

// What the planner knows about a version, for its publication.
struct KeptPlan {
  std::string member;  // this rank's id in the attempt
  Record record;       // without digests
  std::string index;   // one rank: the index
  Manifest manifest;   // a commit; with several ranks it has no records
  // Several ranks: makes the vote. Fills StagedVersion::vote and index.
  std::function<Status(const RecordReference& record, StagedVersion& version)> add_vote = {};
};

class KeptSlabs;

// One version on its way into the memory, or there. Shared by the pipeline's callbacks and KeptSlabs.
class KeptVersion {
 public:
  // Each call may come from any thread.
  void add_slab(std::uint32_t part, std::uint64_t chunk, int slab);  // it is full, and goes to the writer
  void return_lease(Lease lease);                                    // the writer is done with it
  void set_digests(std::uint32_t part, std::vector<std::uint64_t> digests);
  void set_plan(KeptPlan plan);
  void set_staged();  // all slabs are full
  void fail();        // this version will not be staged

 private:
  friend class KeptSlabs;
  enum class State : std::uint8_t { kFilling, kStaged, kDropped };
  explicit KeptVersion(KeptSlabs& owner) : owner_(owner) {}

  KeptSlabs& owner_;
  // Guarded by KeptSlabs::mutex_.
  State state_ = State::kFilling;
  VersionName name_;
  std::optional<std::uint32_t> entry_;        // in the region's table, once its text is written there
  std::shared_ptr<Snapshot::Impl> snapshot_;  // null once it is published
  std::vector<StagedFile> files_;
  std::vector<std::optional<std::vector<std::uint64_t>>> digests_;  // by part
  std::optional<KeptPlan> plan_;
  bool all_full_ = false;
  bool failed_ = false;
  bool committed_ = false;
  std::uint64_t out_ = 0;      // slabs that the writer still has
  std::vector<Lease> leases_;  // the writer is done with these
  [[nodiscard]] bool settled() const;
};

class KeptSlabs {
 public:
  // Takes over the versions that the region holds.
  KeptSlabs(std::shared_ptr<Region> region, std::uint32_t versions, Log log);
  ~KeptSlabs();

  [[nodiscard]] const std::shared_ptr<Region>& region() const { return region_; }
  // The slabs of versions that were taken over: the pool must not lend them.
  [[nodiscard]] std::vector<std::uint32_t> reserved() const;
  // The pool over this region is there. Starts sw-memory.
  void attach(Pool& pool);
  // Gives every slab back and stops the thread. What is published stays in the memory.
  void detach();

  // A version that is about to be copied into slabs. Null: it does not fit, and is not kept. (The log says so once.)
  [[nodiscard]] std::shared_ptr<KeptVersion> begin(const VersionName& name, const SnapshotLayout& layout,
                                                   std::shared_ptr<Snapshot::Impl> snapshot);
  // Around the writing of a slab that is not kept.
  void begin_unkept_write();
  void end_unkept_write(Lease lease);
  // The pool has no free slab, and somebody waits for one.
  void make_room();

  void mark_committed(const VersionName& name);
  void drop(const std::function<bool(const VersionName&)>& which);
  // See Region::set_next_owner().
  void set_next_owner(const VersionName& name, const std::string& member, const std::string& next);

 private:
  friend class KeptVersion;
  using Lock = std::unique_lock<std::mutex>;

  void run(const std::stop_token& stop);
  void publish(const std::shared_ptr<KeptVersion>& version);
  [[nodiscard]] Status keep(KeptVersion& version);
  [[nodiscard]] Result<StagedVersion> describe(const KeptVersion& version) const;
  // These need mutex_.
  void drop_version(KeptVersion& version);
  void drop_oldest();
  [[nodiscard]] bool has_only_copy() const;
  [[nodiscard]] bool front_has_its_slabs() const;
  [[nodiscard]] std::size_t staged_count() const;
  [[nodiscard]] bool somebody_waits() const { return pool_ != nullptr && pool_->waiting_count() > 0; }

  const std::shared_ptr<Region> region_;
  const std::uint32_t versions_;  // how many staged ones are kept
  const Log log_;

  mutable std::mutex mutex_;  // guards what follows, the region's table, and every KeptVersion
  std::condition_variable_any changed_;
  Pool* pool_ = nullptr;
  std::vector<std::shared_ptr<KeptVersion>> kept_;  // oldest first
  std::deque<std::shared_ptr<KeptVersion>> to_publish_;
  std::uint64_t coming_back_ = 0;  // slabs that the writer has and that go back to the pool afterwards
  bool told_too_large_ = false;

  std::jthread thread_;
};

}  // namespace slackwater
