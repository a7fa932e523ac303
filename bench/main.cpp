// slackwater_bench NAME [options]: runs one benchmark, prints its table, writes its JSON. bench/run.py runs those of
// docs/benchmarks.md; `lazy`, `backlog` and `commit` (in folders of these names) have options, tables and JSON of their
// own.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error.hpp"
#include "bench/command.hpp"
#include "benchmarks.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {

std::span<const Benchmark> all_benchmarks() {
  static constexpr std::array<Benchmark, 9> kBenchmarks{{
      {"durable_write", "a state through a pool of an eighth of it, against a raw write", durable_write},
      {"verified_restore", "restore with every byte checked, against raw reads", verified_restore},
      {"memory_restore", "restore from a keeper's memory, against hash + memcpy", memory_restore},
      {"save_call", "how long save() holds the trainer up", save_call},
      {"staging", "copying into a pool that holds the state, against memcpy", staging},
      {"small_tensors", "100,000 tensors of 16 KiB against few large ones", small_tensors},
      {"peak_memory", "memory beyond the state, for save and restore", peak_memory},
      {"restore_plan", "a rank's share of 1,000,000 boxes, found and planned", restore_plan},
      {"raw_write", "the reference alone", raw_write},
  }};
  return kBenchmarks;
}

namespace {

// Makes a directory of this run's own below the one given, and removes it with everything in it.
class WorkDirectory {
 public:
  explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  ~WorkDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] Status make() const {
    std::error_code error;
    if (!std::filesystem::create_directory(path_, error))
      return fail(error_from_errno(error ? error.value() : EEXIST,
                                   "cannot make the benchmark's directory; its parent must exist", path_));
    return {};
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Status run(const Benchmark& benchmark, Settings settings, const std::string& json_path) {
  const WorkDirectory directory(
      fmt::format("{}/slackwater-bench-{}-{}", settings.directory, benchmark.name, ::getpid()));
  SW_TRY(directory.make());
  settings.directory = directory.path();
  SW_ASSIGN(const Report report, benchmark.run(settings));
  fmt::print("{}", table(report));
  if (json_path.empty()) return {};
  std::ofstream file(json_path);
  if (!(file << to_json(report).dump(1) << '\n' << std::flush))
    return fail(ErrorKind::kIo, "cannot write the results", json_path);
  return {};
}

void make_quick(Settings& settings) {
  settings.pairs = 3;
  settings.state_bytes = 256ull << 20;
  settings.pause_seconds = 0.05;
}

int main_of(int argc, char** argv) {
  CLI::App app("Benchmarks of the Slackwater engine; docs/benchmarks.md tells what each figure means.",
               "slackwater_bench");
  app.require_subcommand(1);
  Settings settings;
  std::string json_path;
  std::string what;
  std::string output;
  const auto add_common = [&](CLI::App& command) {
    command.add_option("--dir", settings.directory, "directory on the disk to be measured")->required();
    command.add_option("--bytes", settings.state_bytes, "size of the large states");
  };
  for (const Benchmark& benchmark : all_benchmarks()) {
    CLI::App* command = app.add_subcommand(std::string(benchmark.name), std::string(benchmark.help));
    add_common(*command);
    command->add_option("--pairs", settings.pairs, "alternated runs of engine and reference");
    command->add_option("--json", json_path, "file for the results");
    command->add_flag_callback(
        "--quick",
        [&] {
          settings.quick = true;
          make_quick(settings);
        },
        "few small runs, to see that it works");
  }
  CLI::App* child = app.add_subcommand("peak_memory_child", "")->group("");
  add_common(*child);
  child->add_option("what", what)->required();
  child->add_option("output", output)->required();
  const std::array verbs{add_lazy(app), add_backlog(app), add_commit(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    cli::print_problem("error", error.what());
    cli::print_problem("hint", "slackwater_bench --help lists the benchmarks, slackwater_bench NAME --help options");
    return cli::kFailed;
  }
  for (const cli::Verb& verb : verbs)
    if (verb.parser->parsed()) return verb.run();

  Status status;
  if (child->parsed()) {
    status = measure_peak_memory(settings, what, output);
  } else {
    for (const Benchmark& benchmark : all_benchmarks()) {
      if (app.got_subcommand(std::string(benchmark.name))) status = run(benchmark, settings, json_path);
    }
  }
  return status ? cli::kFine : report_failure(status.error());
}

}  // namespace

}  // namespace slackwater::bench

int main(int argc, char** argv) { return slackwater::bench::main_of(argc, argv); }
