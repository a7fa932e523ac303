// MemoryStore: a KeyValueStore in this process, for ranks that are threads. It can be told to fail.
// Thread rule: thread-safe. Lifetime: shared by the ranks that talk through it.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slackwater/key_value_store.hpp"

namespace slackwater::test {

class MemoryStore final : public KeyValueStore {
 public:
  [[nodiscard]] Status set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    if (broken_) return fail(*broken_);
    values_[key] = value;
    return {};
  }
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override {
    std::lock_guard lock(mutex_);
    if (broken_) return fail(*broken_);
    std::vector<std::optional<std::string>> found;
    for (const std::string& key : keys) {
      const auto value = values_.find(key);
      found.push_back(value == values_.end() ? std::nullopt : std::optional(value->second));
    }
    return found;
  }
  void remove(const std::vector<std::string>& keys) override {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    for (const std::string& key : keys) values_.erase(key);
  }

  // From now on every call fails with this, until it is taken back.
  void breaks(std::optional<Error> error) {
    std::lock_guard lock(mutex_);
    broken_ = std::move(error);
  }
  [[nodiscard]] std::map<std::string, std::string> values() const {
    std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::optional<Error> broken_;
};

}  // namespace slackwater::test
