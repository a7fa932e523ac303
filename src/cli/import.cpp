#include "formats/import.hpp"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/progress_bar.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "slackwater/checkpoint.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kImportFooter =
    R"(SOURCE is a file of torch.save, a .safetensors file, a model.safetensors.index.json, or a directory: a Hugging
Face model, or a checkpoint of torch.distributed.checkpoint (DCP). No pickle is run. What only running code from the
file could rebuild is an error that names it; choose what to import with --only and --exclude.

The result is a committed checkpoint as any other: restore(), sw.load(), ls, show and verify take it. DIR may hold
checkpoints of earlier steps.

Keys of --json: source, format, directory, step, tensors, size_bytes, version [as in ls].

Examples:
  slackwater import model.pt runs/new                   a dict such as {"model": ..., "optimizer": ...}
  slackwater import state_dict.pt runs/new --as model   then restore({"model": model})
  slackwater import hf-model/ runs/new --as model
  slackwater import dcp-checkpoint/ runs/new --step 1000 --only 'model.*')";

struct ImportArguments {
  std::string source;
  std::string directory;
  std::uint64_t step = 0;
  std::string as;
  std::vector<std::string> only;
  std::vector<std::string> exclude;
  bool no_crc = false;
  bool json = false;
};

// The source is mapped. If it shrinks meanwhile, or its disk fails, the kernel answers a read with this signal.
extern "C" void on_bus_error(int) {
  constexpr char kMessage[] =
      "error: the source became unreadable while it was imported: it was cut short, or its disk failed. Nothing was "
      "committed.\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  ::_exit(kFailed);
}

int run_import(const ImportArguments& arguments) {
  struct sigaction action{};
  action.sa_handler = on_bus_error;
  ::sigaction(SIGBUS, &action, nullptr);
  formats::ImportOptions options{
      .source = {.selected = formats::Selection(arguments.only, arguments.exclude), .as = arguments.as},
      .step = arguments.step,
      .check_crc = !arguments.no_crc,
      .log = [](LogLevel level, std::string_view message) {
        if (level != LogLevel::kInfo) print_problem("warning", message);
      }};
  const auto imported = [&] {
    ProgressBar bar("importing");
    return formats::import_checkpoint(
        arguments.source, arguments.directory, options,
        [&](const char* what, std::uint64_t done, std::uint64_t total) { bar.update(what, done, total); });
  }();
  if (!imported) {
    print_error(imported.error());
    return imported.error().kind == ErrorKind::kCorrupt ? kDamaged : kFailed;
  }
  if (!arguments.json) {
    fmt::print("step {} of {}: {} ({}) from {}\n", imported->step, escape_controls(arguments.directory),
               plural(imported->tensors, "tensor"), format_bytes(imported->size_bytes),
               formats::to_string(imported->format));
    return kFine;
  }
  OrderedJson result{{"source", arguments.source},       {"format", std::string(formats::to_string(imported->format))},
                     {"directory", arguments.directory}, {"step", imported->step},
                     {"tensors", imported->tensors},     {"size_bytes", imported->size_bytes}};
  if (const auto versions = list_versions(arguments.directory); versions && !versions->empty())
    result["version"] = version_json(versions->back());
  fmt::print("{}\n", dump(result));
  return kFine;
}

}  // namespace

Verb add_import(CLI::App& parser) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* verb = parser.add_subcommand("import", "Make a checkpoint of a torch.save, safetensors or DCP file");
  verb->add_option("SOURCE", arguments->source, "File or directory to import")->required();
  verb->add_option("DIR", arguments->directory, "Directory of checkpoints; made if it is missing")->required();
  verb->add_option("--step", arguments->step, "Step to save it as (default: 0)");
  verb->add_option("--as", arguments->as, "Put what the file holds under this key of the state");
  verb->add_option("--only", arguments->only, "Names to import, such as 'model.*'; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--exclude", arguments->exclude, "Names to leave out; may be repeated")->allow_extra_args(false);
  verb->add_flag("--no-crc", arguments->no_crc, "Do not compare the checksums of a torch.save file");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  verb->footer(kImportFooter);
  return {verb, [arguments] { return run_import(*arguments); }};
}

}  // namespace slackwater::cli
