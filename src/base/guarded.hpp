// Guarded<T>: a value and the mutex that guards it, so that nobody reaches the one without the other. Thread rule:
// thread-safe. The lock is held as long as what lock() returns lives. In `x.lock()->call()` that is the end of the
// whole expression: nothing slow belongs there.
#pragma once

#include <mutex>
#include <utility>

namespace slackwater {

template <class T>
class Guarded {
 public:
  template <class... Args>
  explicit Guarded(Args&&... args) : value_(std::forward<Args>(args)...) {}

  template <class Value>
  class Access {
   public:
    Access(std::mutex& mutex, Value& value) : lock_(mutex), value_(value) {}
    Value* operator->() const { return &value_; }
    Value& operator*() const { return value_; }

   private:
    std::unique_lock<std::mutex> lock_;
    Value& value_;
  };
  [[nodiscard]] Access<T> lock() { return {mutex_, value_}; }
  [[nodiscard]] Access<const T> lock() const { return {mutex_, value_}; }

 private:
  mutable std::mutex mutex_;
  T value_;
};

}  // namespace slackwater
