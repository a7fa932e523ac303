// CopyBacklog: the committed versions that are due on one tier and not there yet, and how their copies go. It is
// bounded: when more than `backlog` versions wait, the oldest are skipped and counted. The newest goes first.
// Versions that wait or are being copied are *held*: retention on the tier above leaves them alone
// (version/retention.hpp).
// Owned by a Promoter. Thread rule: thread-safe; its lock is a leaf, and nothing slow runs under it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "slackwater/engine.hpp"
#include "slackwater/options.hpp"
#include "version/attempt.hpp"
#include "version/delete_notes.hpp"
#include "version/names.hpp"

namespace slackwater {

class CopyBacklog {
 public:
  // Something that grows while bytes go to the tier, or wait for its bandwidth cap, although no part is finished.
  using Progress = std::function<std::uint64_t()>;

  // `on_released` is called, without a lock, when a version is no longer held.
  CopyBacklog(const TierOptions& options, std::string location, Log log, std::function<void()> on_released,
              Progress progress = {});

  // This run goes on under a new attempt: versions that it did not adopt are not copied any more, and the adopted ones
  // that are due wait. `continued` is the step that the run restored, if it did.
  void begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued);
  void add(const VersionName& version);    // committed under that attempt
  void remove(const DeleteNote& deleted);  // by the user: it is to be removed from this tier too
  [[nodiscard]] std::set<VersionName> held() const;
  [[nodiscard]] TierStatus status() const;
  [[nodiscard]] std::optional<Error> refusal() const;  // why nothing is copied any more; see refuse()
  // What the user deleted and is still to be deleted on this tier.
  [[nodiscard]] std::vector<DeleteNote> removing() const;
  // True: nothing waits any more, and promoter and cleaner are at rest. Gives up when `deadline` has passed, or when
  // nothing has moved for `idle_limit`. Bytes that do not make a whole part yet count, but not behind an error: a dead
  // tier takes some bytes of every try.
  [[nodiscard]] bool wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline,
                               std::chrono::milliseconds idle_limit) const;

  // For the promoter's thread.

  // What has changed since the last call. Waits until there is something to do, `pause` is over, or it is told to stop.
  struct News {
    std::optional<Attempt> attempt = {};  // a new one
    std::optional<std::uint64_t> continued = {};
    std::vector<DeleteNote> removed = {};
  };
  [[nodiscard]] News wait_news(const std::stop_token& stop, std::optional<std::chrono::milliseconds> pause);
  [[nodiscard]] std::vector<VersionName> waiting() const;  // newest first, with the one that is being copied
  void begin_copy(const VersionName& version);
  void end_copy();                                                // given up for now: it waits again
  void finish(const VersionName& version);                        // it is on the tier
  void skip(const VersionName& version, const std::string& why);  // it will not be copied; counted and logged
  void forget(const VersionName& version);                        // as skip(), but that is as it should be
  void note_sent(std::uint64_t size_bytes);
  void note_step_on_tier(std::uint64_t step);
  void note_error(const Error& error);  // logs it, unless it is the same as before
  void note_success();                  // a call to the tier went through

  // For the cleaner's thread.
  void set_cleaning(bool cleaning);
  void note_clean_up(const Status& done);  // as note_error() and note_success(), for deletions

  // Nothing more can be copied under this attempt: what waits is skipped, and so is what is added from now on.
  void refuse(const Error& error);
  // Sleeps, whatever is added meanwhile. False: told to stop.
  [[nodiscard]] bool pause(const std::stop_token& stop, std::chrono::milliseconds time);

 private:
  void trim(std::vector<VersionName>& skipped);  // with the lock held
  void log_skipped(const std::vector<VersionName>& skipped) const;

  // Constant after construction.
  const TierOptions options_;
  const std::string location_;
  const Log log_;
  const std::function<void()> on_released_;
  const Progress progress_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable_any changed_;
  std::optional<Attempt> attempt_;
  std::optional<std::uint64_t> continued_;
  bool attempt_is_news_ = false;
  std::uint64_t changes_ = 0;  // what the promoter has to look at
  std::uint64_t seen_ = 0;
  std::set<VersionName> waiting_;
  std::set<DeleteNote> removed_;
  std::optional<VersionName> copying_;
  std::optional<Error> refused_;
  bool working_ = false;     // the promoter is not at rest
  bool cleaning_ = false;    // nor is the cleaner
  bool failed_ = false;      // the last thing that happened to a copy was an error
  std::string clean_error_;  // of the last clean-up; empty: it went well
  TierStatus status_;
  std::uint64_t moves_ = 0;  // counts progress, for wait_idle()
};

}  // namespace slackwater
