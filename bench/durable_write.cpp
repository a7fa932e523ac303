// Durable write of a host state through a pool an eighth of its size, checksums on, against the same bytes written raw.
#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

Result<Report> durable_write(const Settings& settings) {
  SW_ASSIGN(const HostState state, HostState::create(settings.state_bytes, kFewTensors));
  const std::uint64_t pool_bytes = state.size_bytes() / kStatePerPool;
  SW_ASSIGN(RepeatedSave saves, RepeatedSave::create(engine_options(settings, "durable-write", pool_bytes), state));
  SW_TRY(saves.run());
  SW_ASSIGN(const std::string file, saves.newest_file());
  SW_ASSIGN(ReferenceFile reference, ReferenceFile::load(settings, file, pool_bytes));

  const auto ours = [&]() -> Result<SaveRun> {
    SW_TRY(settle(settings));
    return saves.run();
  };
  const auto theirs = [&]() -> Result<double> {
    SW_TRY(settle(settings));
    return reference.write();
  };
  SW_ASSIGN(const auto pairs, alternate(settings.pairs, ours, theirs));
  SW_TRY(saves.verify());

  Line durable{.name = "durable write, throughput / raw write", .unit = "ratio", .samples = {}, .goal = at_least(0.95)};
  Line committed{.name = "the same until committed", .unit = "ratio", .samples = {}, .goal = at_least(0.95)};
  Line engine_speed{.name = "engine, durable", .unit = "GB/s", .samples = {}, .goal = {}};
  Line raw_speed{.name = "raw write", .unit = "GB/s", .samples = {}, .goal = {}};
  Line commit_time{.name = "engine, from durable to committed", .unit = "ms", .samples = {}, .goal = {}};
  Line cpu_time{.name = "engine, CPU seconds per GB", .unit = "s", .samples = {}, .goal = {}};
  const double gigabytes = static_cast<double>(reference.size_bytes()) * 1e-9;
  for (const auto& [run, raw] : pairs) {
    durable.samples.push_back(raw / run.durable);
    committed.samples.push_back(raw / run.committed);
    engine_speed.samples.push_back(gigabytes / run.durable);
    raw_speed.samples.push_back(gigabytes / raw);
    commit_time.samples.push_back((run.committed - run.durable) * 1e3);
    cpu_time.samples.push_back(run.cpu / gigabytes);
  }
  return Report{.benchmark = "durable_write",
                .setup = {{"engine", describe(saves.engine().stats())},
                          {"reference", reference.describe()},
                          {"pairs", settings.pairs}},
                .lines = {durable, committed, engine_speed, raw_speed, commit_time, cpu_time}};
}

}  // namespace slackwater::bench
