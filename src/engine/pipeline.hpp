// Pipeline: the part of the road with threads on it: pool, copy threads, writer. The only place that joins stage and store.
// Owned by the engine, made at its first save. Thread rule: launch() from the plan thread, the rest from any.
// Lifetime: FileSystem and Devices outlive it. The destructor ends what is under way and waits for writes in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "device/devices.hpp"
#include "engine/voyage.hpp"
#include "os/file_system.hpp"
#include "slackwater/options.hpp"
#include "stage/pool.hpp"
#include "stage/stager.hpp"
#include "store/stream_writer.hpp"

namespace slackwater {

class Pipeline {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Pipeline>> create(FileSystem& fs, Devices& devices,
                                                                const Options& options, std::uint32_t slab_count,
                                                                Log log);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Opens the streams and queues the copies; needs directory, layout and captured sources. `on_arrived` is called once,
  // when nothing of this voyage is under way any more, which includes the caller: he too ends with Voyage::end_one(). The snapshot tells whether it failed.
  // An Error (of a device): nothing was launched, and on_arrived will not be called.
  // `make_room`: as StreamSpec has it.
  [[nodiscard]] Status launch(const std::shared_ptr<Voyage>& voyage, std::function<void()> on_arrived,
                              std::function<bool()> make_room);
  // Ends what is under way, waits for writes in flight, joins the threads. Every voyage has arrived afterwards. Idempotent.
  void stop();
  // Gives a launched voyage up; it arrives as failed.
  void cancel(Voyage& voyage, const Error& error);

  [[nodiscard]] Pool& pool() { return *pool_; }
  [[nodiscard]] std::uint64_t pool_bytes() const { return pool_->slab_bytes() * pool_->slab_count(); }
  [[nodiscard]] const StreamWriter& writer() const { return *writer_; }

 private:
  // The pool's touching thread registers slabs with the writer, and with CUDA once that is in use; both may go before the pool.
  struct Registrar {
    std::mutex mutex;
    StreamWriter* writer = nullptr;
    Devices* devices = nullptr;
    std::vector<std::span<std::byte>> ready;   // slabs that were touched
    std::vector<std::span<std::byte>> pinned;  // of those, the ones CUDA knows
    std::optional<Error> trouble;              // why pinning was given up

    void slab_ready(int index, std::span<std::byte> memory);
    void pin_ready();  // needs mutex
  };

  Pipeline() = default;
  [[nodiscard]] Status begin_passages(const Capture& captured, StageJob& job);

  bool direct_io_ = true;
  std::optional<Log> log_;
  bool told_pin_trouble_ = false;  // of the plan thread
  std::shared_ptr<Registrar> registrar_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<StreamWriter> writer_;
  std::unique_ptr<Stager> stager_;
};

}  // namespace slackwater
