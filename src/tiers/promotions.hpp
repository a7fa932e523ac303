// Promotions: all lower tiers of an engine, each with its promoter. Without tiers, every call returns at once.
// Owned by EngineShared. Thread rule: thread-safe; start() and stop() belong to the engine.
// Lifetime: stopped before the version store is closed; the tiers outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "slackwater/engine.hpp"
#include "tiers/promoter.hpp"

namespace slackwater {

class Promotions {
 public:
  Promotions(const std::vector<Tier>& tiers, const PromotionSource& source);

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();

  // Before an attempt is claimed on tier 0: a number that it must exceed, and what it adopts of the lower tiers. Tiers
  // that do not answer within a short time are left out; they are dealt with when they come back.
  struct Survey {
    std::uint32_t newest_attempt = 0;
    Adoption adoption;
  };
  [[nodiscard]] Survey survey(const Continued& continued);
  void begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued);
  void add(const VersionName& version);  // committed on tier 0
  // delete(): a tier may be out of reach for longer than this run lives. So before the version goes on tier 0, every
  // tier that has to follow is noted there, durably (version/delete_notes.hpp). `run` saved the version.
  [[nodiscard]] Status note_delete(const VersionName& version, const std::string& run);
  void remove(const VersionName& version, const std::string& run);  // it is gone on tier 0: the tiers follow
  // With a directory on each node, before the first start(), and before each later attempt. Rank 0: notes in force on
  // other nodes. It follows them. The leader of another node: its own, of which rank 0 has heard. It unlinks each when
  // the tier has followed.
  void hear_deletes(const std::vector<DeleteNote>& notes);
  [[nodiscard]] std::vector<DeleteNote> deletes() const;  // that a tier has still to follow
  // The versions that retention on tier 0 leaves alone: due on a tier, and not there yet.
  [[nodiscard]] std::set<VersionName> held() const;
  [[nodiscard]] std::uint64_t most_held() const;  // how many that can be at most

  [[nodiscard]] std::vector<TierStatus> status() const;
  // Waits until every version that is due is on its tier. Gives up at the deadline, or when a tier has made no progress
  // for `idle_limit`. The Error names the steps and the tiers.
  [[nodiscard]] Status wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline,
                                 std::chrono::milliseconds idle_limit) const;

 private:
  const PromotionSource source_;
  std::vector<std::unique_ptr<Promoter>> promoters_;  // constant after construction
};

}  // namespace slackwater
