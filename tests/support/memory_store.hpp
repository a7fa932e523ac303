// MemoryStore: a KeyValueStore in this process, for ranks that are threads. It can be told to fail.
// Thread rule: thread-safe. Lifetime: shared by the ranks that talk through it.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/key_table.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater::test {

class MemoryStore final : public KeyValueStore {
 public:
  [[nodiscard]] Status set(const std::string& key, const std::string& value) override {
    if (auto error = broken()) return fail(*error);
    table_.set(key, value);
    return {};
  }
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override {
    if (auto error = broken()) return fail(*error);
    return table_.get(keys);
  }
  void remove(const std::vector<std::string>& keys) override {
    if (!broken()) table_.remove(keys);
  }

  // From now on every call fails with this, until it is taken back.
  void breaks(std::optional<Error> error) {
    std::lock_guard lock(mutex_);
    broken_ = std::move(error);
  }
  [[nodiscard]] std::map<std::string, std::string> values() const { return table_.values(); }

 private:
  [[nodiscard]] std::optional<Error> broken() const {
    std::lock_guard lock(mutex_);
    return broken_;
  }

  KeyTable table_;
  mutable std::mutex mutex_;
  std::optional<Error> broken_;
};

}  // namespace slackwater::test
