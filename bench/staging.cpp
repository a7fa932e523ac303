// Staging when the pool holds the whole state, against memcpy of the same bytes by as many threads.
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

namespace {

// Threads that exist before the clock starts, as the engine's do, and share the bytes in pieces of one slab.
Result<double> copy(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads,
                    std::uint64_t piece_bytes) {
  std::atomic<std::uint64_t> next = 0;
  std::barrier barrier(threads + 1);
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      barrier.arrive_and_wait();
      for (std::uint64_t at = next.fetch_add(piece_bytes); at < from.size(); at = next.fetch_add(piece_bytes))
        std::memcpy(to.data() + at, from.data() + at, std::min<std::uint64_t>(piece_bytes, from.size() - at));
      barrier.arrive_and_wait();
    });
  }
  const Stopwatch watch;
  barrier.arrive_and_wait();
  barrier.arrive_and_wait();
  return watch.seconds();
}

}  // namespace

Result<Report> staging(const Settings& settings) {
  constexpr std::uint64_t kHeadroom = 64u << 20;  // header and rounding; the pool must hold it all
  SW_ASSIGN(const HostState state, HostState::create(settings.state_bytes, kFewTensors));
  SW_ASSIGN(const HostMemory destination, HostMemory::create(state.size_bytes(), Pages::kHuge));
  destination.fill_zero();
  Report report{.benchmark = "staging", .setup = {{"pairs", settings.pairs}}, .lines = {}};

  for (const unsigned threads : {1u, 2u}) {
    Options options = engine_options(settings, fmt::format("staging-{}", threads), state.size_bytes() + kHeadroom);
    options.copy_threads = threads;
    SW_ASSIGN(RepeatedSave saves, RepeatedSave::create(options, state));
    for (int touch_the_pool = 0; touch_the_pool < 2; ++touch_the_pool) SW_TRY(saves.run());

    const auto ours = [&]() -> Result<SaveRun> {
      SW_TRY(settle(settings));
      return saves.run();
    };
    const auto theirs = [&] { return copy(state.memory().bytes(), destination.bytes(), threads, settings.slab_bytes); };
    SW_ASSIGN(const auto pairs, alternate(settings.pairs, ours, theirs));

    const std::string with = fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
    Line ratio{
        .name = fmt::format("staging, time / memcpy, {}", with), .unit = "ratio", .samples = {}, .goal = at_most(1.3)};
    Line engine_speed{.name = fmt::format("engine, staged, {}", with), .unit = "GB/s", .samples = {}, .goal = {}};
    Line copy_speed{.name = fmt::format("memcpy, {}", with), .unit = "GB/s", .samples = {}, .goal = {}};
    const double gigabytes = static_cast<double>(state.size_bytes()) * 1e-9;
    for (const auto& [run, copied] : pairs) {
      ratio.samples.push_back(run.staged / copied);
      engine_speed.samples.push_back(gigabytes / run.staged);
      copy_speed.samples.push_back(gigabytes / copied);
    }
    report.setup["engine"] = describe(saves.engine().stats());
    report.lines.insert(report.lines.end(), {ratio, engine_speed, copy_speed});
  }
  return report;
}

}  // namespace slackwater::bench
