// StoreTable: the keys and their values, in the memory of rank 0. Owned by its store. Thread-safe: rank 0's own threads use it as the
// server does.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace slackwater {

class StoreTable {
 public:
  void set(const std::string& key, std::string value);
  [[nodiscard]] std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) const;
  void remove(const std::vector<std::string>& keys);

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::string> values_;
};

}  // namespace slackwater
