#include "engine/free_space_watch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/units.hpp"

namespace slackwater {

std::optional<std::string> FreeSpaceWatch::check(std::uint64_t free_bytes, std::uint64_t version_bytes,
                                                 std::uint64_t present) {
  // A version beyond `keep` goes only after a newer one is committed, so the disk holds both for a while.
  const std::uint64_t slots = keep_ + in_flight_;
  const std::uint64_t wanted = slots - std::min(present, slots - 1);  // this one at least
  const std::uint64_t fits = version_bytes == 0 ? wanted : free_bytes / version_bytes;
  if (fits >= wanted) {
    told_.reset();
    return std::nullopt;
  }
  if (told_ && fits >= *told_) return std::nullopt;
  told_ = fits;
  return fmt::format(
      "the disk will be full: {} free, and checkpoints of {} need {} more (keep={}, in_flight={}); free some space, "
      "lower keep, or use another directory",
      format_bytes(free_bytes), format_bytes(version_bytes), format_bytes(wanted * version_bytes), keep_, in_flight_);
}

}  // namespace slackwater
