#include "formats/export.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/progress_bar.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "restore/checkpoint_reader.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kExportFooter =
    R"(By default, TARGET is a directory that gets model-00001-of-0000N.safetensors and an index (one file:
model.safetensors), as transformers' from_pretrained() takes them. It may hold config.json and other files already.
--torch writes one file for torch.load(weights_only=True), --dcp a directory for torch.distributed.checkpoint.load().
A TARGET that ends in .pt, .pth, .bin or .safetensors is refused where it would become a directory; out.pt/ is not.

--map OLD=NEW renames tensors. Without a star, OLD is a prefix: --map 'model.=' takes 'model.' off. With stars, the n-th
star on the right is what the n-th star on the left matched: --map '*.attn.*=*.attention.*'. The first rule that matches
is used. With --torch and --dcp, --map (or --map '=') also makes one flat dict of tensors; otherwise they hold the state
as it was saved.

Every byte is verified as it is read. Nothing that looks complete is left behind if the export fails.

Keys of --json: directory, step, target, format, tensors, size_bytes, files [name, size_bytes], notes.

Examples:
  slackwater export runs/gpt hf-model --only model --map 'model.='
  slackwater export runs/gpt@42 hf-model --only model --map 'model.=' --dtype bf16 --shard-size 2GB
  slackwater export runs/gpt state.pt --torch
  slackwater export runs/gpt dcp-checkpoint --dcp)";

struct ExportArguments {
  std::string location;
  std::string target;
  bool torch = false;
  bool dcp = false;
  std::vector<std::string> only;
  std::vector<std::string> exclude;
  std::vector<std::string> map;
  std::string dtype;
  std::string shard_size = "5GB";
  bool force = false;
  bool json = false;
};

Result<formats::ExportOptions> export_options(const ExportArguments& arguments) {
  formats::ExportOptions options;
  options.format = arguments.torch ? formats::TargetFormat::kTorch
                   : arguments.dcp ? formats::TargetFormat::kDcp
                                   : formats::TargetFormat::kHuggingFace;
  options.selected = formats::Selection(arguments.only, arguments.exclude);
  auto map = formats::NameMap::parse(arguments.map);
  if (!map) return fail(std::move(map).error());
  options.map = std::move(*map);
  options.flat = !arguments.map.empty();
  if (arguments.dtype == "bf16" || arguments.dtype == "bfloat16") options.dtype = DType::kBF16;
  if (arguments.dtype == "fp16" || arguments.dtype == "float16") options.dtype = DType::kF16;
  if (arguments.dtype == "fp32" || arguments.dtype == "float32") options.dtype = DType::kF32;
  if (!options.dtype && !arguments.dtype.empty()) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("--dtype '{}' is not known; it is bf16, fp16 or fp32", arguments.dtype));
  }
  const auto shard = parse_bytes(arguments.shard_size);
  if (!shard || *shard == 0) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("--shard-size '{}' is not a size; write it as 5GB or 512MiB", arguments.shard_size));
  }
  options.shard_bytes = *shard;
  options.force = arguments.force;
  return options;
}

// Prints why a target that looks like a file cannot become a directory. True: it is refused.
bool refuses_target(const ExportArguments& arguments) {
  const std::string& target = arguments.target;
  const bool weights = target.ends_with(".safetensors");
  const bool looks_like_file =
      weights || target.ends_with(".pt") || target.ends_with(".pth") || target.ends_with(".bin");
  if (arguments.torch || !looks_like_file) return false;
  const std::string error = fmt::format("'{}' looks like a file, and {} writes a directory", target,
                                        arguments.dcp ? "--dcp" : "an export without --torch");
  if (arguments.dcp) {
    print_error(error, "give another name, or --torch instead of --dcp for one file that torch.load() reads");
  } else if (weights) {
    print_error(error, "give the name of a directory; the tensors become model.safetensors in it");
  } else {
    print_error(error, "add --torch for one file that torch.load() reads, or give the name of a directory");
  }
  return true;
}

void print_exported(const ExportArguments& arguments, const VersionInfo& version, const formats::ExportOptions& options,
                    const formats::Exported& exported) {
  if (!arguments.json) {
    for (const std::string& note : exported.notes) print_problem("note", note);
    fmt::print("{}: {} ({}) of step {} in {}\n", escape_controls(arguments.target), plural(exported.tensors, "tensor"),
               format_bytes(exported.size_bytes), version.step, plural(exported.files.size(), "file"));
    return;
  }
  OrderedJson files = OrderedJson::array();
  for (const formats::ExportedFile& file : exported.files)
    files.push_back({{"name", file.name}, {"size_bytes", file.size_bytes}});
  fmt::print("{}\n", dump({{"directory", parse_location(arguments.location).directory},
                           {"step", version.step},
                           {"target", arguments.target},
                           {"format", std::string(formats::to_string(options.format))},
                           {"tensors", exported.tensors},
                           {"size_bytes", exported.size_bytes},
                           {"files", std::move(files)},
                           {"notes", exported.notes}}));
}

int run_export(const ExportArguments& arguments) {
  if (refuses_target(arguments)) return kFailed;
  const auto options = export_options(arguments);
  if (!options) {
    print_error(options.error());
    return kFailed;
  }
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const Location location = parse_location(arguments.location);
  const std::optional<Catalog> catalog = open_catalog(*fs, location.directory);
  if (!catalog) return kFailed;
  const std::optional<VersionInfo> version = choose_version(*catalog, location);
  if (!version) return kFailed;
  const auto exported = [&]() -> Result<formats::Exported> {
    auto checkpoint = open_version({.fs = fs.get()}, location.directory, *version, {});
    if (!checkpoint) return fail(std::move(checkpoint).error());
    ProgressBar bar(fmt::format("step {}", version->step));
    return formats::export_checkpoint(*fs, *checkpoint, arguments.target, *options,
                                      [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); });
  }();
  if (!exported) {
    print_error(exported.error());
    return exported.error().kind == ErrorKind::kCorrupt ? kDamaged : kFailed;
  }
  print_exported(arguments, *version, *options, *exported);
  return kFine;
}

}  // namespace

Verb add_export(CLI::App& parser) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb = parser.add_subcommand("export", "Write a checkpoint for other tools: Hugging Face, torch.load, DCP");
  verb->add_option("DIR[@STEP]", arguments->location, "Directory, and which step (default: the newest)")->required();
  verb->add_option("TARGET", arguments->target, "Directory to write to; with --torch, a file")->required();
  CLI::Option* torch = verb->add_flag("--torch", arguments->torch, "One file for torch.load");
  verb->add_flag("--dcp", arguments->dcp, "A directory for torch.distributed.checkpoint.load")->excludes(torch);
  verb->add_option("--only", arguments->only, "Names to export, such as 'model.*'; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--exclude", arguments->exclude, "Names to leave out; may be repeated")->allow_extra_args(false);
  verb->add_option("--map", arguments->map, "Rename tensors: OLD=NEW, such as 'model.='; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--dtype", arguments->dtype, "Convert floating-point tensors: bf16, fp16 or fp32");
  verb->add_option("--shard-size", arguments->shard_size, "Largest file, such as 2GB (default: 5GB); not for --torch");
  verb->add_flag("--force", arguments->force, "Replace what an earlier export wrote there");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  verb->footer(kExportFooter);
  return {verb, [arguments] { return run_export(*arguments); }};
}

}  // namespace slackwater::cli
