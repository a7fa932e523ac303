// TierWorker: what one rank does on one lower tier, without the thread that does it. TierLeader is rank 0: it claims
// the tier for this run, chooses the next version and publishes manifests; its TierCleaner deletes. TierMember is any
// other rank: it copies its own files of the versions that rank 0 has begun. They exchange no messages: each sees on
// the tier itself what the other has done.
// Owned by a Promoter. Thread rule: all calls belong to the promoter's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "os/clock.hpp"
#include "tiers/bandwidth_cap.hpp"
#include "tiers/copy_backlog.hpp"
#include "tiers/tier.hpp"
#include "tiers/tier_inventory.hpp"
#include "tiers/version_copier.hpp"
#include "version/attempt.hpp"

namespace slackwater {

// What a worker is given. Everything outlives it.
struct TierWork {
  const Tier& tier;
  FileSystem& local;             // reaches tier 0
  const std::string local_root;  // of tier 0
  const Clock& clock;
  const Log& log;
  CopyBacklog& backlog;
  BandwidthCap& cap;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  bool direct_io = true;
  std::uint64_t buffer_bytes = 0;  // for the copies of this tier
  // With a directory on each node: whether this rank leads the ranks of its node. Null: all share tier 0.
  const std::atomic<bool>* leads_node = nullptr;
  unsigned number = 1;  // of the tier, for the names of threads
  // What this tier has still to delete, and another node than rank 0's has noted (Promotions::hear_deletes). Rank 0
  // follows, and the leader of that node unlinks its notes then.
  const Guarded<std::vector<DeleteNote>>& deletes_heard;

  // Whether an error is about tier 0, and not about the tier that is copied to.
  [[nodiscard]] bool is_about_source(const Error& error) const { return error.path.starts_with(local_root + "/"); }
  // Whether each node copies what it has of a version, and not each rank what belongs to its number.
  [[nodiscard]] bool shares_by_node(const VersionName& version, std::uint32_t attempt) const {
    return leads_node != nullptr && version.attempt != attempt;
  }
  // Whether this rank copies the files of a rank that wrote the version, perhaps in a run with more or fewer ranks.
  [[nodiscard]] bool owns(const RecordReference& reference) const { return reference.rank % world == rank; }
  // Copies this rank's share of a version, which an earlier run may have saved with more or fewer ranks, or with its
  // ranks on other nodes. `attempt` is that of this run. Returns the names of the records that are on the tier now.
  [[nodiscard]] Result<std::vector<std::string>> copy_share(const VersionFiles& files, VersionCopier& copier,
                                                            std::uint32_t attempt, const CopyOptions& options) const;
  [[nodiscard]] CopyOptions copy_options(const std::stop_token& stop) const;
};

// How often a file of tier 0 may fail to be read before its version is given up. It may be away for a moment; but one
// that cannot be read must not keep newer versions from the tier. (Each read is tried several times by itself.)
inline constexpr int kSourceTries = 3;

class TierWorker {
 public:
  enum class Outcome : std::uint8_t {
    kIdle,     // nothing to do until something is added
    kWaiting,  // other ranks are not done; look again soon
    kWorked,   // there may be more to do
  };

  virtual ~TierWorker() = default;
  // What is on the tier, and which of it the user has deleted.
  [[nodiscard]] virtual Result<TierInventory> inventory() = 0;
  // The run goes on under this attempt. Called again until it succeeds.
  [[nodiscard]] virtual Status begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) = 0;
  // Does the next piece of work. kAborted: another run has taken this tier over. kClosed: told to stop.
  [[nodiscard]] virtual Result<Outcome> advance(const std::stop_token& stop) = 0;
  // The user deleted these. Only rank 0 deletes.
  [[nodiscard]] virtual Status remove(const std::vector<DeleteNote>& deleted) = 0;
  // Ends threads of its own, and gives up the lock of the tier. From the thread that stops the promoter, once that has
  // ended.
  virtual void stop() {}
};

}  // namespace slackwater
