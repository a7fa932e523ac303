// 100,000 tensors of 16 KiB against few large ones of the same bytes, both through the engine, until durable.
#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

Result<Report> small_tensors(const Settings& settings) {
  constexpr std::uint64_t kSmallBytes = 16u << 10;
  const std::uint32_t count = settings.quick ? 10'000 : 100'000;
  SW_ASSIGN(const HostState many, HostState::create(kSmallBytes * count, count));
  SW_ASSIGN(const HostState few, HostState::create(kSmallBytes * count, kFewTensors));
  const std::uint64_t pool_bytes = many.size_bytes() / kStatePerPool;
  SW_ASSIGN(RepeatedSave many_saves, RepeatedSave::create(engine_options(settings, "many-small", pool_bytes), many));
  SW_ASSIGN(RepeatedSave few_saves, RepeatedSave::create(engine_options(settings, "few-large", pool_bytes), few));
  SW_TRY(many_saves.run());
  SW_TRY(few_saves.run());

  const auto timed = [&](RepeatedSave& saves) {
    return [&]() -> Result<SaveRun> {
      SW_TRY(settle(settings));
      return saves.run();
    };
  };
  SW_ASSIGN(const auto pairs, alternate(settings.pairs, timed(many_saves), timed(few_saves)));
  SW_TRY(many_saves.verify());

  Line ratio{
      .name = "small tensors, durable throughput / few large", .unit = "ratio", .samples = {}, .goal = at_least(0.85)};
  Line committed{.name = "the same until committed", .unit = "ratio", .samples = {}, .goal = {}};
  Line many_speed{.name = "many small, durable", .unit = "GB/s", .samples = {}, .goal = {}};
  Line few_speed{.name = "few large, durable", .unit = "GB/s", .samples = {}, .goal = {}};
  Line save_time{.name = "many small, save() call", .unit = "ms", .samples = {}, .goal = {}};
  Line cpu_time{.name = "many small, CPU seconds per GB", .unit = "s", .samples = {}, .goal = {}};
  for (const auto& [small, large] : pairs) {
    const double gigabytes = static_cast<double>(many.size_bytes()) * 1e-9;
    const double bytes_ratio = static_cast<double>(many.size_bytes()) / static_cast<double>(few.size_bytes());
    ratio.samples.push_back(large.durable / small.durable * bytes_ratio);
    committed.samples.push_back(large.committed / small.committed * bytes_ratio);
    many_speed.samples.push_back(gigabytes / small.durable);
    few_speed.samples.push_back(gigabytes / large.durable / bytes_ratio);
    save_time.samples.push_back(small.save * 1e3);
    cpu_time.samples.push_back(small.cpu / gigabytes);
  }
  return Report{.benchmark = "small_tensors",
                .setup = {{"engine", describe(many_saves.engine().stats())},
                          {"tensors", count},
                          {"tensor_bytes", kSmallBytes},
                          {"pairs", settings.pairs}},
                .lines = {ratio, committed, many_speed, few_speed, save_time, cpu_time}};
}

}  // namespace slackwater::bench
