// FreeSpaceWatch: says ahead of time that a directory will be full before `keep` and `in_flight` have what they need,
// or before the versions do that wait for lower tiers.
// Owned by whoever writes versions there: the planner of a rank that leads a node (tier 0), or the TierLeader of a
// lower tier. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace slackwater {

class FreeSpaceWatch {
 public:
  // `keep`: 0 keeps all, so only what is in flight counts. `held`: how many versions beyond `keep` may have to stay,
  // because they wait for lower tiers.
  FreeSpaceWatch(std::uint64_t keep, std::uint64_t in_flight, std::uint64_t held = 0)
      : keep_(keep), in_flight_(in_flight), held_(keep == 0 ? 0 : held) {}

  // Before the files of a version are made. `present` counts the other versions on the disk, those in flight included.
  // A sentence if the space is short, once for each checkpoint more that is missing, and when not even the next one
  // fits any more. Room for all is a new start.
  [[nodiscard]] std::optional<std::string> check(std::uint64_t free_bytes, std::uint64_t version_bytes,
                                                 std::uint64_t present);

 private:
  // How many versions do not fit if `slots` are to be there. True: that is more than was told.
  struct Shortage {
    std::uint64_t wanted = 0;  // besides those present
    std::uint64_t missing = 0;
    std::uint64_t told = 0;  // how many were missing at the last warning
    bool told_none_fits = false;
    [[nodiscard]] bool is_news(std::uint64_t slots, std::uint64_t present, std::uint64_t fits);
  };

  const std::uint64_t keep_;
  const std::uint64_t in_flight_;
  const std::uint64_t held_;
  Shortage for_certain_;
  Shortage if_tiers_are_slow_;
};

}  // namespace slackwater
