#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/name_pattern.hpp"
#include "base/units.hpp"
#include "cli/json_layout.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "layout/data_file.hpp"
#include "ranks/rank_transport.hpp"
#include "restore/checkpoint_reader.hpp"

namespace slackwater::cli {
namespace {

constexpr std::size_t kTreeLines = 24;  // of the tree, without --tree
constexpr std::size_t kKeyLines = 16;   // of the totals; a flat state may have a key per tensor

constexpr const char* kShowFooter =
    R"(PATTERN is a name ('model': it and everything below it) or a glob on whole names: * any text, ? one character,
[abc] one of these, [!abc] one of the others. Quote it for the shell.
The totals are per key at the top of the state, which is the first part of a tensor's name.
The tree holds the plain values of the state and says where each tensor belongs, as typed JSON.

Keys of --json: directory, version [as in ls], files [name, rank, size_bytes], metadata,
tensors [name, dtype, shape, size_bytes, file, offset, alias_of (tied ones),
boxes [offset, shape, rank, file, file_offset, size_bytes] (of a tensor in boxes; its file and offset are null)],
totals [tensors, size_bytes (tied ones counted once), keys [key, tensors, size_bytes]], rank_local_values,
tree (null with PATTERN).

Examples:
  slackwater show runs/gpt
  slackwater show runs/gpt@42 'model.*.bias'
  slackwater show runs/gpt --tree)";

struct ShowArguments {
  std::string location;
  std::vector<std::string> tiers;  // where to look next
  std::string pattern;
  bool tree = false;
  bool json = false;
  S3Options store;
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t size_bytes = 0;  // tied ones counted once
  void add(const TensorInfo& tensor) {
    ++tensors;
    if (tensor.alias_of.empty()) size_bytes += tensor.size_bytes;
  }
};
struct Totals {
  Total all;
  std::map<std::string, Total, std::less<>> keys;  // at the top of the state
};

// "model" for "model.layers.0.weight", and for "rank-00003/model.layers.0.weight", the name of a rank-local tensor.
std::string_view top_level_key(std::string_view name, std::uint32_t world) {
  const std::size_t slash = name.find('/');
  if (world > 1 && slash != std::string_view::npos && rank_of_local_name(name)) name.remove_prefix(slash + 1);
  return name.substr(0, name.find('.'));
}

bool matches(const std::string& pattern, const std::string& name) {
  return pattern.empty() || matches_name(pattern, name);
}

// "4 boxes on ranks 0 to 3".
std::string boxes_text(const TensorInfo& tensor, const Checkpoint& checkpoint) {
  std::set<std::uint32_t> ranks;
  for (const StoredBox& box : tensor.boxes) ranks.insert(checkpoint.files()[box.file].rank);
  return fmt::format("{} box{} on {}", tensor.boxes.size(), tensor.boxes.size() == 1 ? "" : "es",
                     name_ranks({ranks.begin(), ranks.end()}));
}

bool is_json(const std::string& text) { return OrderedJson::accept(text); }

template <class Visit>
Totals for_each_match(const Checkpoint& checkpoint, const std::string& pattern, const Visit& visit) {
  Totals totals;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!matches(pattern, tensor.name)) continue;
    totals.all.add(tensor);
    const std::string_view key = top_level_key(tensor.name, checkpoint.version().world);
    const auto total = totals.keys.find(key);
    (total != totals.keys.end() ? total->second : totals.keys[std::string(key)]).add(tensor);
    visit(tensor);
  }
  return totals;
}

