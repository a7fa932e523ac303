// Engine::Impl: composition root. Owns file system, version store, pipeline and the threads that frame it:
//   sw-plan    layout, attempt, directory: what must be known before bytes move; keeps file-system calls off the trainer's thread
//   sw-commit  sync, record, decision; in the order of the steps
//   sw-clean   deletes old versions, of rank 0 (cleaner.hpp)
//   sw-turn    which steps are saved, where several ranks skip some
// Thread rule: as Engine; members are grouped by what guards them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "commit/coordinator.hpp"
#include "commit/fleet.hpp"
#include "commit/merged_index.hpp"
#include "commit/restore_agreement.hpp"
#include "commit/save_turns.hpp"
#include "commit/version_store.hpp"
#include "device/devices.hpp"
#include "engine/cleaner.hpp"
#include "engine/pipeline.hpp"
#include "engine/replica_samples.hpp"
#include "engine/share_replicas.hpp"
#include "engine/shared_facts.hpp"
#include "engine/voyage.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/engine.hpp"

namespace slackwater {

// What tests may replace.
struct EngineParts {
  std::unique_ptr<FileSystem> fs;  // null: the real one
  std::unique_ptr<Clock> clock;
  std::optional<RankFiles> files = {};  // none: as the world has them
};

[[nodiscard]] Result<Engine> open_engine(Options options, EngineParts parts);

class Engine::Impl {
 public:
  Impl(Options options, EngineParts parts, std::unique_ptr<VersionStore> versions, Catalog catalog, Log log);
  ~Impl();  // after close()

  // At open: a pool of a set size is touched and registered while the trainer goes on, where this process uses a GPU already.
  void prepare_pool();
  Result<std::optional<Snapshot>> save(std::uint64_t step, State state);
  Result<std::optional<Restored>> restore(const RestoreOptions& options, const Plan& plan);
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout);
  Status fence(std::span<const StreamRef> streams);
  [[nodiscard]] std::vector<VersionInfo> versions() const;
  Status pin(std::uint64_t step);
  Status remove(std::uint64_t step);
  [[nodiscard]] std::optional<Error> background_error() const;
  [[nodiscard]] EngineStats stats() const;
  Status close(std::optional<std::chrono::milliseconds> timeout);
  void log_error(const Error& error) const { log_.error("{}", error.to_string()); }
  [[nodiscard]] bool disowned() const { return facts_->disowned.load(std::memory_order_acquire); }
  // Storage does not answer and threads hang in it: this object can never be destroyed, only be left behind.
  [[nodiscard]] bool stuck() const { return stuck_.load(std::memory_order_acquire); }

