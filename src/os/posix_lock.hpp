// PosixLock: an flock that forked children do not keep alive. The text in the lock file names the holder, for people
// only.
// Owner: the engine. Thread rule: any thread. Lifetime: the lock ends with its destructor or with the process.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "os/file_system.hpp"

namespace slackwater {

// Whether acquire() failed because the file system has no locks, not because somebody else holds this one.
[[nodiscard]] bool locks_unknown(const Error& error);

// The text of a lock file, one line each. It is untrusted: what is not printable is left out.
struct LockHolder {
  std::string process;  // "process 47 on node7"
  std::string doing;    // empty: it is a run
  std::string remedy;
};
inline constexpr std::uint64_t kMaxLockTextBytes = 1024;
[[nodiscard]] LockHolder parse_lock_holder(std::string_view text);

class PosixLock final : public FileLock {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FileLock>> acquire(const std::string& path);
  ~PosixLock() override;
  void explain(std::string_view doing, std::string_view remedy) override;

 private:
  PosixLock();

  UniqueFd descriptor_;
  // An flock lives as long as any copy of its descriptor. A data loader that outlives a killed trainer would block the
  // restart, so children close their copy. Declared last, so that it is destroyed before the descriptor.
  ForkGuard guard_;
};

}  // namespace slackwater
