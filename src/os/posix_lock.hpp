// PosixLock: an flock that its owner's forked children do not keep alive. Owned by the Engine; released by its destructor
// or by the end of the process. The lock file names its holder, for people only.
#pragma once

#include <memory>
#include <string>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "os/file_system.hpp"

namespace slackwater {

// Whether acquire() failed because the file system has no locks, not because somebody else has this one.
[[nodiscard]] bool locks_unknown(const Error& error);

class PosixLock final : public FileLock {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FileLock>> acquire(const std::string& path);
  ~PosixLock() override;

 private:
  PosixLock();

  UniqueFd descriptor_;
  // An flock lives as long as any copy of its descriptor: a data loader that outlives a killed trainer would block the
  // restart. So children close theirs. Declared last: gone before the descriptor is.
  ForkGuard guard_;
};

}  // namespace slackwater
