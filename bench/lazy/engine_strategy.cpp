// The strategies that are the engine itself.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "bench/lazy/rated_files.hpp"
#include "bench/lazy/strategy.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater::bench {
namespace {

constexpr std::uint64_t kSlabBytes = 1u << 20;  // the smallest: states are scaled down, too

class EngineStrategy final : public Strategy {
 public:
  EngineStrategy(const Trainer& trainer, Engine engine, const StrategyOptions& options)
      : trainer_(trainer), engine_(std::move(engine)), options_(options) {}

  Status save(std::uint64_t step) override {
    SW_ASSIGN(auto snapshot, engine_.save(step, trainer_.state()));
    snapshots_.push_back(std::move(*snapshot));  // never skipped: a busy engine makes save() wait
    versions_[step] = trainer_.version();
    return {};
  }

  Status fence() override {
    if (options_.way == Way::kLazyHostFence) return snapshots_.back().fence();
    const StreamRef stream = trainer_.stream();
    return snapshots_.back().fence({&stream, 1});
  }

  Status finish() override { return engine_.wait(Level::kCommitted); }

  Result<std::uint64_t> check() override {
    SW_TRY(engine_.close());
    SW_ASSIGN(const std::vector<VersionInfo> kept, list_versions(options_.directory));
    const std::uint64_t promised = options_.keep == 0 ? versions_.size() : std::min(versions_.size(), options_.keep);
    if (kept.size() != promised) {
      return fail(ErrorKind::kCorrupt, fmt::format("{} checkpoints were found, not {}", kept.size(), promised),
                  options_.directory);
    }
    for (const VersionInfo& version : kept) {
      SW_TRY(trainer_.compare_checkpoint(options_.directory, version.step, versions_.at(version.step)));
    }
    return kept.size();
  }

  [[nodiscard]] EngineFacts facts() const override {
    EngineFacts facts;
    for (const Snapshot& snapshot : snapshots_) {
      const SnapshotStats stats = snapshot.stats();
      facts.host_fences += stats.host_fences;
      facts.device_fences += stats.device_fences;
      facts.committed_s.push_back(stats.committed_seconds);
    }
    return facts;
  }

 private:
  const Trainer& trainer_;
  Engine engine_;
  const StrategyOptions options_;
  std::vector<Snapshot> snapshots_;
  std::map<std::uint64_t, std::uint64_t> versions_;  // of the trainer, by step
};

}  // namespace

Result<std::unique_ptr<Strategy>> make_engine_strategy(const SimulatedGpu& gpu, const Trainer& trainer,
                                                       const StrategyOptions& options) {
  Options engine_options{.path = options.directory,
                         .pool_bytes = std::max(options.pool_bytes, 2 * kSlabBytes),
                         .slab_bytes = kSlabBytes,
                         .keep = options.keep,
                         .cuda_driver = gpu.path(),
                         .run_name = "bench lazy"};
  EngineDependencies parts{.fs = rated_file_system(make_posix_file_system(), options.write_bytes_per_s),
                           .clock = nullptr};
  SW_ASSIGN(Engine engine, open_engine(std::move(engine_options), std::move(parts)));
  return std::make_unique<EngineStrategy>(trainer, std::move(engine), options);
}

}  // namespace slackwater::bench
