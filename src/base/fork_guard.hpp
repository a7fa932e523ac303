// Runs a callback in every forked child (pthread_atfork), as long as the guard lives. Needed because threads and
// locks do not survive a fork: the child has to disown what the parent runs. The registry behind it is the one process-wide
// state of the project; pthread_atfork leaves no other way.
// Thread rule: construct and destroy on any thread. The callback runs in the child, where only async-signal-safe
// work is allowed: set an atomic, close a descriptor; never lock, never allocate.
#pragma once

#include <functional>

namespace slackwater {

class ForkGuard {
 public:
  explicit ForkGuard(std::function<void()> in_child);
  ~ForkGuard();  // safe in the child too
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  std::function<void()> in_child_;
  friend struct ForkRegistry;
};

}  // namespace slackwater
