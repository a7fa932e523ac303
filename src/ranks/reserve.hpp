// Reserve: space kept back in a file, <tier>/.slackwater/reserve, for a disk that is full. Ranks that communicate
// through the directory need space for their messages, and restore() must work on a full disk. A rank that finds no
// space removes the file and tries again. Rank 0 makes it. Having none is no error: it is made when there is space
// again.
// Thread rule: thread-safe.
// Lifetime: FileSystem and Clock outlive it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "os/clock.hpp"
#include "os/file_system.hpp"

namespace slackwater {

class Reserve {
 public:
  // `control`: the path of .slackwater.
  Reserve(FileSystem& fs, const Clock& clock, std::string control);

  // Makes the file if it is missing and there is much more space than it takes. Cheap: checks once a minute.
  void keep(std::uint32_t world);
  // Frees the space, unless another rank has done so.
  void release();

 private:
  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string control_;

  std::mutex mutex_;
  TimePoint next_check_ = TimePoint::min();  // guarded by mutex_
};

}  // namespace slackwater
