#include "bench/command.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bench/backlog/measure.hpp"

namespace slackwater::bench {
namespace {

constexpr const char* kBacklogFooter =
    R"(A state leaves a simulated GPU while the trainer copies 4 bytes to the host now and then, as loss.item() does.
The copy engine serves the ready copies of one stream back to back, so a small copy waits for what is ahead of it. The
table shows this wait, and the time until the state is staged, for several sizes of copies_ahead and copy_turn.

The simulated driver comes with the sources (make bench-backlog builds and runs it).
Exit codes: 0 fine, 1 a wrong byte was read back, 2 it could not be run, or with --strict a goal was missed.

Examples:
  slackwater_bench backlog --quick
  slackwater_bench backlog --ahead 64 --turn 1 --turn 2 --engine-us 1 --json backlog.json)";

struct BacklogArguments {
  std::string simulator;
  std::string directory = ".";
  std::string json_file;
  std::vector<double> ahead_mib;
  std::vector<double> turns_mib;
  double engine_us = -1;
  double call_us = -1;
  unsigned repeats = 0;
  bool quick = false;
  bool strict = false;
};

BacklogPlan plan_of(const BacklogArguments& arguments) {
  BacklogPlan plan = arguments.quick ? BacklogPlan::quick() : BacklogPlan::full();
  const auto time = [](double us) { return std::chrono::nanoseconds(static_cast<std::int64_t>(us * 1e3)); };
  const auto bytes = [](double mib) { return static_cast<std::uint64_t>(mib * static_cast<double>(kMiB)); };
  if (arguments.engine_us >= 0) plan.engine_time = time(arguments.engine_us);
  if (arguments.call_us >= 0) plan.call_time = time(arguments.call_us);
  if (arguments.repeats != 0) plan.repeats = arguments.repeats;
  if (arguments.ahead_mib.empty() && arguments.turns_mib.empty()) return plan;
  // Every pair of them; the default for what is not given.
  std::vector<std::uint64_t> ahead;
  std::vector<std::uint64_t> turns;
  for (const double mib : arguments.ahead_mib) ahead.push_back(bytes(mib));
  for (const double mib : arguments.turns_mib) turns.push_back(bytes(mib));
  if (ahead.empty()) ahead = {default_setting().copies_ahead_bytes};
  if (turns.empty()) turns = {default_setting().copy_turn_bytes};
  plan.settings = {{}};
  for (const std::uint64_t each : ahead)
    for (const std::uint64_t turn : turns) plan.settings.push_back({each, turn});
  return plan;
}

int run_backlog(const BacklogArguments& arguments) {
  // Threads that are started from here on wake up on time. Otherwise a sleep of the simulated GPU may end 50 us late.
  static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0));
  const auto gpus = SimulatedGpu::load(arguments.simulator, 1);
  if (!gpus) return report_failure(gpus.error());
  const auto figures = measure_backlog(*gpus->front(), arguments.directory, plan_of(arguments), show_progress);
  show_progress({});
  if (!figures) return report_failure(figures.error());
  print_figures(*figures);
  return finish(figures->verdicts, figures_json(*figures), arguments.json_file, arguments.strict);
}

}  // namespace

cli::Verb add_backlog(CLI::App& parser) {
  auto arguments = std::make_shared<BacklogArguments>();
  CLI::App* backlog =
      parser.add_subcommand("backlog", "How long a small copy of the trainer waits while a state leaves the GPU");
  backlog->add_option("--simulator", arguments->simulator,
                      "Path of libslackwater_sim_cuda.so (default: in the build tree)");
  backlog->add_option("--dir", arguments->directory, "Where to write checkpoints (default: here)");
  backlog->add_option("--ahead", arguments->ahead_mib, "Only with this copies_ahead, in MiB; may be repeated")
      ->check(CLI::Range(1.0, 4096.0));
  backlog->add_option("--turn", arguments->turns_mib, "Only with this copy_turn, in MiB, 0: none; may be repeated")
      ->check(CLI::Range(0.0, 4096.0));
  backlog->add_option("--engine-us", arguments->engine_us, "What each copy takes the engine besides its bytes (2)")
      ->check(CLI::Range(0.0, 1000.0));
  backlog->add_option("--call-us", arguments->call_us, "What a small copy takes besides the engine's time (8)")
      ->check(CLI::Range(0.0, 1000.0));
  backlog->add_option("--repeats", arguments->repeats, "Runs of each setting (3)")->check(CLI::Range(1, 1000));
  backlog->add_option("--json", arguments->json_file, "File for all figures as one JSON document");
  backlog->add_flag("--quick", arguments->quick, "A few seconds: shows that everything works, proves nothing");
  backlog->add_flag("--strict", arguments->strict, "A missed goal makes exit code 2");
  backlog->footer(kBacklogFooter);
  return {backlog, [arguments] { return run_backlog(*arguments); }};
}

}  // namespace slackwater::bench
