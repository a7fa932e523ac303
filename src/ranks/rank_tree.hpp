// RankTree: who reports to whom. Ranks form groups of `fan_in`, and the lowest rank of a group leads it. The group
// leaders form groups of the next level in the same way, up to rank 0. So no rank receives more than fan_in - 1
// messages on a level, and there are log N levels. A plain value. Thread rule: constant after construction.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater {

class RankTree {
 public:
  RankTree(std::uint32_t rank, std::uint32_t world, std::uint32_t fan_in);  // fan_in: 2 or more

  [[nodiscard]] unsigned levels() const { return levels_; }  // on which rank 0 has children
  [[nodiscard]] unsigned height() const { return height_; }  // on which this rank has children; 0: it leads no group
  // The ranks that report to this one on a level from 1 to height().
  [[nodiscard]] std::vector<std::uint32_t> children(unsigned level) const;
  // The channel on which this rank's group on that level reports to its leader. `name`: what about.
  [[nodiscard]] std::string channel(std::string_view name, unsigned level) const;
  // The number of ranks that this one leads, itself included. Their numbers are consecutive and begin with its own.
  [[nodiscard]] std::uint32_t subtree_size() const;
  // How long a leader waits for its children on that level. They wait for their own children first, so each level gets
  // a little more time: on the highest level, a quarter more.
  [[nodiscard]] std::chrono::milliseconds timeout_on(unsigned level, std::chrono::milliseconds timeout) const;

 private:
  [[nodiscard]] std::uint64_t stride_on(unsigned level) const;  // between the ranks that report on that level

  std::uint32_t rank_;
  std::uint32_t world_;
  std::uint32_t fan_in_;
  unsigned levels_ = 0;
  unsigned height_ = 0;
};

}  // namespace slackwater
