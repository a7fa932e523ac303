#include "commit/rank_tree.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace slackwater {

RankTree::RankTree(std::uint32_t rank, std::uint32_t world, std::uint32_t fan_in)
    : rank_(rank), world_(world), fan_in_(std::max(fan_in, 2u)) {
  while (apart_on(levels_ + 1) < world_) ++levels_;
  while (height_ < levels_ && rank_ % apart_on(height_ + 2) == 0) ++height_;
}

std::uint64_t RankTree::apart_on(unsigned level) const {
  std::uint64_t apart = 1;
  for (unsigned below = 1; below < level; ++below) apart *= fan_in_;
  return apart;
}

std::vector<std::uint32_t> RankTree::heard_on(unsigned level) const {
  std::vector<std::uint32_t> ranks;
  const std::uint64_t end = std::min<std::uint64_t>(world_, rank_ + apart_on(level + 1));
  for (std::uint64_t rank = rank_ + apart_on(level); rank < end; rank += apart_on(level))
    ranks.push_back(static_cast<std::uint32_t>(rank));
  return ranks;
}

std::string RankTree::box(std::string_view name, unsigned level) const {
  return fmt::format("{}-{}-g{:04}", name, level, rank_ / apart_on(level + 1));
}

std::uint32_t RankTree::speaks_for() const {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(world_ - rank_, apart_on(height_ + 1)));
}

}  // namespace slackwater
