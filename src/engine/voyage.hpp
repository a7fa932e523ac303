// Voyage: everything one snapshot carries with it on the road, from save() to its end. Passed along by the engine's threads one
// after the other (save -> plan -> copy and write -> commit), so most of it needs no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "commit/attempt.hpp"
#include "commit/names.hpp"
#include "engine/capture.hpp"
#include "engine/replica_digests.hpp"
#include "engine/replica_samples.hpp"
#include "engine/snapshot_impl.hpp"
#include "layout/stream_layout.hpp"
#include "stage/stager.hpp"
#include "store/stream_writer.hpp"

namespace slackwater {

struct Voyage {
  std::shared_ptr<Snapshot::Impl> snapshot;
  State state;  // with the tensors this rank writes
  Capture captured;
  std::uint64_t replicas = 0;            // ReplicaShares::list()
  ReplicaDigestsOfRank replica_digests;  // none once these replicas have been compared
  bool compares_every_byte = false;      // whether there would be some, if there are replicas
  ReplicaLook replica_look;              // with several ranks

  // Set by the plan thread.
  Attempt attempt;
  VersionName name;
  std::string directory;  // of this version; empty until it was made
  std::shared_ptr<const SnapshotLayout> layout;
  std::shared_ptr<StageJob> job;
  std::vector<StreamWriter::StreamId> streams;  // by part
  std::string index_text;
  std::uint64_t tensor_count = 0;                  // in it
  std::map<std::string, Digest128> value_digests;          // of the members at the top of the tree
  std::map<std::string, std::uint64_t> replicated_values;  // digests of those that all ranks should have alike

  // Guarded by the engine's mutex_.
  bool to_pin = false;       // somebody wants it pinned
  bool pin_settled = false;  // nobody looks at to_pin any more: pin() has to do it

  bool pinned = false;  // of the commit thread: that was done
  bool voted = false;  // of the commit thread: the other ranks have this one's ballot

  std::mutex mutex;             // guards what follows
  bool launched = false;        // handed to the pipeline
  bool given_up = false;        // cancelled before that
  std::uint32_t under_way = 0;  // copies (1), streams (1 each) and the plan (1) that have not ended yet
  std::vector<std::optional<WrittenStream>> written;  // by part

  std::atomic<bool> arrived{false};  // nothing of it is under way any more: the commit thread's turn

  void end_one(const std::function<void()>& on_arrived) {
    bool last = false;
    {
      std::lock_guard lock(mutex);
      last = --under_way == 0;
    }
    if (last) on_arrived();
  }
};

}  // namespace slackwater
