// Engine: checkpoints the state of one rank in the background.
//
//   auto engine = Engine::open({.path = "runs/gpt"});
//   auto snapshot = engine->save(step, state);   // milliseconds; the state must not change until...
//   (**snapshot).fence();                        // ...here: now the update may be issued
//
// Thread rule: save, restore, pin and remove belong to one thread, the trainer's. Everything else, and all of Snapshot,
// may be called from any thread. That includes close(): it commits or names every step for which save() returned a
// Snapshot, and a save() that comes too late returns kClosed. Only the destructor requires that all other calls have
// returned. docs/threading.md has every pair of calls. In a forked child every call returns kClosed and does nothing.
// Lifetime: a Snapshot may outlive its Engine. It then reports how it ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "slackwater/options.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// In the order a snapshot reaches them.
// kFenced: every copy has been made or queued on its device, so an update can be ordered after it.
enum class Level : std::uint8_t { kCaptured, kFenced, kStaged, kDurable, kCommitted };
[[nodiscard]] std::string_view to_string(Level level);

struct Progress {
  Level level = Level::kCaptured;
  bool failed = false;
  std::uint64_t total_bytes = 0;  // 0 until the layout is known
  std::uint64_t staged_bytes = 0;
  std::uint64_t written_bytes = 0;
};

struct SnapshotStats {
  std::uint64_t tensor_count = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t at_once_bytes = 0;  // volatile tensors, copied inside save()
  double save_seconds = 0;          // inside save(), busy_seconds included
  double busy_seconds = 0;          // of that, waiting for an earlier snapshot
  double fence_seconds = 0;         // all time the CPU spent waiting in fences
  std::uint32_t host_fences = 0;    // fences that waited until the bytes had left
  std::uint32_t device_fences = 0;  // fences that ordered the given streams after the copies; the CPU went on
  double fenced_seconds = 0;        // from the start of save(); 0 while not reached
  double staged_seconds = 0;
  double durable_seconds = 0;
  double committed_seconds = 0;
};

class Snapshot {
 public:
  [[nodiscard]] std::uint64_t step() const;

  // Returns when the sources may be written again: the copies are done, or this snapshot has failed. Never hangs, see
  // stall_timeout. The Status tells whether the snapshot has failed. Training may go on either way.
  Status fence();
  // The fence on the device: returns when work queued on these streams from now on may write to the sources. The CPU
  // waits only while copies cannot be queued yet (the pool is full), or if a device of the snapshot has no stream here.
  // A stream that is capturing a graph gets no wait, because nothing runs on it now. Fence again before you launch the
  // graph.
  Status fence(std::span<const StreamRef> streams);

