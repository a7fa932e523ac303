#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench_lazy.hpp"
#include "cli/bench_verbs.hpp"
#include "cli/location.hpp"
#include "cli/text.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kFooter =
    R"(Trains on a simulated GPU with the sizes and times of the DataStates-LLM paper, scaled down, through the real engine
and the real disk, and lays models of other systems' strategies beside it. Parts: (a) blocked time per checkpoint, (b)
whole runs by interval, (c) size of the pool. Every checkpoint the engine keeps is read back and compared.

The simulated driver comes with the sources (make bench-lazy builds and runs it); no installed package carries it.
Exit codes: 0 fine, 1 a wrong byte was read back, 2 it could not be run, or with --strict a goal was missed.

Examples:
  slackwater bench lazy --quick
  slackwater bench lazy --only a --json a.json --dir /nvme/tmp)";

struct Arguments {
  std::string simulator;
  std::string directory = ".";
  std::string json_file;
  std::vector<std::string> only;
  bool quick = false;
  bool strict = false;
};

int lazy_failed(const Error& error) {
  print_error(error);
  return error.kind == ErrorKind::kCorrupt ? kDamaged : kFailed;
}

int run_lazy(const Arguments& arguments) {
  const auto gpus = SimulatedGpu::load(arguments.simulator, kLanes);
  if (!gpus) return lazy_failed(gpus.error());
  std::vector<std::unique_ptr<Runner>> lanes;
  for (const auto& gpu : *gpus) {
    auto runner = Runner::create(*gpu, arguments.directory);
    if (!runner) return lazy_failed(runner.error());
    lanes.push_back(std::move(*runner));
  }
  LazyPlan plan = arguments.quick ? LazyPlan::quick() : LazyPlan::full();
  if (!arguments.only.empty()) plan.sections = fmt::format("{}", fmt::join(arguments.only, ""));

  const auto figures = measure(lanes, plan, show_progress);
  show_progress({});
  if (!figures) return lazy_failed(figures.error());
  print_figures(*figures);
  return finish_bench(figures->verdicts, figures_json(*figures), arguments.json_file, arguments.strict);
}

bool write_json(const std::string& path, const OrderedJson& json) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const std::string text = dump(json) + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

Verb add_lazy(CLI::App& bench) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* lazy =
      bench.add_subcommand("lazy", "Checkpoints at every iteration of a simulated GPU, beside the paper's figures");
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

}  // namespace

void show_progress(const std::string& what) {
  if (isatty(STDERR_FILENO) != 1) return;
  fmt::print(stderr, "\r\033[K{}", what);
  std::fflush(stderr);
}

OrderedJson verdicts_json(const std::vector<Verdict>& verdicts) {
  OrderedJson json = OrderedJson::array();
  for (const Verdict& verdict : verdicts) {
    json.push_back(
        {{"what", verdict.what}, {"measured", verdict.measured}, {"limit", verdict.limit}, {"met", verdict.met()}});
  }
  return json;
}

int finish_bench(const std::vector<Verdict>& verdicts, const OrderedJson& json, const std::string& json_file,
                 bool strict) {
  if (!json_file.empty() && !write_json(json_file, json)) {
    print_problem("error", fmt::format("cannot write the figures to {}", json_file));
    return kFailed;
  }
  const bool missed = !std::ranges::all_of(verdicts, &Verdict::met);
  return missed && strict ? kFailed : kFine;
}

Verb add_bench(CLI::App& parser) {
  CLI::App* bench = parser.add_subcommand("bench", "Measure the engine");
  bench->require_subcommand(1);
  const Verb lazy = add_lazy(*bench);
  const Verb commit = add_bench_commit(*bench);
  return {bench, [lazy, commit] { return lazy.parser->parsed() ? lazy.run() : commit.run(); }};
}

}  // namespace slackwater::cli
