// FreeSpaceWatch: says ahead of time that the disk will be full before `keep` and `in_flight` have what they need.
// Owned by the planner of rank 0. Thread rule: one thread (sw-plan).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace slackwater {

class FreeSpaceWatch {
 public:
  // `keep`: 0 keeps all, so only what is in flight counts.
  FreeSpaceWatch(std::uint64_t keep, std::uint64_t in_flight) : keep_(keep), in_flight_(in_flight) {}

  // Before the files of a version are made. `present` counts the other versions on the disk, those in flight included.
  // A sentence if the space is short, once for each checkpoint less that fits. Room for all of them is a new start.
  [[nodiscard]] std::optional<std::string> check(std::uint64_t free_bytes, std::uint64_t version_bytes,
                                                 std::uint64_t present);

 private:
  const std::uint64_t keep_;
  const std::uint64_t in_flight_;
  std::optional<std::uint64_t> told_;  // how many fitted at the last warning
};

}  // namespace slackwater