  // kTimeout says what is still missing. No timeout waits for as long as it takes.
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout = {});

  // True once no source byte of this snapshot will be read any more: the caller may free the tensors.
  [[nodiscard]] bool released() const;
  // Waits for that. False on time-out.
  [[nodiscard]] bool wait_released(std::optional<std::chrono::milliseconds> timeout = {}) const;

  // Indices of State::tensors that were copied inside save(). Later writes to them do no harm.
  [[nodiscard]] std::vector<std::uint32_t> at_once_tensors() const;
  // For State::sealed_by_caller, once: the sources were unchanged, or the named tensors were found changed.
  // Freed tensors are those whose memory is no longer where it was. The bytes read from them may be anything.
  void seal(std::vector<std::string> torn_tensors = {}, const std::vector<std::string>& freed_tensors = {});

  [[nodiscard]] std::optional<Error> error() const;
  // The tensors that were found changed before the fence, if that is why the snapshot failed. From the next save() on,
  // these tensors and the whole objects they belong to (State::objects) are captured inside save().
  [[nodiscard]] std::vector<std::string> torn_tensors() const;
  [[nodiscard]] Progress progress() const;
  [[nodiscard]] SnapshotStats stats() const;
  // For State::part, once kCommitted is reached: what PartCommitter::commit() wants of this rank. Empty before that.
  [[nodiscard]] std::string part() const;

  class Impl;  // src/engine
  explicit Snapshot(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

struct EngineStats {
  std::uint64_t pool_bytes = 0;
  int pool_numa_node = -1;  // the NUMA node that the pool's pages are asked for on; -1: none
  std::uint64_t snapshots_committed = 0;
  std::uint64_t snapshots_failed = 0;
  std::uint64_t snapshots_skipped = 0;
  std::uint64_t bytes_written = 0;
  std::string io_backend;  // "io_uring" or "threads"
  bool direct_io = false;
  bool registered_buffers = false;
};

// How the copies to one lower tier go, as this rank sees it.
struct TierStatus {
  std::string location;
  std::optional<std::uint64_t> newest_step = {};  // on the tier
  std::vector<std::uint64_t> waiting = {};        // steps that are due there and not there yet, oldest first
  std::optional<std::uint64_t> copying = {};      // the one of them that is on its way
  std::uint64_t skipped = 0;                      // due, but never copied: the tier was too slow
  std::uint64_t sent_bytes = 0;                   // by this rank
  std::uint64_t errors = 0;                       // so far; each was followed by another try
  std::string last_error = {};                    // empty: the last try went well
};

// A version that the caller has found damaged in a way that restore() cannot see.
struct PassedOver {
  std::uint64_t step = 0;
  std::string why;  // one sentence
};

struct RestoreOptions {
  std::optional<std::uint64_t> step;    // nullopt: the newest live version
  std::vector<PassedOver> passed_over;  // versions to set aside as damaged without trying them; one rank only
  std::vector<StreamRef> after;         // work queued on these streams so far ends before their devices are written to
  // Called when all targets of a version are in place. Here the caller reads the rest, such as tensors that it
  // converts. kCorrupt means that this version is damaged, as if restore() had found it. Any other Error ends the
  // restore.
  // Call `on_progress` now and then. With several ranks it tells the others that this one is still reading.
  using OnProgress = std::function<void()>;
  std::function<Status(const Checkpoint&, const OnProgress& on_progress)> read_rest = {};
};

struct Restored {
  VersionInfo version;
  std::vector<std::string> damaged;  // one sentence for each newer version that was passed over
};

class Engine {
 public:
  // Makes the directory if only its last component is missing, takes the lock, and lists the versions. An engine
  // without a directory (an empty path) saves only parts (slackwater/part.hpp). Starts no
  // threads, with one exception: if the process already uses a CUDA device and the size of the pool is set, the pool is
  // made now and registered with the driver in the background.
  [[nodiscard]] static Result<Engine> open(Options options);

  // Captures the state. nullopt: skipped, because of OnBusy::kSkip. Misuse is an Error. Trouble with storage is not: it
  // makes the snapshot fail, see Snapshot::error().
  [[nodiscard]] Result<std::optional<Snapshot>> save(std::uint64_t step, State state);

  // Makes the pool for this state, in the background, so that the first fence does not wait for it. Returns at once.
  // The state must have the tensors of the states that will be saved; no byte of it is read. Misuse is the same Error
  // as in save(). If there is a pool already, it stays. An automatic pool that turns out too small for the first save
  // is made again. restore() prepares the pool too. With OnBusy::kSkip and one rank, save() skips steps until the pool
  // is ready.
  Status prepare(State state);
  // True once every slab of the pool can be used. False: there is no pool yet, or it took longer than `timeout`.
  [[nodiscard]] Result<bool> wait_prepared(std::chrono::milliseconds timeout);

  // Waits for all snapshots in flight. Then tries the step asked for, or versions from the newest to the oldest. `plan`
  // gets the opened checkpoint and returns where its tensors go; an Error from it ends the restore. With
  // OnDamage::kFallback and no step asked for, a damaged version is logged, passed over and set aside. Otherwise it is
  // an Error. If storage cannot be read, the read is retried and then returns an Error: it is never taken for damage.
  // nullopt: there is nothing to restore.
  using Plan = std::function<Result<std::vector<Target>>(const Checkpoint&)>;
  [[nodiscard]] Result<std::optional<Restored>> restore(const RestoreOptions& options, const Plan& plan);

  // Waits until everything in flight has reached `level` or failed. Returns the first background error that was not
  // reported yet, and names the other steps that were not checkpointed.
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout = {});
  // Waits for everything in flight, and then until every version that is due on a lower tier is there. kTimeout names
  // the steps and tiers that are left, at `timeout`, or when a tier has made no progress for Options::copy_timeout.
  Status wait_copied(std::optional<std::chrono::milliseconds> timeout = {});
  [[nodiscard]] std::vector<TierStatus> tiers() const;  // as in Options::tiers
  // Returns when the sources of every snapshot in flight may be written again. With streams: by work queued on those.
  Status fence(std::span<const StreamRef> streams = {});

  // The live versions, oldest first. Ranks other than rank 0 list the directory at each call.
  [[nodiscard]] std::vector<VersionInfo> versions() const;
  // Keeps retention from ever deleting this step. A step in flight is pinned before anybody can see it committed. If it
  // fails, no pin is left behind, and the failure is reported as usual.
  Status pin(std::uint64_t step);
  // Deletes a step; rank 0 only. Lower tiers follow when they can be reached, if need be in a later run. If versions of
  // the step were set aside, it removes those and nothing else. A second call then removes the live version.
  Status remove(std::uint64_t step);

  // The first background error that wait() or close() has not reported yet. Does not clear it.
  [[nodiscard]] std::optional<Error> background_error() const;
  [[nodiscard]] EngineStats stats() const;

  // With Options::memory: this trainer ends although training does not. After close(), the keeper holds its memory for
  // the next one. Without this call, a close() that has committed everything releases the memory.
  void keep_memory();

  // Waits for everything in flight and for copies to lower tiers, at most `timeout`, then stops the threads and
  // releases the lock. Snapshots that are not committed when time runs out are given up. The Error names them, every
  // failed step that was not reported yet, and versions that are not on a lower tier yet; the next run copies those.
  // Any thread may call it at any time, except in a callback on a thread of the engine (log, State::owner). A second
  // call waits for the first (kTimeout: the first has not ended yet) and has nothing to report.
  Status close(std::optional<std::chrono::milliseconds> timeout = {});

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  // close() without a time-out, errors logged

  class Impl;  // src/engine
  explicit Engine(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
