#include "bench/command.hpp"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "bench/commit/measure.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {
namespace {

constexpr const char* kCommitFooter =
    R"(The ranks are light participants in this process. They have no tensors and no network, but they run the real
protocol over a real directory, and over a key-value store that counts calls and bytes. They act one after the other on
a few threads, and the time of a decision is added up from the calls along its path. Up to 64 ranks it is also measured,
with a thread per rank. Two more parts measure the time a trainer spends in save(), alone and among 64 ranks, and the
plan to restore a checkpoint of a million shards.

Exit codes: 0 fine, 1 a wrong byte was read back, 2 it could not be run, or with --strict a goal was missed.

Examples:
  slackwater_bench commit --quick
  slackwater_bench commit --ranks 64 --ranks 1024 --json commit.json --dir /nvme/tmp)";

struct CommitArguments {
  std::string directory = ".";
  std::string json_file;
  std::vector<std::uint32_t> ranks;
  std::uint32_t tensors = 0;
  std::uint32_t fan_in = 0;
  bool quick = false;
  bool strict = false;
};

// Removed with everything in it.
class BenchDirectory {
 public:
  explicit BenchDirectory(const std::string& parent) : path_(parent + "/slackwater-bench-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~BenchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int run_commit(const CommitArguments& arguments) {
  CommitPlan plan = arguments.quick ? CommitPlan::quick() : CommitPlan();
  if (!arguments.ranks.empty()) plan.ranks = arguments.ranks;
  if (arguments.tensors != 0) plan.tensors = arguments.tensors;
  if (arguments.fan_in != 0) plan.fan_in = arguments.fan_in;
  const BenchDirectory directory(arguments.directory);
  if (directory.path().empty()) {
    cli::print_problem("error",
                       fmt::format("cannot make a directory in {}; choose another with --dir", arguments.directory));
    return cli::kFailed;
  }
  const auto figures = measure_commit(directory.path(), plan, show_progress);
  show_progress({});
  if (!figures) return report_failure(figures.error());
  print_figures(*figures);
  return finish(figures->verdicts, figures_json(*figures), arguments.json_file, arguments.strict);
}

}  // namespace

cli::Verb add_commit(CLI::App& parser) {
  auto arguments = std::make_shared<CommitArguments>();
  CLI::App* commit = parser.add_subcommand("commit", "What a commit of 8 to 16,384 ranks costs, without a cluster");
  commit->add_option("--dir", arguments->directory, "Where to write: the disk that is measured (default: here)");
  commit->add_option("--ranks", arguments->ranks, "So many ranks; may be repeated (default: 8 64 512 4096 16384)")
      ->check(CLI::Range(2, 65536));
  commit->add_option("--tensors", arguments->tensors, "Tensors, each split over all ranks (default: 240)")
      ->check(CLI::Range(1, 100'000));
  commit->add_option("--fan-in", arguments->fan_in, "Ranks in a group (default: 64)")->check(CLI::Range(2, 65536));
  commit->add_option("--json", arguments->json_file, "File for all figures as one JSON document");
  commit->add_flag("--quick", arguments->quick, "A few seconds: shows that everything works, proves nothing");
  commit->add_flag("--strict", arguments->strict, "A missed goal makes exit code 2");
  commit->footer(kCommitFooter);
  return {commit, [arguments] { return run_commit(*arguments); }};
}

}  // namespace slackwater::bench
