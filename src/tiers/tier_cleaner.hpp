// TierCleaner: deletes on one lower tier, on a thread of its own (sw-clean-N): what the user deleted, what retention
// does not want any more, copies that were given up, and uploads that nobody finishes. A delete that is slow, that is
// refused or that fails delays no copy and no commit there. It is tried again, with longer and longer pauses.
// It removes only copies that this run began, or that it found unfinished when it claimed the tier. Others may copy to
// the same place without a lock, such as `slackwater copy` to an object store.
// Owned by the TierLeader. Thread rule: begin_attempt(), request(), remove() and note_copy() belong to the promoter's
// thread, stop() to the engine. Lifetime: the store, and what TierWork refers to, outlive it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <vector>

#include "tiers/tier_worker.hpp"
#include "version/delete_notes.hpp"
#include "version/retention.hpp"
#include "version/version_store.hpp"

namespace slackwater {

class TierCleaner {
 public:
  TierCleaner(const TierWork& work, const RetentionPolicy& policy);
  ~TierCleaner();

  // The store follows this attempt. `found`: what was on the tier without a manifest then. `another_place`: notes of
  // delete() stay, because they may be about a tier that comes back (tier_identity.hpp). Starts the thread if it does
  // not run yet; throws std::system_error, as start_thread() does.
  void begin_attempt(VersionStore& store, std::uint32_t attempt, const std::set<VersionName>& found,
                     bool another_place = false);
  void note_copy(const VersionName& version);  // this run is about to copy it
  void request(Need need);                     // a clean-up, soon
  void remove(const std::vector<DeleteNote>& deleted);
  void stop();

 private:
  // What is to be done, and for which attempt.
  struct Work {
    VersionStore* store = nullptr;
    std::uint32_t attempt = 0;
    bool another_place = false;
    std::set<VersionName> own;  // copies that may be removed if nobody continues them
    std::optional<Need> need;   // none: no clean-up is due
    std::set<DeleteNote> removals;
    [[nodiscard]] bool due() const { return need || !removals.empty(); }
  };

  void loop(const std::stop_token& stop);
  [[nodiscard]] Status remove_all(const Work& todo);
  [[nodiscard]] Status follow_delete(const Work& todo, const DeleteNote& deleted);
  [[nodiscard]] Status clean_up(const Work& todo);
  [[nodiscard]] Status copy_pins(VersionStore& store);
  [[nodiscard]] Status abandon_uploads(const Work& todo);

  const TierWork work_;
  const RetentionPolicy policy_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  Work todo_;
  bool failed_ = false;  // the last try; the next one comes after a pause, for which nobody waits

  // For the thread only.
  std::uint32_t uploads_listed_for_ = 0;  // the attempt under which they were listed first
  std::set<VersionName> found_uploads_;   // of earlier attempts, then
  bool told_that_uploads_are_not_listed_ = false;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
