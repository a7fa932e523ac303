// Flush: writes a version from the memory of keepers to tier 0 and commits it, in the order of docs/durability.md. A
// keeper does so after its trainer has died, with a version of one rank. A trainer does so after it has restored a
// version that is only in memory; with several ranks, rank 0 then writes the parts of all.
// Thread rule: one thread. Nothing is published once the gate is closed.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/log.hpp"
#include "keeper/rank_parts.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/manifest.hpp"

namespace slackwater {

// Whether the flush may still publish. Whoever takes over closes it: the next trainer, or the next attempt. close()
// waits for a decision that is being written at that moment, and for nothing else: the disk may be slow.
class PublishGate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  [[nodiscard]] bool open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  // Calls `publish` unless the gate is closed, and keeps it from closing meanwhile. False: it is closed.
  template <class Publish>
  [[nodiscard]] bool pass(Publish publish) {
    const std::lock_guard lock(mutex_);
    if (open_) publish();
    return open_;
  }

 private:
  mutable std::mutex mutex_;
  bool open_ = true;  // guarded by mutex_
};

// `parts`: of all ranks, in order. `member`: of rank 0, in the attempt that staged the version. The caller holds the
// lock of the directory. Returns the decision, which is a commit; a version that is on disk already counts as flushed.
// kAborted: the gate was closed, another run has taken the directory, or the step was given up. kCorrupt: the memory
// does not hold what its digests say. Then nothing is published.
[[nodiscard]] Result<Manifest> flush_version(FileSystem& fs, const Clock& clock, const std::string& root,
                                             std::span<const RankPart> parts, const std::string& member,
                                             PublishGate& gate, const Log& log);

// Whether the step would be lost with this memory: the newest attempt is the one that it belongs to, and tier 0 has no
// decision about it. True also if that cannot be read.
[[nodiscard]] bool is_unsaved(FileSystem& fs, const std::string& root, const Region::Kept& kept);
// Such a step in the memory, if there is one.
[[nodiscard]] std::optional<std::uint64_t> unsaved_step(FileSystem& fs, const std::string& root, const Region& region);

}  // namespace slackwater