// Written piece by piece: as one JSON value, 100,000 tensors would take far more memory than the checkpoint's own list.
void print_json(const ShowArguments& arguments, const Location& location, const Checkpoint& checkpoint) {
  OrderedJson files = OrderedJson::array();
  for (const FileInfoOnTier& file : checkpoint.files())
    files.push_back({{"name", file.name}, {"rank", file.rank}, {"size_bytes", file.size_bytes}});
  fmt::print("{{\"directory\":{},\n\"version\":{},\n\"files\":{},\n\"metadata\":{},\n\"tensors\":[",
             dump(location.directory), dump(version_json(checkpoint.version())), dump(files),
             dump(OrderedJson(checkpoint.metadata())));
  const char* separator = "\n";
  const Totals totals = for_each_match(checkpoint, arguments.pattern, [&](const TensorInfo& tensor) {
    fmt::print("{}{}", separator, dump(tensor_json(tensor, checkpoint)));
    separator = ",\n";
  });
  OrderedJson keys = OrderedJson::array();
  for (const auto& [key, total] : totals.keys)
    keys.push_back({{"key", key}, {"tensors", total.tensors}, {"size_bytes", total.size_bytes}});
  const auto differ = checkpoint.rank_local_values();
  fmt::print("],\n\"totals\":{},\n\"rank_local_values\":{},\n\"tree\":",
             dump({{"tensors", totals.all.tensors}, {"size_bytes", totals.all.size_bytes}, {"keys", std::move(keys)}}),
             dump(std::vector<std::string>(differ.begin(), differ.end())));
  if (!arguments.pattern.empty() || checkpoint.tree().empty())
    fmt::print("null");
  else if (is_json(checkpoint.tree()))
    fmt::print("{}", checkpoint.tree());
  else
    fmt::print("{}", dump(checkpoint.tree()));
  fmt::print("}}\n");
}

void print_tree(const std::string& tree, std::size_t max_lines, std::string_view indent) {
  std::size_t lines = 0;
  const auto on_line = [&](std::string_view line) {
    if (lines++ < max_lines) fmt::print("{}{}\n", indent, line);
  };
  if (is_json(tree))
    layout_json(tree, on_line);
  else
    on_line(escape_controls(tree));  // C++ programs may store anything there
  if (lines > max_lines)
    fmt::print("{}... {}; --tree prints all of it\n", indent, plural(lines - max_lines, "more line"));
}

// The largest first.
void print_totals(const Totals& totals) {
  std::vector<std::pair<std::string, Total>> keys(totals.keys.begin(), totals.keys.end());
  std::ranges::stable_sort(keys, std::greater<>(), [](const auto& key) { return key.second.size_bytes; });
  using enum Table::Align;
  Table table({kLeft, kRight, kRight});
  for (std::size_t i = 0; i < std::min(keys.size(), kKeyLines); ++i)
    table.add({escape_controls(keys[i].first), plural(keys[i].second.tensors, "tensor"),
               format_bytes(keys[i].second.size_bytes)});
  if (!keys.empty()) fmt::print("\ntotals\n");
  table.print(stdout, "  ");
  if (keys.size() > kKeyLines)
    fmt::print("  ... {}; --json has all of them\n", plural(keys.size() - kKeyLines, "more key"));
}

void print_text(const ShowArguments& arguments, const Checkpoint& checkpoint) {
  const VersionInfo& version = checkpoint.version();
  fmt::print("step {}, attempt {}, committed {}, {} in {}{}\n", version.step, version.attempt,
             local_time(version.created_unix_ms), format_bytes(version.size_bytes),
             plural(checkpoint.files().size(), "file"), version.pinned ? ", pinned" : "");
  if (!checkpoint.metadata().empty()) {
    fmt::print("\nmetadata\n");
    for (const auto& [key, value] : checkpoint.metadata())
      fmt::print("  {} = {}\n", escape_controls(key), escape_controls(value));
  }
  using enum Table::Align;
  Table table({kLeft, kLeft, kRight, kLeft});
  const Totals totals = for_each_match(checkpoint, arguments.pattern, [&](const TensorInfo& tensor) {
    std::string name = escape_controls(tensor.name);
    if (!tensor.alias_of.empty())
      name += fmt::format(" (tied to {})", escape_controls(tensor.alias_of));
    else if (!tensor.boxes.empty())
      name += fmt::format(" ({})", boxes_text(tensor, checkpoint));
    table.add({std::string(dtype_name(tensor.dtype)), shape_text(tensor.shape), format_bytes(tensor.size_bytes),
               std::move(name)});
  });
  if (totals.all.tensors > 0) fmt::print("\ntensors\n");
  table.print(stdout, "  ");
  print_totals(totals);
  fmt::print("\n{}, {}", plural(totals.all.tensors, "tensor"), format_bytes(totals.all.size_bytes));
  if (!arguments.pattern.empty()) fmt::print(" (of {})", plural(checkpoint.tensors().size(), "tensor"));
  fmt::print("\n");
  if (!arguments.pattern.empty() || checkpoint.tree().empty()) return;
  fmt::print("\ntree{}\n", version.world > 1 ? " of rank 0" : "");
  print_tree(checkpoint.tree(), kTreeLines, "  ");
}

