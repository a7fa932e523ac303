#include "tiers/free_space_watch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/units.hpp"

namespace slackwater {

bool FreeSpaceWatch::Shortage::is_news(std::uint64_t slots, std::uint64_t present, std::uint64_t fits) {
  wanted = slots - std::min(present, slots - 1);  // this one at least
  missing = wanted - std::min(fits, wanted);
  if (missing == 0) {
    told = 0;
    told_none_fits = false;
  }
  const bool none_fits = missing > 0 && fits == 0;
  if (missing <= told && (!none_fits || told_none_fits)) return false;
  told = std::max(told, missing);
  told_none_fits |= none_fits;
  return true;
}

std::optional<std::string> FreeSpaceWatch::check(std::uint64_t free_bytes, std::uint64_t version_bytes,
                                                 std::uint64_t present) {
  // A version beyond `keep` goes only after a newer one is committed, so the disk holds both for a while.
  const std::uint64_t slots = keep_ + in_flight_;
  const std::uint64_t fits = version_bytes == 0 ? slots + held_ : free_bytes / version_bytes;
  const bool certain = for_certain_.is_news(slots, present, fits);
  const bool possible = if_tiers_are_slow_.is_news(slots + held_, present, fits);
  if (!certain && (!possible || for_certain_.missing > 0)) return std::nullopt;
  const Shortage& shortage = certain ? for_certain_ : if_tiers_are_slow_;
  return fmt::format(
      "the disk {}: {} free, and checkpoints of {} need {} more (keep={}, in_flight={}{}); free some space, lower "
      "keep{}, or use another directory",
      certain ? "will be full" : "may be full when a lower tier is slow or away", format_bytes(free_bytes),
      format_bytes(version_bytes), format_bytes(shortage.wanted * version_bytes), keep_, in_flight_,
      certain ? "" : fmt::format(", and up to {} that wait for lower tiers", held_), certain ? "" : " or backlog");
}

}  // namespace slackwater
