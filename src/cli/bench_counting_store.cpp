#include "cli/bench_counting_store.hpp"

namespace slackwater::cli {

Status MemoryStore::set(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  values_[key] = value;
  return {};
}

Result<std::vector<std::optional<std::string>>> MemoryStore::get(const std::vector<std::string>& keys) {
  std::vector<std::optional<std::string>> found;
  found.reserve(keys.size());
  std::lock_guard lock(mutex_);
  for (const std::string& key : keys) {
    const auto value = values_.find(key);
    found.push_back(value == values_.end() ? std::nullopt : std::optional(value->second));
  }
  return found;
}

void MemoryStore::remove(const std::vector<std::string>& keys) {
  std::lock_guard lock(mutex_);
  for (const std::string& key : keys) values_.erase(key);
}

void CountingStore::count_keys(const std::vector<std::string>& keys) {
  ++calls_;
  for (const std::string& key : keys) bytes_ += key.size();
}

Status CountingStore::set(const std::string& key, const std::string& value) {
  count_keys({key});
  ++passed_;
  bytes_ += value.size();
  return store_.set(key, value);
}

Result<std::vector<std::optional<std::string>>> CountingStore::get(const std::vector<std::string>& keys) {
  count_keys(keys);
  auto found = store_.get(keys);
  if (!found) return found;
  for (const auto& value : *found) {
    if (!value) continue;
    ++passed_;
    bytes_ += value->size();
  }
  return found;
}

void CountingStore::remove(const std::vector<std::string>& keys) {
  count_keys(keys);
  store_.remove(keys);
}

CountingStore::Counts CountingStore::take() { return {calls_.exchange(0), passed_.exchange(0), bytes_.exchange(0)}; }

}  // namespace slackwater::cli
