#include "bench/commit/counting_store.hpp"

namespace slackwater::bench {

Status MemoryStore::set(const std::string& key, const std::string& value) {
  table_.set(key, value);
  return {};
}

Result<std::vector<std::optional<std::string>>> MemoryStore::get(const std::vector<std::string>& keys) {
  return table_.get(keys);
}

void MemoryStore::remove(const std::vector<std::string>& keys) { table_.remove(keys); }

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

}  // namespace slackwater::bench
