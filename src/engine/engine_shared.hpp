// EngineShared: what the parts of an engine (Saver, Planner, Committer, Restorer) share. First come members that are
// constant after construction, then small objects with a lock each. docs/threading.md has the order of these locks.
// Owned by Engine::Impl.
// Lifetime: made before the parts, destroyed after them, once close() has stopped all threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "device/devices.hpp"
#include "engine/background_errors.hpp"
#include "engine/cleaner_thread.hpp"
#include "engine/engine_status.hpp"
#include "engine/in_flight.hpp"
#include "engine/live_versions.hpp"
#include "engine/memory_tier.hpp"
#include "engine/pipeline.hpp"
#include "engine/version_store_access.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "ranks/commit_protocol.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/options.hpp"
#include "tiers/promotions.hpp"
#include "tiers/tier.hpp"
#include "tiers/tier_overlay.hpp"
#include "tiers/tier_probes.hpp"
#include "version/version_store.hpp"

namespace slackwater {

// What tests may replace.
struct EngineDependencies {
  std::unique_ptr<FileSystem> fs;  // null: the real one
  std::unique_ptr<Clock> clock;
  std::optional<RankFiles> files = {};      // none: as it follows from the world size
  std::vector<Tier> tiers = {};             // empty: as Options::tiers says
  std::unique_ptr<MemoryTier> memory = {};  // made by open_engine()
  // A lower tier did not respond when the engine was opened, and this still waits for it. Made by open_engine().
  std::unique_ptr<TierProbes> late_probes = {};
  // How long a restore waits for lower tiers that do not respond, if another tier has a checkpoint.
  std::chrono::milliseconds tier_answer_timeout{15'000};
};

class SkipThread;

struct EngineShared {
  EngineShared(Options options_in, EngineDependencies dependencies, std::unique_ptr<VersionStore> version_store,
               const Catalog& catalog, Log log_in);
  ~EngineShared();

  [[nodiscard]] std::vector<TierPlace> lower_tiers() const;
  [[nodiscard]] bool disowned() const { return engine_status->is_disowned(); }
  // What retention leaves alone for now: still to be copied to a lower tier, or being copied back from one.
  [[nodiscard]] std::set<VersionName> held() const;
  // A version was committed and is live now. The lower tiers come first: what is due there is not deleted here.
  void note_committed(const Manifest& manifest, bool pinned);

  // Constant after construction, or thread-safe.
  const Options options;
  const Log log;
  const std::unique_ptr<FileSystem> fs;
  const std::unique_ptr<Clock> clock;
  const RankFiles files;
  const std::vector<Tier> tiers;  // below tier 0
  const std::chrono::milliseconds tier_answer_timeout;
  Devices devices;
  const std::shared_ptr<EngineStatus> engine_status;
  const std::unique_ptr<RankTransport> transport;  // null if there is one rank, and so is the protocol
  const std::unique_ptr<CommitProtocol> protocol;
  const RetentionPolicy retention;
  const std::unique_ptr<MemoryTier> memory;       // null: there is none
  const std::unique_ptr<TierProbes> late_probes;  // null: all lower tiers responded; stopped by the Restorer

  InFlight jobs;
  VersionStoreAccess versions;
  // Rank 0, and with Options::node_local one rank of each other node, from when it accepts an attempt.
  std::atomic<bool> leads_node;
  Promotions promotions;
  Guarded<LiveVersions> live;
  std::atomic<std::uint32_t> newest_attempt_seen{0};  // by a restore, on any tier and any node
  Guarded<std::set<VersionName>> repairing;           // on tier 0: not complete yet, and not to be deleted
  Guarded<std::set<VersionName>> deleted;             // by delete() of this process: not to be put back by a repair
  Guarded<BackgroundErrors> errors;
  // ReplicaShares::list() of the replicas that a commit under this attempt has shown to be the same in every byte.
  // None: no commit has yet, or a later step found a difference. Then the next save() compares every byte.
  Guarded<std::optional<std::uint64_t>> replicas_compared;
  struct Counts {  // of snapshots
    std::atomic<std::uint64_t> committed{0};
    std::atomic<std::uint64_t> failed{0};
    std::atomic<std::uint64_t> skipped{0};
  } counts;
  Guarded<PipelineSlot> pipeline;
  CleanerThread cleaner;
  const std::unique_ptr<SkipThread> turns;  // null, unless several ranks skip steps
};

}  // namespace slackwater
