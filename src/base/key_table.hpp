// KeyTable: keys and values in memory, for a KeyValueStore that lives in this process.
// Owner: that store. Thread rule: thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace slackwater {

class KeyTable {
 public:
  void set(const std::string& key, std::string value);
  [[nodiscard]] std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) const;
  void remove(const std::vector<std::string>& keys);
  [[nodiscard]] std::map<std::string, std::string> values() const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::string> values_;
};

}  // namespace slackwater
