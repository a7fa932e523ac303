// TornTensors: tensors that were found changed between save() and the fence. From then on they are captured inside
// save(), together with the whole object they belong to (State::objects). The reason: code that updates one tensor of a
// weight average too early updates all of them, and each would cost a snapshot.
// Volatile tensors that an earlier save() had no room for are kept apart from the rest of their object: a forward pass
// changes all buffers of a module and none of its parameters.
// Owned by EngineStatus. Saver and Committer ask it; snapshots report to it. Thread rule: thread-safe. In a forked
// child nobody calls it.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

class TornTensors {
 public:
  // Which tensors of a state must be captured inside save(). `is_volatile` is parallel to State::tensors. Empty: none.
  [[nodiscard]] std::vector<bool> among(const State& state, const std::vector<bool>& is_volatile) const;
  // For learn(): the objects of the newest state, and its volatile tensors that are captured later.
  void note_state(const std::vector<std::string>& objects, std::set<std::string, std::less<>> left_for_later);
  // These were found changed. Called before anybody can see the snapshot fail, so that the next save() knows of them.
  void learn(const std::vector<std::string>& tensors);
  // For the log: one sentence for each object or tensor learned since the last call.
  [[nodiscard]] std::vector<std::string> take_news();

 private:
  struct Part {
    std::string object;  // or a tensor that belongs to none
    bool only_volatile = false;
    auto operator<=>(const Part&) const = default;
  };

  mutable std::mutex mutex_;  // guards all below
  std::set<Part> torn_;
  std::vector<std::string> objects_;
  std::set<std::string, std::less<>> left_for_later_;
  std::vector<std::string> news_;
};

}  // namespace slackwater
