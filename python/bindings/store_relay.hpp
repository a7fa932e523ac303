// StoreRelay: a KeyValueStore whose calls are answered by one Python thread, for example with the store of
// torch.distributed. Engine threads leave a call here and wait for the answer without ever taking the GIL. The Python
// thread waits for calls without it. A call that is not answered within the time-out returns an error, however long the
// other side hangs.
// Thread rule: thread-safe. Lifetime: shared by the engine, as its store, and by Python. It holds no Python object.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/key_value_store.hpp"

namespace slackwater::python {

class StoreRelay final : public KeyValueStore {
 public:
  explicit StoreRelay(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  [[nodiscard]] Status set(const std::string& key, const std::string& value) override;
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override;
  void remove(const std::vector<std::string>& keys) override;

  enum class Verb : std::uint8_t { kSet, kGet, kRemove };
  struct Call {
    Verb verb = Verb::kGet;
    std::vector<std::string> keys;
    std::string value;  // of kSet
  };
  struct Numbered {
    std::uint64_t number = 0;
    Call call;
  };
  using Values = std::vector<std::optional<std::string>>;

  // Waits for a call and takes the oldest one. nullopt: closed.
  [[nodiscard]] std::optional<Numbered> next();
  // No effect if nobody waits for the answer any more.
  void answer(std::uint64_t number, Result<Values> outcome);
  // Fails the waiting calls and all later ones.
  void close();

 private:
  [[nodiscard]] Result<Values> ask(Call call);

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable called_;
  std::condition_variable answered_;
  std::deque<Numbered> calls_;                                   // not taken yet
  std::map<std::uint64_t, std::optional<Result<Values>>> open_;  // calls that somebody waits for, by number
  std::uint64_t last_ = 0;
  bool closed_ = false;
};

// What Python holds: a reference that is dropped without the GIL.
struct StoreRelayHandle {
  std::shared_ptr<StoreRelay> relay;
};

}  // namespace slackwater::python
