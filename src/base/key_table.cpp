#include "base/key_table.hpp"

#include <utility>

namespace slackwater {

void KeyTable::set(const std::string& key, std::string value) {
  std::lock_guard lock(mutex_);
  values_.insert_or_assign(key, std::move(value));
}

std::vector<std::optional<std::string>> KeyTable::get(const std::vector<std::string>& keys) const {
  std::vector<std::optional<std::string>> found;
  found.reserve(keys.size());
  std::lock_guard lock(mutex_);
  for (const std::string& key : keys) {
    const auto at = values_.find(key);
    found.push_back(at == values_.end() ? std::nullopt : std::optional(at->second));
  }
  return found;
}

void KeyTable::remove(const std::vector<std::string>& keys) {
  std::lock_guard lock(mutex_);
  for (const std::string& key : keys) values_.erase(key);
}

std::map<std::string, std::string> KeyTable::values() const {
  std::lock_guard lock(mutex_);
  return values_;
}

}  // namespace slackwater