int run_show(const ShowArguments& arguments) {
  Location location = parse_location(arguments.location);
  std::unique_ptr<FileSystem> fs = open_file_system(location.directory, Access::kRead, arguments.store);
  std::optional<Catalog> catalog = fs ? open_catalog(*fs, location.directory) : std::nullopt;
  const auto has_step = [&] {
    const std::vector<VersionInfo> live = catalog ? catalog->live_versions() : std::vector<VersionInfo>();
    return std::ranges::any_of(live,
                               [&](const VersionInfo& one) { return !location.step || one.step == *location.step; });
  };
  for (const std::string& tier : arguments.tiers) {
    if (has_step()) break;
    auto next_fs = open_file_system(tier, Access::kRead, arguments.store);
    auto next = next_fs ? open_catalog(*next_fs, tier) : std::nullopt;
    if (!next) continue;
    fs = std::move(next_fs);
    catalog = std::move(next);
    location.directory = tier;
  }
  if (!catalog) return kFailed;
  const std::optional<VersionInfo> version = choose_version(*catalog, location);
  if (!version) return kFailed;
  const auto checkpoint = open_version({.fs = fs.get()}, location.directory, *version, {});
  if (!checkpoint) {
    print_error(checkpoint.error());
    if (checkpoint.error().kind != ErrorKind::kCorrupt) return kFailed;
    print_problem("hint", fmt::format("slackwater verify {}@{} names everything that is damaged", location.directory,
                                      version->step));
    return kDamaged;
  }
  if (arguments.tree) {
    if (arguments.json)
      fmt::print("{}\n", is_json(checkpoint->tree()) ? checkpoint->tree() : dump(checkpoint->tree()));
    else
      print_tree(checkpoint->tree(), SIZE_MAX, "");
  } else if (arguments.json) {
    print_json(arguments, location, *checkpoint);
  } else {
    print_text(arguments, *checkpoint);
  }
  const bool nothing_matched = !arguments.pattern.empty() && !arguments.tree &&
                               std::ranges::none_of(checkpoint->tensors(), [&](const TensorInfo& tensor) {
                                 return matches(arguments.pattern, tensor.name);
                               });
  if (nothing_matched) {
    print_problem("note", fmt::format("no tensor matches '{}'", arguments.pattern));
    print_problem("hint", "a pattern must match the whole name or its first parts: '*attention*', not 'attention'");
  }
  return kFine;
}

}  // namespace

Verb add_show(CLI::App& parser) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* verb = parser.add_subcommand("show", "Show what a checkpoint holds: tensors, metadata, tree");
  verb->add_option("DIR[@STEP]", arguments->location,
                   "Directory or s3://bucket/prefix, and which step (default: the newest)")
      ->required();
  CLI::Option* pattern = verb->add_option("PATTERN", arguments->pattern, "Only tensors with such names");
  verb->add_option("--tier", arguments->tiers, "Where to look if the step is not there; may be given several times");
  verb->add_flag("--tree", arguments->tree, "Print the whole tree and nothing else")->excludes(pattern);
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  add_store_options(*verb, arguments->store);
  verb->footer(kShowFooter);
  return {verb, [arguments] { return run_show(*arguments); }};
}

}  // namespace slackwater::cli
