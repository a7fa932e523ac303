// RankTree: who reports to whom. Ranks form groups of `fan_in`; the lowest of a group speaks for it, and the speakers form
// groups of the next level in the same way, up to rank 0. So nobody hears more than fan_in - 1 others on a level, and
// there are log N levels. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater {

class RankTree {
 public:
  RankTree(std::uint32_t rank, std::uint32_t world, std::uint32_t fan_in);  // fan_in: 2 or more

  [[nodiscard]] unsigned levels() const { return levels_; }  // those on which rank 0 hears others
  [[nodiscard]] unsigned height() const { return height_; }  // those on which this rank does; 0: a plain member
  // Whom this rank hears on a level from 1 to height().
  [[nodiscard]] std::vector<std::uint32_t> heard_on(unsigned level) const;
  // Where the others of this rank's group on that level speak to its speaker, about what `name` says.
  [[nodiscard]] std::string box(std::string_view name, unsigned level) const;
  // How many ranks this one speaks for, with itself: they follow it.
  [[nodiscard]] std::uint32_t speaks_for() const;

 private:
  [[nodiscard]] std::uint64_t apart_on(unsigned level) const;  // how far from each other those are who speak there

  std::uint32_t rank_;
  std::uint32_t world_;
  std::uint32_t fan_in_;
  unsigned levels_ = 0;
  unsigned height_ = 0;
};

}  // namespace slackwater
