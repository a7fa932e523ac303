// Strategy: one way to checkpoint, driven by the training loop of training_run.cpp. Two are the real engine; the
// others are models of other systems, written on the same file system and device calls so that only the strategy
// differs. Everything is in the models' favour: pinned memory, no checksums, no syncs, no commit.
// Thread rule: one thread, the trainer's. Lifetime: GPU and trainer outlive it; the destructor ends its threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/lazy/trainer.hpp"
#include "slackwater/error.hpp"

namespace slackwater::bench {

enum class Way : std::uint8_t {
  kNone,             // no checkpoints
  kBlocking,         // model of DeepSpeed's default: copied and written, through the page cache, inside save
  kCopyThenFlush,    // model of CheckFreq: copied inside save, written in the background, one at a time
  kChunked,          // model of TorchSnapshot: chunks copied and written side by side, save returns when all are copied
  kLazyHostFence,    // the engine; the update is not queued before the copies are done
  kLazyDeviceFence,  // the engine; the update is queued behind the copies
};
[[nodiscard]] std::string_view way_name(Way way);  // "model of CheckFreq (copy, then flush)"
[[nodiscard]] std::string_view way_key(Way way);   // "copy_then_flush": in JSON

struct StrategyOptions {
  Way way = Way::kNone;
  std::string directory;         // exists, and is empty
  double write_bytes_per_s = 0;  // 0: as fast as the disk
  std::uint64_t pool_bytes = 0;  // of the engine; the chunks of kChunked share as much
  std::uint64_t keep = 0;        // checkpoints the engine keeps; 0: all. The models keep all
};

// What the engine says of its snapshots.
struct EngineFacts {
  std::uint64_t host_fences = 0;
  std::uint64_t device_fences = 0;
  std::vector<double> committed_s;  // from the start of save() until committed, by snapshot
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // The trainer's work is over, its state stands still until fence(). Returns when training may go on.
  [[nodiscard]] virtual Status save(std::uint64_t step) = 0;
  // Before the update is queued.
  [[nodiscard]] virtual Status fence() { return {}; }
  // Returns when every checkpoint is complete on storage, or one of them failed.
  [[nodiscard]] virtual Status finish() = 0;
  // After finish(), the last call: reads checkpoints back, compares them with what the trainer had at their save(), and
  // tells how many. kCorrupt at a wrong byte. The engine's: all that are kept; a model's: the last.
  [[nodiscard]] virtual Result<std::uint64_t> check() = 0;
  [[nodiscard]] virtual EngineFacts facts() const { return {}; }  // after finish()
};

[[nodiscard]] Result<std::unique_ptr<Strategy>> make_strategy(const SimulatedGpu& gpu, const Trainer& trainer,
                                                              const StrategyOptions& options);

// Of the ways that are the engine.
[[nodiscard]] Result<std::unique_ptr<Strategy>> make_engine_strategy(const SimulatedGpu& gpu, const Trainer& trainer,
                                                                     const StrategyOptions& options);

}  // namespace slackwater::bench
