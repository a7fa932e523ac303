// Flush: writes a version from a keeper's memory to tier 0 and commits it, after its trainer has died, in the order of
// docs/durability.md. For versions of one rank: a version of several ranks takes the votes of all.
// Thread rule: one thread. Nothing is published once the gate is closed.
#pragma once

#include <mutex>
#include <string>

#include "base/log.hpp"
#include "keeper/region.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// Whether a keeper may still publish. The next trainer closes it when it takes over. close() waits for a decision that
// is being written at that moment, and for nothing else: the disk may be slow.
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

// kAborted: the gate was closed, or another run has taken the directory. kCorrupt: the memory does not hold what its
// digests say; nothing of it is published. A version that is on disk already counts as flushed.
[[nodiscard]] Status flush_version(FileSystem& fs, const Clock& clock, const std::string& root, const Region& region,
                                   const Region::Kept& kept, PublishGate& gate, const Log& log);

}  // namespace slackwater
