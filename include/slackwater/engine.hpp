// Engine: checkpoints the state of one rank in the background.
//
//   auto engine = Engine::open({.path = "runs/gpt"});
//   auto snapshot = engine->save(step, state);   // milliseconds; the state must not change until...
//   (**snapshot).fence();                        // ...here: now the update may be issued
//
// Thread rule: save, restore, pin and remove belong to one thread (the trainer's); everything else, and all of Snapshot, may be
// called from any thread. That includes close(): what save() returned a Snapshot for is committed or named by close(), and a
// save() that comes too late answers kClosed. Only the destructor needs all other calls to have returned. docs/threading.md has
// every pair. In a forked child every call answers kClosed and does nothing.
// Lifetime: a Snapshot may outlive its Engine; it then reports how it ended.
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
// kFenced: every copy has been made, or has been queued on its device, so that an update can be ordered behind it.
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
  std::uint32_t device_fences = 0;  // fences that ordered the streams given behind the copies, and let the CPU go on
  double fenced_seconds = 0;        // from the start of save(); 0 while not reached
  double staged_seconds = 0;
  double durable_seconds = 0;
  double committed_seconds = 0;
};

class Snapshot {
 public:
  [[nodiscard]] std::uint64_t step() const;

  // Returns when the sources may be written again: copies are done, or this snapshot has failed. Never hangs
  // (stall_timeout). The Status tells how the snapshot stands; training may go on either way.
  Status fence();
  // The fence on the device: returns when work queued on these streams from now on may write to the sources. Waits on the CPU only while
  // copies could not be queued yet (the pool is full), or where a device of the snapshot has no stream here. A stream that is
  // capturing a graph gets no wait: nothing runs on it now; fence again before the graph is launched.
  Status fence(std::span<const StreamRef> streams);

  // kTimeout says what is still missing. No timeout waits for as long as it takes.
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout = {});

  // True once no source byte of this snapshot will be read any more: the caller may free the tensors.
  [[nodiscard]] bool released() const;
  // Waits for that. False on time-out.
  [[nodiscard]] bool wait_released(std::optional<std::chrono::milliseconds> timeout = {}) const;

  // For State::sealed_by_caller, once: the sources were unchanged, or the named tensors were found changed.
  void seal(std::vector<std::string> torn_tensors = {});

  [[nodiscard]] std::optional<Error> error() const;
  // The tensors that were found changed before the fence, if that is what it failed with. From the next save() on they are
  // captured inside save().
  [[nodiscard]] std::vector<std::string> torn_tensors() const;
  [[nodiscard]] Progress progress() const;
  [[nodiscard]] SnapshotStats stats() const;

  class Impl;  // src/engine
  explicit Snapshot(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

struct EngineStats {
  std::uint64_t pool_bytes = 0;
  std::uint64_t snapshots_committed = 0;
  std::uint64_t snapshots_failed = 0;
  std::uint64_t snapshots_skipped = 0;
  std::uint64_t bytes_written = 0;
  std::string io_backend;  // "io_uring" or "threads"
  bool direct_io = false;
  bool registered_buffers = false;
};

// A version that the caller has found damaged, in a way that restore() itself cannot see.
struct PassedOver {
  std::uint64_t step = 0;
  std::string why;  // one sentence
};

struct RestoreOptions {
  std::optional<std::uint64_t> step;    // nullopt: the newest that counts
  std::vector<PassedOver> passed_over;  // newest versions that are not tried, but set aside as damaged; one rank only
  std::vector<StreamRef> after;  // work queued on these streams so far is over before a byte is placed on their device
};

struct Restored {
  VersionInfo version;
  std::vector<std::string> damaged;  // one sentence for each newer version that was passed over
};

class Engine {
 public:
  // Makes the directory if only its last part is missing, takes the lock, lists what is there. Starts no threads, unless the process
  // uses a CUDA device already and the pool's size is set: then the pool is made, and registered with the driver in the background.
  [[nodiscard]] static Result<Engine> open(Options options);

  // Captures the state. nullopt: skipped, because of OnBusy::kSkip. Misuse is an Error; storage trouble is not: it
  // makes the snapshot fail, see Snapshot::error().
  [[nodiscard]] Result<std::optional<Snapshot>> save(std::uint64_t step, State state);

  // Waits for all snapshots in flight, then tries versions from the newest (or the step asked for) downwards:
  // `plan` is shown the opened checkpoint and answers where its tensors go; an Error from it ends the restore. A damaged version is
  // logged, passed over and set aside (OnDamage::kFallback, and no step asked for), or is an Error. Storage that cannot be read is
  // tried again, and then is an Error: it is never taken for damage. nullopt: nothing there to restore.
  using Plan = std::function<Result<std::vector<Target>>(const Checkpoint&)>;
  [[nodiscard]] Result<std::optional<Restored>> restore(const RestoreOptions& options, const Plan& plan);

  // Until everything in flight has reached `level` or failed. The first background error not yet reported comes out here, with the other
  // steps that were not checkpointed.
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout = {});
  // Returns when the sources of every snapshot in flight may be written again; with streams, by work queued on those.
  Status fence(std::span<const StreamRef> streams = {});

  // That count, oldest first. Of several ranks, those other than rank 0 look into the directory for it, at each call.
  [[nodiscard]] std::vector<VersionInfo> versions() const;
  // Retention never deletes it. A step in flight is pinned before it can be seen as committed; if it fails, that is
  // reported as any failure, and no pin is left.
  Status pin(std::uint64_t step);
  Status remove(std::uint64_t step);  // the live version of the step, and those of it that were set aside

  // First background error not yet reported by wait() or close(); does not clear it.
  [[nodiscard]] std::optional<Error> background_error() const;
  [[nodiscard]] EngineStats stats() const;

  // Waits for everything in flight, at most `timeout`; stops the threads, releases the lock. What had not been committed when
  // time ran out is given up and named in the Error, as is every step that failed and was not reported yet. Any thread may call it, at any
  // time but in a callback on a thread of the engine (log, State::owner). A second call waits for the first (kTimeout: it is
  // not over yet) and has nothing to report.
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
