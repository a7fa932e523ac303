// TierProbes: asks all lower tiers at once whether they can be reached, each on a thread of its own (sw-probe-N). A
// restore does not wait long for one that does not respond. Its probe goes on, and the next restore looks for its
// answer. Engine::open() asks in the same way whether two tiers are one directory.
// Owned by the Restorer; those of Engine::open() by EngineShared, if a tier has not answered.
// Thread rule: ask() belongs to the trainer's thread, request_stop() and stop() to close().
// Lifetime: the tiers' FileSystems outlive it. After stop_transfers(), probes of object stores end at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "slackwater/error.hpp"
#include "tiers/tier_overlay.hpp"

namespace slackwater {

// Whether the tier answers. A directory that is missing together with its parent is a mount that is not there. If only
// the directory itself is missing, nothing was ever copied to it.
[[nodiscard]] Status probe_tier(const TierPlace& tier);

class TierProbes {
 public:
  ~TierProbes() { stop(); }

  struct Answers {
    std::map<std::size_t, Error> unreachable;  // by index
    bool late = false;                         // one of them has not answered yet
  };
  // Without `timeout` it waits as long as it takes. `question` is asked on the threads, perhaps until long after this
  // call has returned.
  [[nodiscard]] Answers ask(const std::vector<TierPlace>& tiers, std::optional<std::chrono::milliseconds> timeout,
                            const std::function<Status(const TierPlace&)>& question = probe_tier);

  // No probe begins any more. True: none is under way.
  [[nodiscard]] bool request_stop();
  void stop();  // the same, and waits for those under way

 private:
  struct Probe {
    std::jthread thread;
    std::optional<Status> answer;  // none: under way
  };
  void begin(const TierPlace& tier, const std::function<Status(const TierPlace&)>& question);  // with the lock held
  [[nodiscard]] const std::optional<Status>& answer_of(const TierPlace& tier) const;           // with the lock held

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::string, Probe> probes_;  // by root
  bool stopped_ = false;
};

}  // namespace slackwater
