// Pipeline: pool, copy threads and file writer. The only place that joins stage and store.
// Made by PipelineMaker, owned by EngineShared (PipelineSlot). Thread rule: launch() from sw-plan, the rest from any
// thread.
// Lifetime: FileSystem and Devices outlive it. The destructor ends what is under way and waits for writes in flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "device/devices.hpp"
#include "engine/kept_slabs.hpp"
#include "engine/save_job.hpp"
#include "os/file_system.hpp"
#include "slackwater/engine.hpp"
#include "stage/pool.hpp"
#include "stage/stager.hpp"
#include "store/file_writer.hpp"

namespace slackwater {

class Pipeline {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Pipeline>> create(FileSystem& fs, Devices& devices,
                                                                const Options& options, std::uint32_t slab_count,
                                                                int numa_node, Log log,
                                                                std::shared_ptr<KeptSlabs> kept = nullptr);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Starts the thread that waits for device copies. Call it before launch() if the job has any: launch() runs with
  // SaveJob::mutex held, which the end of a job takes too.
  [[nodiscard]] Status start_copy_waiter() { return stager_->start_copy_waiter(); }
  // Opens the files and queues the copies. Needs directory, layout and captured sources. `on_drained` is called once,
  // after the last outstanding operation of this job has finished. The caller counts as one operation and must call
  // SaveJob::finish_operation() too. The snapshot tells whether the job failed. `make_room`: as in FileSpec.
  void launch(const std::shared_ptr<SaveJob>& job, std::function<void()> on_drained, std::function<bool()> make_room);
  // Ends what is under way, waits for writes in flight, joins the threads. Every save job is drained afterwards.
  // Idempotent.
  void stop();
  // Gives up a save job, whether or not it was launched yet. It is then drained as a failed job.
  static void give_up(SaveJob& job, const Error& error);

  [[nodiscard]] Pool& pool() { return *pool_; }
  [[nodiscard]] std::uint64_t pool_bytes() const { return pool_->slab_bytes() * pool_->slab_count(); }
  [[nodiscard]] const FileWriter& writer() const { return *writer_; }
  [[nodiscard]] bool direct_io() const { return direct_io_; }
  [[nodiscard]] int numa_node() const { return numa_node_; }  // that its pages are asked for on; -1: any

 private:
  // Registers slabs with the writer when sw-touch-N has touched them. With CUDA too if that is in use by then, and
  // otherwise right before a device copies into the slab: never the whole pool while somebody waits. Writer and devices
  // may be gone before the pool is.
  struct Registrar {
    std::mutex mutex;
    FileWriter* writer = nullptr;
    Devices* devices = nullptr;
    std::optional<Log> log;
    std::vector<std::span<std::byte>> pinned;  // by slab; empty: CUDA does not know it
    bool refused = false;                      // pinning was given up
    std::chrono::nanoseconds last_took{};      // the last registration with CUDA; 0: the last slab needed none

    void slab_ready(int index, std::span<std::byte> memory);
    void pin(int index, std::span<std::byte> memory);  // needs mutex
    [[nodiscard]] bool needs_pin(int index);
    void pin_now(int index, std::span<std::byte> memory);
    [[nodiscard]] std::chrono::nanoseconds pause();
  };

  Pipeline() = default;

  bool direct_io_ = true;
  int numa_node_ = -1;
  std::shared_ptr<Registrar> registrar_;
  std::shared_ptr<KeptSlabs> kept_;  // null: no memory tier
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<FileWriter> writer_;
  std::unique_ptr<Stager> stager_;
};

// The engine's one pipeline. PipelineMaker makes it, and it is released at the end of close(). A restore() that reads
// into its pool may keep it longer. Thread rule: one thread at a time (Guarded, in EngineShared).
struct PipelineSlot {
  std::shared_ptr<Pipeline> pipeline;  // null: not made yet, or released
  bool stopped = false;
  bool foreseen = false;        // sized for a state that nobody has saved yet: the first save may want a larger one
  bool skips_steps = false;     // prepare() was called: with OnBusy::kSkip, steps are skipped until the pool is touched
  EngineStats last_stats = {};  // when it was stopped

  [[nodiscard]] EngineStats stats() const;  // without those of snapshots
  // For restore(), which may read into the pool, whose memory is already touched and registered. Null also if no slab
  // is free: a write that never ends may hold them all.
  [[nodiscard]] std::shared_ptr<Pipeline> idle() const;
  // Whether a first save would wait for the pool although prepare() was called.
  [[nodiscard]] bool busy_touching() const;
};

}  // namespace slackwater
