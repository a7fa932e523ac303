// Restore of a checkpoint with every byte verified, cold cache, against raw O_DIRECT reads of the same file.
#include <cstring>

#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

Result<Report> verified_restore(const Settings& settings) {
  SW_ASSIGN(const HostState state, HostState::create(settings.state_bytes, kFewTensors));
  const std::uint64_t pool_bytes = state.size_bytes() / kStatePerPool;
  const Options options = engine_options(settings, "verified-restore", pool_bytes);
  SW_ASSIGN(RepeatedSave saves, RepeatedSave::create(options, state));
  SW_TRY(saves.run());
  SW_ASSIGN(const std::string file, saves.newest_file());
  SW_ASSIGN(ReferenceFile reference, ReferenceFile::load(settings, file, pool_bytes));
  SW_ASSIGN(const HostMemory destination, HostMemory::create(state.size_bytes(), Pages::kDefault));

  struct RestoreRun {
    double seconds = 0;
    double cpu = 0;
  };
  const auto ours = [&]() -> Result<RestoreRun> {
    destination.fill_zero();
    SW_TRY(settle(settings));
    SW_TRY(drop_cache(options.path));
    const double cpu_before = process_cpu_seconds();
    const Stopwatch watch;
    SW_ASSIGN(const auto restored, saves.engine().restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
      return state.targets(destination);
    }));
    const RestoreRun run{.seconds = watch.seconds(), .cpu = process_cpu_seconds() - cpu_before};
    if (!restored) return fail(ErrorKind::kNotFound, "nothing was restored", options.path);
    if (std::memcmp(destination.bytes().data(), state.memory().bytes().data(), state.size_bytes()) != 0)
      return fail(ErrorKind::kCorrupt, "the restored bytes are not the bytes saved", options.path);
    return run;
  };
  const auto theirs = [&]() -> Result<double> {
    SW_TRY(settle(settings));
    SW_TRY(drop_cache(options.path));
    return reference.read(file);
  };
  SW_ASSIGN(const auto pairs, alternate(settings.pairs, ours, theirs));

  Line ratio{.name = "verified restore, throughput / raw read", .unit = "ratio", .samples = {}, .goal = at_least(0.90)};
  Line engine_speed{.name = "engine, restore", .unit = "GB/s", .samples = {}, .goal = {}};
  Line raw_speed{.name = "raw read", .unit = "GB/s", .samples = {}, .goal = {}};
  Line cpu_time{.name = "engine, CPU seconds per GB", .unit = "s", .samples = {}, .goal = {}};
  const double gigabytes = static_cast<double>(reference.size_bytes()) * 1e-9;
  for (const auto& [run, raw] : pairs) {
    ratio.samples.push_back(raw / run.seconds);
    engine_speed.samples.push_back(gigabytes / run.seconds);
    raw_speed.samples.push_back(gigabytes / raw);
    cpu_time.samples.push_back(run.cpu / gigabytes);
  }
  return Report{.benchmark = "verified_restore",
                .setup = {{"engine", describe(saves.engine().stats())},
                          {"reference", reference.describe()},
                          {"pairs", settings.pairs}},
                .lines = {ratio, engine_speed, raw_speed, cpu_time}};
}

}  // namespace slackwater::bench
