// SaveJob: everything that belongs to one snapshot on its way, from save() to its end.
// Owned by InFlight. Thread rule: the engine's threads pass it on from one to the next (save -> plan -> copy and write
// -> commit), so most of it needs no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/guarded.hpp"
#include "capture/capture.hpp"
#include "capture/replica_digests.hpp"
#include "capture/replica_samples.hpp"
#include "engine/kept_slabs.hpp"
#include "engine/snapshot_impl.hpp"
#include "layout/file_layout.hpp"
#include "stage/stager.hpp"
#include "store/file_writer.hpp"
#include "version/attempt.hpp"
#include "version/names.hpp"

namespace slackwater {

// Whether somebody wants a step in flight pinned.
struct PinRequest {
  bool wanted = false;
  bool settled = false;  // sw-commit will not check again: pin() must write it
};

class Pipeline;

struct SaveJob {
  SaveJob() = default;
  ~SaveJob() {
    if (state.take_back) state.take_back(std::move(state.tensors));
  }
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  std::shared_ptr<Snapshot::Impl> snapshot;
  State state;  // only the tensors that this rank writes
  Capture captured;
  std::vector<std::uint32_t> at_once_tensors;  // indices in the state as it was passed to save()
  std::uint64_t replicas = 0;                  // ReplicaShares::list()
  ReplicaDigestsOfRank replica_digests;        // empty once these replicas have been compared
  bool compares_every_byte = false;            // whether replica_digests was taken; also true without replicas
  PendingReplicaSamples replica_samples;       // with several ranks

  // Set by sw-plan.
  Attempt attempt;
  VersionName name;
  std::string directory;  // of this version; empty until it is made
  std::shared_ptr<const SnapshotLayout> layout;
  std::vector<CopiesOfDevice> device_copies;  // made by sw-sample, moved to stage_job by Pipeline::launch()
  std::shared_ptr<StageJob> stage_job;
  std::vector<FileWriter::FileId> files;  // by part
  std::string index_text;
  std::uint64_t tensor_count = 0;                          // in the index
  std::map<std::string, Digest128> value_digests;          // of State::values
  std::map<std::string, std::uint64_t> replicated_values;  // digests of values that should be the same on all ranks

  std::shared_ptr<KeptVersion> kept;  // set by Pipeline::launch(); null: not kept in memory

  std::mutex samples_mutex;  // guards replica_samples: sw-commit and sw-memory both vote with them
  Guarded<PinRequest> pin;
  bool pinned = false;  // of sw-commit: the pin was written
  bool voted = false;   // of sw-commit: the other ranks may have this one's vote

  std::mutex mutex;              // guards what follows
  Pipeline* launched = nullptr;  // the pipeline that has it; null: not launched yet
  bool given_up = false;         // before it was launched
  std::uint32_t under_way = 0;   // operations that have not ended: the copies (1), each file (1), the plan (1)
  std::vector<std::optional<WrittenFile>> written;  // by part

  // What is on devices was sampled for the first time, or that failed. From then on, device_copies is sw-plan's.
  std::atomic<bool> sampled{false};
  std::atomic<bool> drained{false};  // all its copies and writes have ended; sw-commit takes over

  // Who writes the files of this job: the rank of the engine, or of the part.
  [[nodiscard]] FileIdentity identity(const Options& options) const {
    return {.step = name.step,
            .attempt = name.attempt,
            .rank = state.part ? state.part->rank : options.rank,
            .world = state.part ? state.part->world : options.world};
  }
  [[nodiscard]] std::string rank_directory(const RankFiles& of_world, const Options& options) const {
    return state.part ? RankFiles::of_world(state.part->world).directory(state.part->rank)
                      : of_world.directory(options.rank);
  }

  // Ends one operation. The last one calls `on_drained`.
  void finish_operation(const std::function<void()>& on_drained) {
    bool last = false;
    {
      std::lock_guard lock(mutex);
      last = --under_way == 0;
    }
    if (last) on_drained();
  }
};

// A job that failed before anything of it was under way. It takes the same way as any other, so that sw-commit can tell
// the other ranks.
[[nodiscard]] inline std::shared_ptr<SaveJob> failed_job(const Snapshot::Impl::Spec& spec, const Error& error,
                                                         const std::shared_ptr<EngineStatus>& engine_status) {
  auto job = std::make_shared<SaveJob>();
  job->snapshot = std::make_shared<Snapshot::Impl>(spec, engine_status);
  job->snapshot->fail(error);
  job->snapshot->release_sources();
  job->snapshot->finish_save();
  return job;
}

}  // namespace slackwater
