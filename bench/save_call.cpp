// The save() call: how long it blocks the trainer, by number of tensors and by size of the state.
#include <cmath>

#include <fmt/format.h>

#include "base/units.hpp"
#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

namespace {

// Milliseconds of each call; the engine is idle before each, and warm.
Result<std::vector<double>> calls(const Settings& settings, std::uint64_t size_bytes, std::uint32_t count,
                                  unsigned repeats) {
  constexpr std::uint64_t kPoolBytes = 256u << 20;
  constexpr unsigned kWarmUps = 2;
  SW_ASSIGN(const HostState state, HostState::create(size_bytes, count));
  SW_ASSIGN(RepeatedSave saves,
            RepeatedSave::create(
                engine_options(settings, fmt::format("save-call-{}-{}", count, size_bytes), kPoolBytes), state));
  std::vector<double> milliseconds;
  for (unsigned run = 0; run < kWarmUps + repeats; ++run) {
    SW_ASSIGN(const SaveRun timed, saves.run());
    if (run >= kWarmUps) milliseconds.push_back(timed.save * 1e3);
  }
  return milliseconds;
}

double limit_ms(std::uint32_t count) { return 2.0 + 0.002 * count; }

}  // namespace

Result<Report> save_call(const Settings& settings) {
  constexpr std::uint64_t kSmallState = 64u << 20;
  constexpr std::uint32_t kCompared = 1'000;
  const std::uint64_t large_state = settings.quick ? 512ull << 20 : 4ull << 30;
  Report report{.benchmark = "save_call", .setup = {}, .lines = {}};
  const auto measure = [&](std::uint64_t size_bytes, std::uint32_t count) -> Result<std::vector<double>> {
    const unsigned repeats = settings.quick ? 5 : size_bytes == kSmallState ? 41 : 15;
    SW_ASSIGN(std::vector<double> samples, calls(settings, size_bytes, count, repeats));
    report.lines.push_back({.name = fmt::format("save(), {} tensors, {}", count, format_bytes(size_bytes)),
                            .unit = "ms",
                            .samples = samples,
                            .goal = at_most(limit_ms(count))});
    return samples;
  };

  std::vector<double> small;
  for (const std::uint32_t count : {10u, kCompared, 10'000u, 100'000u}) {
    SW_ASSIGN(std::vector<double> samples, measure(kSmallState, count));
    if (count == kCompared) small = std::move(samples);
  }
  SW_ASSIGN(const std::vector<double> large, measure(large_state, kCompared));
  report.lines.push_back({.name = fmt::format("save(), {} tensors, {} over {}", kCompared, format_bytes(large_state),
                                              format_bytes(kSmallState)),
                          .unit = "ms",
                          .samples = {median(large) - median(small)},
                          .goal = at_most(1.0)});
  return report;
}

}  // namespace slackwater::bench
