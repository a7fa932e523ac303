#include "ranks/rank_tree.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace slackwater {

RankTree::RankTree(std::uint32_t rank, std::uint32_t world, std::uint32_t fan_in)
    : rank_(rank), world_(world), fan_in_(std::max(fan_in, 2u)) {
  while (stride_on(levels_ + 1) < world_) ++levels_;
  while (height_ < levels_ && rank_ % stride_on(height_ + 2) == 0) ++height_;
}

std::uint64_t RankTree::stride_on(unsigned level) const {
  std::uint64_t stride = 1;
  for (unsigned below = 1; below < level; ++below) stride *= fan_in_;
  return stride;
}

std::vector<std::uint32_t> RankTree::children(unsigned level) const {
  std::vector<std::uint32_t> ranks;
  const std::uint64_t end = std::min<std::uint64_t>(world_, rank_ + stride_on(level + 1));
  for (std::uint64_t rank = rank_ + stride_on(level); rank < end; rank += stride_on(level))
    ranks.push_back(static_cast<std::uint32_t>(rank));
  return ranks;
}

std::string RankTree::channel(std::string_view name, unsigned level) const {
  return fmt::format("{}-{}-g{:04}", name, level, rank_ / stride_on(level + 1));
}

std::uint32_t RankTree::subtree_size() const {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(world_ - rank_, stride_on(height_ + 1)));
}

std::chrono::milliseconds RankTree::timeout_on(unsigned level, std::chrono::milliseconds timeout) const {
  return levels_ < 2 ? timeout : timeout + timeout / 4 * (level - 1) / (levels_ - 1);
}

}  // namespace slackwater
