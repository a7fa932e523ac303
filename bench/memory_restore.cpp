// Restore from a keeper's memory, every byte verified, against hash + memcpy of the same bytes with as many threads.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/digest.hpp"
#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {
namespace {

// Block by block, as the engine does: a block is hashed, then copied while it is in the cache.
double hash_and_copy(std::span<const std::byte> from, std::span<std::byte> to) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2u, 4u);  // as BlockReader takes
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> sum{0};
  const Stopwatch watch;
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < threads; ++i)
      workers.emplace_back([&] {
        for (std::uint64_t at = next.fetch_add(kBlockBytes); at < from.size(); at = next.fetch_add(kBlockBytes)) {
          const auto block = from.subspan(at, std::min<std::uint64_t>(kBlockBytes, from.size() - at));
          sum += digest64(block);
          std::memcpy(to.data() + at, block.data(), block.size());
        }
      });
  }
  return watch.seconds();
}

}  // namespace

Result<Report> memory_restore(const Settings& settings) {
  SW_ASSIGN(const HostState state, HostState::create(settings.state_bytes, kFewTensors));
  Options options = engine_options(settings, "memory-restore", 0);
  options.memory = true;
  options.keeper = KEEPER_PROGRAM;
  SW_ASSIGN(RepeatedSave saves, RepeatedSave::create(options, state));
  SW_TRY(saves.run());
  SW_ASSIGN(const HostMemory destination, HostMemory::create(state.size_bytes(), Pages::kDefault));
  const auto ours = [&]() -> Result<double> {
    destination.fill_zero();
    SW_TRY(settle(settings));
    const Stopwatch watch;
    SW_ASSIGN(const auto restored, saves.engine().restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
      return state.targets(destination);
    }));
    const double seconds = watch.seconds();
    if (!restored) return fail(ErrorKind::kNotFound, "nothing was restored", options.path);
    if (std::memcmp(destination.bytes().data(), state.memory().bytes().data(), state.size_bytes()) != 0)
      return fail(ErrorKind::kCorrupt, "the restored bytes are not the bytes saved", options.path);
    return seconds;
  };
  const auto theirs = [&]() -> Result<double> {
    destination.fill_zero();
    SW_TRY(settle(settings));
    return hash_and_copy(state.memory().bytes(), destination.bytes());
  };
  SW_ASSIGN(const auto pairs, alternate(settings.pairs, ours, theirs));
  Line ratio{.name = "restore from memory, throughput / hash + memcpy",
             .unit = "ratio",
             .samples = {},
             .goal = at_least(0.70)};
  Line engine_speed{.name = "engine, restore from memory", .unit = "GB/s", .samples = {}, .goal = {}};
  Line raw_speed{.name = "hash + memcpy", .unit = "GB/s", .samples = {}, .goal = {}};
  const double gigabytes = static_cast<double>(state.size_bytes()) * 1e-9;
  for (const auto& [run, raw] : pairs) {
    ratio.samples.push_back(raw / run);
    engine_speed.samples.push_back(gigabytes / run);
    raw_speed.samples.push_back(gigabytes / raw);
  }
  return Report{.benchmark = "memory_restore",
                .setup = {{"engine", describe(saves.engine().stats())}, {"pairs", settings.pairs}},
                .lines = {ratio, engine_speed, raw_speed}};
}

}  // namespace slackwater::bench
