// Restorer: restore() on the trainer's thread. It tries versions from the newest to the oldest, places one in the
// caller's tensors, and passes over damaged ones. The next attempt then continues the restored version. With several
// ranks, all of them place the same version, or the restore fails on all.
// Owned by Engine::Impl. Thread rule: restore() belongs to the trainer's thread. close() may run during it, even inside
// it, in the caller's plan. close() calls leave_ranks() and does not wait for restore().
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_shared.hpp"
#include "engine/pipeline_maker.hpp"
#include "engine/repair_thread.hpp"
#include "engine/restore_source.hpp"
#include "ranks/restore_protocol.hpp"
#include "slackwater/engine.hpp"
#include "tiers/tier_probes.hpp"

namespace slackwater {

// "40, 41", or "none".
[[nodiscard]] std::string listed(const std::vector<VersionInfo>& versions);

class Restorer {
 public:
  Restorer(EngineShared& shared, PipelineMaker& pipelines) : shared_(shared), pipelines_(pipelines), repairs_(shared) {}

  using Plan = Engine::Plan;
  [[nodiscard]] Result<std::optional<Restored>> restore(const RestoreOptions& options, const Plan& plan);
  // For close(): this rank leaves the transport. If a restore() is under way, the last one leaves when it ends.
  void leave_ranks();
  // For close(): repairs and probes of lower tiers end soon. True: none is under way.
  [[nodiscard]] bool request_stop();
  void stop();  // waits for their end

 private:
  // What the versions tried so far have done to the caller's tensors.
  struct Placing {
    bool began = false;
    std::set<std::string> placed;  // by versions that failed; the one that succeeds must overwrite each
    std::optional<Error> refusal;  // by the caller: ends the restore, even if it looks like damage
    std::function<void()> on_progress = [] {};
  };

  [[nodiscard]] Result<std::optional<Restored>> restore_alone(RestoreSource& source, const RestoreOptions& options,
                                                              const Plan& plan);
  [[nodiscard]] Result<std::optional<Restored>> restore_together(RestoreSource& source, const RestoreOptions& options,
                                                                 const Plan& plan);
  // The versions that may be tried, the oldest first, and the catalog they are from. If the newest one is in memory, no
  // lower tier is asked, because one that does not respond would delay the restore.
  struct Candidates {
    Catalog catalog;
    std::vector<CatalogEntry> versions;
    bool from_memory = false;
  };
  [[nodiscard]] Result<Candidates> candidates_in_memory(RestoreSource& source, std::optional<std::uint64_t> step);
  [[nodiscard]] Result<Candidates> candidates(RestoreSource& source, std::optional<std::uint64_t> step);
  // There is no version to try: nothing was restored, or the step asked for does not exist.
  [[nodiscard]] Result<std::optional<Restored>> nothing(const RestoreOptions& options, const Catalog& catalog) const;
  [[nodiscard]] Status place_version(RestoreSource& source, const CatalogEntry& entry, const RestoreOptions& options,
                                     const Plan& plan, Placing& placing);
  [[nodiscard]] Status place_from(FileSystem& fs, RestoreSource* source, const CatalogEntry& entry,
                                  const RestoreOptions& options, const Plan& plan, Placing& placing);
  [[nodiscard]] Status wait_for_targets(const std::vector<Target>& targets, const std::vector<StreamRef>& after);
  void use_restored(const VersionInfo& version, const LiveVersions::Seen& seen);
  void begin_repair(const RestoreSource& source, const VersionInfo& version);
  void end_call();

  EngineShared& shared_;
  PipelineMaker& pipelines_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;
  CommitProtocol* const protocol_ = shared_.protocol.get();

  RestoreCalls restore_calls_;  // of the trainer's thread

  TierProbes probes_;
  RepairThread repairs_;

  std::mutex mutex_;               // guards what follows
  unsigned restoring_ = 0;         // calls under way
  bool leave_to_restore_ = false;  // the last of them leaves
};

}  // namespace slackwater