 private:
  using Instant = SharedFacts::Instant;
  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] Status usable() const;  // open, and in its own process; may be asked with versions_mutex_ held
  [[nodiscard]] Error closed_error() const;
  [[nodiscard]] Status check_step(std::uint64_t step) const;  // needs mutex_
  [[nodiscard]] bool wait_for_room(Lock& lock);               // false: stalled; true also when closed meanwhile
  // A snapshot that failed before it was under way; null, and nothing is noted, if the engine was closed meanwhile. Only
  // close() itself, whose threads still tell other ranks how steps ended, takes in more.
  enum class WhenClosed : std::uint8_t { kRefuse, kAccept };
  [[nodiscard]] std::shared_ptr<Snapshot::Impl> failed_snapshot(const Snapshot::Impl::Spec& spec, Error error,
                                                                WhenClosed when_closed = WhenClosed::kRefuse);
  [[nodiscard]] Result<std::optional<Snapshot>> accept_failed(const Snapshot::Impl::Spec& spec, Error error);
  [[nodiscard]] std::vector<std::shared_ptr<Snapshot::Impl>> in_flight() const;
  [[nodiscard]] Status start_threads();  // needs mutex_
  // Deletion (tidy_up.cpp).
  void clean_up(Need need);  // on the cleaner's thread
  // For calls that may find no space: makes some. True: it is worth another try.
  [[nodiscard]] std::function<bool()> room_maker();
  template <class Call>
  [[nodiscard]] auto with_room(const Call& call) -> decltype(call()) {
    const auto make_room = room_maker();
    auto result = call();
    while (!result && result.error().kind == ErrorKind::kNoSpace && make_room()) result = call();
    return result;
  }
  void note_committed(const Manifest& manifest, bool pinned);
  bool count(const VersionInfo& version);
  // Of step `step`, if that is what it means: it was not checkpointed.
  void note_error(const Error& error, std::optional<std::uint64_t> step = {});

  // Which steps are saved where several ranks skip some (skip_ranks.cpp).
  void turn_loop(std::stop_token stop);
  [[nodiscard]] Status take_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop);
  [[nodiscard]] Result<std::uint64_t> next_turn(std::uint32_t attempt, std::uint64_t number,
                                                const std::stop_token& stop);
  void use_turn(std::uint32_t attempt, std::uint64_t from);
  void end_turn(bool committed);  // needs mutex_
  void begin_turns_anew();        // needs mutex_

  void plan_loop(std::stop_token stop);
  [[nodiscard]] Status plan(const std::shared_ptr<Voyage>& voyage, const std::stop_token& stop);
  [[nodiscard]] Status make_index(Voyage& voyage) const;
  [[nodiscard]] Status ensure_pipeline(const SnapshotLayout& layout);
  [[nodiscard]] Status make_pipeline(std::uint64_t slabs);
  [[nodiscard]] Status ensure_attempt(Voyage& voyage, const std::stop_token& stop);
  void give_up(const std::shared_ptr<Voyage>& voyage, const Error& error);
  void arrive(Voyage& voyage);

  void commit_loop(std::stop_token stop);
  void finish(Voyage& voyage, const std::stop_token& stop);  // commits or clears away one voyage that arrived
  void wind_up(Voyage& voyage, const Status& status, const std::stop_token& stop);
  [[nodiscard]] Status commit(Voyage& voyage, const std::stop_token& stop);
  [[nodiscard]] Result<Ballot> ballot_of(Voyage& voyage, const RecordReference& record) const;
  [[nodiscard]] Manifest manifest_of(const Voyage& voyage, Decision decision) const;
  [[nodiscard]] Status decide_alone(const Voyage& voyage, const RecordReference& vote);
  // Of several ranks (commit_ranks.cpp).
  [[nodiscard]] std::shared_ptr<Voyage> await_front(const std::stop_token& stop);
  [[nodiscard]] Status decide_together(Voyage& voyage, Ballot own, const std::stop_token& stop);
  [[nodiscard]] Status decide_for_all(const Voyage& voyage, Result<Ballot> ballots);
  // How far the decision to commit has come.
  struct Publishing {
    bool tried = false;            // to write it: it may be there even if that looked like a failure
    bool replicas_differ = false;  // so there is none
  };
  [[nodiscard]] Status try_to_publish(const Voyage& voyage, Ballot ballots, Publishing& publishing);
  [[nodiscard]] Status publish_commit(const Voyage& voyage, Ballot ballots, Publishing& publishing);
  void compare_every_byte();
  [[nodiscard]] std::optional<Error> give_up_for_all(const Voyage& voyage, const std::string& reason, bool tried);
  [[nodiscard]] Status learn_outcome(const Voyage& voyage, const std::stop_token& stop);
  void report_failure(Voyage& voyage, const Error& error, const std::stop_token& stop);
  void discard_own_files(const Voyage& voyage);
  void clear_away(const Voyage& voyage);
  // Pins of steps in flight (pins.cpp).
  [[nodiscard]] std::optional<Status> pin_in_flight(std::uint64_t step);  // nullopt: it is not in flight
  void pin_ahead(Voyage& voyage);
  void settle_pin(Voyage& voyage, bool committed);
  void note_pinned(const VersionName& version);
  [[nodiscard]] RetentionPolicy retention_policy() const {
    return {.keep = options_.keep, .keep_every = options_.keep_every, .best = options_.keep_best};
  }
  void ask_to_sweep();  // with the next commit, whether or not it makes an older one superfluous
  void tell_pool(const Snapshot::Impl& snapshot) const;

  [[nodiscard]] Result<VersionName> find_version(std::uint64_t step) const;
  [[nodiscard]] Status wait_for_targets(const std::vector<Target>& targets, const std::vector<StreamRef>& after);
  // Null: there is none yet, or no slab of it is free. Who holds it may go on reading into its pool beside close().
  [[nodiscard]] std::shared_ptr<Pipeline> idle_pipeline();
  void use_restored(const VersionInfo& version, const Catalog& catalog, const std::vector<SetAside>& passed_over);
  // What trying one version after another has done to the caller's tensors so far.
  struct Placing {
    bool began = false;
    std::set<std::string> placed;  // by attempts that failed: each must be overwritten by the one that succeeds
    std::optional<Error> refusal;  // of the caller: ends the restore, even where it looks like damage
    std::function<void()> on_progress = [] {};
  };
  [[nodiscard]] Status place_version(const CatalogEntry& entry, const RestoreOptions& options, const Plan& plan,
                                     Placing& placing);
  void adopt_unseen(const VersionName& restored, const std::vector<VersionName>& seen);
  [[nodiscard]] Result<std::optional<Restored>> restore_together(const RestoreOptions& options, const Plan& plan);
  [[nodiscard]] Status wait_idle(Level level, std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] Status close_once(std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] Status wait_closed(Lock& lock, std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] bool version_store_is_busy();
  void shut_down(bool in_time);
  [[nodiscard]] bool shut_down_within(std::chrono::milliseconds grace);

  // One restore(), from its first look at the engine to its last: close() may run beside it, or inside it, in its plan. It
  // then leaves the ranks' coordinator to it.
  class Restoring {
   public:
    explicit Restoring(Impl& engine) : engine_(engine) {}
    ~Restoring();
    Restoring(const Restoring&) = delete;
    Restoring& operator=(const Restoring&) = delete;
    [[nodiscard]] Status begin();  // kClosed when closed

   private:
    Impl& engine_;
    bool began_ = false;
  };

  // Constant after construction.
  const Options options_;
  const Log log_;
  const std::unique_ptr<FileSystem> fs_;
  const std::unique_ptr<Clock> clock_;
  const RankFiles files_;
  Devices devices_;  // thread-safe; outlives the pipeline
  const std::shared_ptr<SharedFacts> facts_;
  const std::unique_ptr<Coordinator> coordinator_;  // null, as the fleet, where this rank is the only one
  const std::unique_ptr<Fleet> fleet_;

  // The version store takes one caller at a time. Taken before mutex_, never after. close() takes the store away: who is not one of the
  // threads that it joins before asks usable() again once it holds this mutex.
  std::mutex versions_mutex_;
  std::unique_ptr<VersionStore> versions_;
  // Held by calls that use the store beside a commit (delete, pin), and alone to take it away. Taken after Cleaner::hold(),
  // before mutex_.
  std::shared_mutex versions_alive_;

  ReplicaShares replica_shares_;    // of the trainer's thread
  ReplicaSampler replica_sampler_;  // of the trainer's thread
  IndexLedger ledger_;            // of the commit thread

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Voyage>> to_plan_;
  std::deque<std::shared_ptr<Voyage>> active_;  // by step; front commits first
  std::vector<VersionInfo> counting_;           // versions that count, oldest first; only rank 0 follows them
  std::optional<std::vector<VersionInfo>> committed_meanwhile_;  // while the cleaner runs
  bool sweep_due_ = false;                  // there may be something to delete that no commit makes superfluous
  std::vector<VersionName> unreadable_;     // at open: versions that would count if their manifest could be read
  std::optional<std::uint64_t> last_step_;  // saved or restored by this engine
  std::optional<Attempt> attempt_;
  std::optional<std::pair<std::uint64_t, Attempt>> claimed_;  // of the plan thread: by the epoch; told to all or not
  std::vector<VersionName> to_adopt_;
  std::vector<SetAside> set_aside_;  // for the next claim
  std::uint64_t epoch_ = 0;          // restores that chose a version: each goes on under another attempt
  RestoreCalls restore_calls_;       // of the trainer's thread
  std::set<std::string, std::less<>> known_torn_;
  // Background errors that neither wait() nor close() has reported yet: the first in full, of the later ones the steps.
  struct Unreported {
    Error first;
    std::optional<std::uint64_t> step;  // of the first
    std::vector<std::uint64_t> later = {};
    std::uint64_t more = 0;  // beyond those
    [[nodiscard]] Error in_words() const;
  };
  std::optional<Unreported> unreported_;
  static void add_failure(std::optional<Unreported>& unreported, const Error& error, std::optional<std::uint64_t> step);
  EngineStats stats_;
  std::uint64_t saves_ = 0;
  std::optional<SaveTurns> turns_;  // only where several ranks skip
  std::uint64_t turns_owed_ = 0;    // of rank 0: steps that have ended, without a new turn for them yet
  std::stop_source turn_wait_;      // ends the wait for a turn of an attempt that is over
  // close() sets it first: from then on nothing is accepted, and no thread started. Whoever adds to active_ asks it in the same breath.
  bool closed_ = false;
  bool close_ended_ = false;             // the one close() that did the work is over
  unsigned restoring_ = 0;               // restore() calls under way
  bool leave_to_restore_ = false;        // the last of them tells the coordinator that this rank leaves
  // ReplicaShares::list() of which a commit under this attempt has shown that every byte is alike. None: not yet, or not
  // any more, since a later step has found a difference.
  std::optional<std::uint64_t> replicas_compared_;
  bool told_pool_ = false;               // of the commit thread
  bool pipeline_stopped_ = false;

  // Made at open or by the plan thread, under mutex_; then constant until shut_down(), which takes it away under mutex_.
  std::shared_ptr<Pipeline> pipeline_;
  ForkGuard fork_guard_;
  std::unique_ptr<Cleaner> cleaner_;  // of rank 0, which alone deletes; ends after the threads that ask it for room
  std::jthread plan_thread_;          // started last
  std::jthread commit_thread_;
  std::jthread turn_thread_;   // only where several ranks skip
  std::jthread close_thread_;  // only when close() ran out of time
  std::atomic<bool> stuck_{false};
};

}  // namespace slackwater
