#include "bench/command.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/lazy/measure.hpp"

namespace slackwater::bench {
namespace {

constexpr const char* kFooter =
    R"(Trains on a simulated GPU with the sizes and times of the DataStates-LLM paper, scaled down. The engine and the
disk are real. Models of other systems' strategies run beside it for comparison. Parts: (a) blocked time per checkpoint,
(b) whole runs by interval, (c) size of the pool. Every checkpoint that the engine keeps is read back and compared.

The simulated driver comes with the sources (make bench-lazy builds and runs it).
Exit codes: 0 fine, 1 a wrong byte was read back, 2 it could not be run, or with --strict a goal was missed.

Examples:
  slackwater_bench lazy --quick
  slackwater_bench lazy --only a --json a.json --dir /nvme/tmp)";

struct Arguments {
  std::string simulator;
  std::string directory = ".";
  std::string json_file;
  std::vector<std::string> only;
  bool quick = false;
  bool strict = false;
};

int run_lazy(const Arguments& arguments) {
  const auto gpus = SimulatedGpu::load(arguments.simulator, kLanes);
  if (!gpus) return report_failure(gpus.error());
  std::vector<std::unique_ptr<Runner>> lanes;
  for (const auto& gpu : *gpus) {
    auto runner = Runner::create(*gpu, arguments.directory);
    if (!runner) return report_failure(runner.error());
    lanes.push_back(std::move(*runner));
  }
  LazyPlan plan = arguments.quick ? LazyPlan::quick() : LazyPlan::full();
  if (!arguments.only.empty()) plan.sections = fmt::format("{}", fmt::join(arguments.only, ""));

  const auto figures = measure(lanes, plan, show_progress);
  show_progress({});
  if (!figures) return report_failure(figures.error());
  print_figures(*figures);
  return finish(figures->verdicts, figures_json(*figures), arguments.json_file, arguments.strict);
}

}  // namespace

cli::Verb add_lazy(CLI::App& parser) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* lazy =
      parser.add_subcommand("lazy", "Checkpoints at every iteration of a simulated GPU, beside the paper's figures");
  lazy->add_option("--simulator", arguments->simulator,
                   "Path of libslackwater_sim_cuda.so (default: in the build tree)");
  lazy->add_option("--dir", arguments->directory, "Where to write: the disk that is measured (default: here)");
  lazy->add_option("--only", arguments->only, "Only this part; may be repeated")->check(CLI::IsMember({"a", "b", "c"}));
  lazy->add_option("--json", arguments->json_file, "File for all figures as one JSON document");
  lazy->add_flag("--quick", arguments->quick, "Ten seconds: shows that everything works, proves nothing");
  lazy->add_flag("--strict", arguments->strict, "A missed goal makes exit code 2");
  lazy->footer(kFooter);
  return {lazy, [arguments] { return run_lazy(*arguments); }};
}

}  // namespace slackwater::bench
