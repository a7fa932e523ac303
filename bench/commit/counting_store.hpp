// MemoryStore and CountingStore: a KeyValueStore in this process, and a way to it that counts what passes. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/key_table.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater::bench {

class MemoryStore final : public KeyValueStore {
 public:
  [[nodiscard]] Status set(const std::string& key, const std::string& value) override;
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override;
  void remove(const std::vector<std::string>& keys) override;

 private:
  KeyTable table_;
};

class CountingStore final : public KeyValueStore {
 public:
  struct Counts {
    std::uint64_t calls = 0;
    std::uint64_t values = 0;  // set, and got
    std::uint64_t bytes = 0;   // of keys and values
  };

  explicit CountingStore(KeyValueStore& store) : store_(store) {}

  [[nodiscard]] Status set(const std::string& key, const std::string& value) override;
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override;
  void remove(const std::vector<std::string>& keys) override;

  [[nodiscard]] Counts take();  // since the last call

 private:
  void count_keys(const std::vector<std::string>& keys);

  KeyValueStore& store_;
  std::atomic<std::uint64_t> calls_ = 0;
  std::atomic<std::uint64_t> passed_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace slackwater::bench
