#include "base/fork_guard.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace slackwater {

struct ForkRegistry {
  std::mutex mutex;
  std::vector<ForkGuard*> guards;  // guarded by mutex

  // Never destroyed, because forks and guards may come after the static destructors.
  static ForkRegistry& get() {
    static ForkRegistry* const registry = [] {
      auto* made = new ForkRegistry;
      pthread_atfork(before_fork, in_parent, in_child);
      return made;
    }();
    return *registry;
  }

  // The forking thread holds the mutex across the fork, and it is the only thread in the child. So the child sees no
  // half-registered guard, and it can destroy guards without waiting for a thread that does not exist there.
  static void before_fork() { get().mutex.lock(); }
  static void in_parent() { get().mutex.unlock(); }
  static void in_child() {
    for (ForkGuard* guard : get().guards) guard->in_child_();
    get().mutex.unlock();
  }
};

ForkGuard::ForkGuard(std::function<void()> in_child) : in_child_(std::move(in_child)) {
  ForkRegistry& registry = ForkRegistry::get();
  const std::lock_guard lock(registry.mutex);
  registry.guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  ForkRegistry& registry = ForkRegistry::get();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.guards, this);
}

}  // namespace slackwater
