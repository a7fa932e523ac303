// ForkGuard: runs a callback in every forked child while the guard lives. Threads and locks do not survive a fork, so
// the child must disown what the parent runs. The registry behind the guards is the only process-wide state in the
// project, because pthread_atfork cannot be undone.
// Owner: the object that its callback disowns. Thread rule: construct and destroy it on any thread. The callback runs
// in the child and may do only async-signal-safe work: set an atomic, close a descriptor. It must not lock or allocate.
#pragma once

#include <functional>

namespace slackwater {

class ForkGuard {
 public:
  explicit ForkGuard(std::function<void()> in_child);
  ~ForkGuard();  // also safe in the child
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  std::function<void()> in_child_;
  friend struct ForkRegistry;
};

}  // namespace slackwater
