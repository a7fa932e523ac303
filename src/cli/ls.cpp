#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kLsFooter =
    R"(A version counts if it is committed by the newest attempt (start of the run) or adopted by it.
One that a restore passed over as damaged is set aside: it is listed, kept, and never deleted by itself.
--all also shows those that are
  superseded   committed, then left behind by a rollback
  aborted      given up by their writer
  undecided    being written now, or left over from a crash
  unreadable   manifest damaged or of a newer format

Keys of --json: directory, newest_attempt, run_name (of that attempt; both may be null), versions [step, attempt,
directory, world, size_bytes, tensor_count, created_unix_ms, created, pinned, state, error (unreadable ones)], set_aside [the same, why], warnings.

Examples:
  slackwater ls runs/gpt
  slackwater ls runs/gpt --json | jq '.versions[-1].step')";

struct LsArguments {
  std::string directory;
  bool all = false;
  bool json = false;
};

bool has_manifest(const CatalogEntry& entry) {
  return entry.state != VersionState::kUndecided && entry.state != VersionState::kUnreadable && !entry.error;
}

void print_json(const LsArguments& arguments, const Catalog& catalog) {
  OrderedJson versions = OrderedJson::array();
  OrderedJson set_aside = OrderedJson::array();  // apart: whoever takes the last version wants one to restore
  for (const CatalogEntry& entry : catalog.entries) {
    const bool aside = entry.state == VersionState::kSetAside;
    if (!arguments.all && !aside && entry.state != VersionState::kCounts) continue;
    OrderedJson version = version_json(entry.info);
    version["state"] = std::string(state_name(entry.state));
    if (aside) version["why"] = entry.why;
    if (entry.error) version["error"] = entry.error->to_string();
    (aside ? set_aside : versions).push_back(std::move(version));
  }
  OrderedJson document{{"directory", arguments.directory},
                       {"newest_attempt", nullptr},
                       {"run_name", nullptr},
                       {"versions", std::move(versions)},
                       {"set_aside", std::move(set_aside)},
                       {"warnings", catalog.warnings}};
  if (catalog.newest_attempt) {
    document["newest_attempt"] = catalog.newest_attempt->number;
    document["run_name"] = catalog.newest_attempt->run_name;
  }
  fmt::print("{}\n", dump(document));
}

void print_table(const LsArguments& arguments, const Catalog& catalog) {
  using enum Table::Align;
  Table table({kRight, kRight, kLeft, kRight, kRight, kRight, kLeft});
  table.add({"STEP", "ATTEMPT", "WHEN", "SIZE", "TENSORS", "WORLD", "STATE"});
  std::size_t shown = 0;
  for (const CatalogEntry& entry : catalog.entries) {
    const bool aside = entry.state == VersionState::kSetAside;
    if (!arguments.all && !aside && entry.state != VersionState::kCounts) continue;
    ++shown;
    std::string state(state_name(entry.state));
    if (entry.info.pinned) state += ", pinned";
    if (aside) {
      state += ": " + escape_controls(entry.why);
    } else if (entry.error) {
      state += ": " + escape_controls(entry.error->message);
    }
    const std::string step = fmt::format("{}", entry.name.step);
    const std::string attempt = fmt::format("{}", entry.name.attempt);
    if (has_manifest(entry))
      table.add({step, attempt, local_time(entry.info.created_unix_ms), format_bytes(entry.info.size_bytes),
                 fmt::format("{}", entry.info.tensor_count), fmt::format("{}", entry.info.world), std::move(state)});
    else
      table.add({step, attempt, "-", "-", "-", "-", std::move(state)});
  }
  if (shown > 0) {
    // Of the newest attempt alone: the names of earlier ones are forgotten after a while.
    if (catalog.newest_attempt && !catalog.newest_attempt->run_name.empty())
      fmt::print("run {} (attempt {})\n", escape_controls(catalog.newest_attempt->run_name),
                 catalog.newest_attempt->number);
    table.print(stdout);
  } else {
    print_problem("note", fmt::format("there is no committed checkpoint in {}", arguments.directory));
  }
}

int run_ls(const LsArguments& arguments) {
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const std::optional<Catalog> catalog = open_catalog(*fs, arguments.directory);
  if (!catalog) return kFailed;
  if (arguments.json) {
    print_json(arguments, *catalog);
    return kFine;
  }
  print_table(arguments, *catalog);
  std::size_t unreadable = 0;
  for (const CatalogEntry& entry : catalog->entries) unreadable += entry.state == VersionState::kUnreadable ? 1 : 0;
  if (unreadable > 0 && !arguments.all)
    print_problem("warning", fmt::format("{} cannot be read and {} not shown; --all shows why",
                                         plural(unreadable, "version"), unreadable == 1 ? "is" : "are"));
  return kFine;
}

}  // namespace

Verb add_ls(CLI::App& parser) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* verb = parser.add_subcommand("ls", "List the checkpoints of a directory, oldest first");
  verb->add_option("DIR", arguments->directory, "Directory the trainer saves to")->required();
  verb->add_flag("-a,--all", arguments->all, "Also what does not count: superseded, aborted, undecided, unreadable");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  verb->footer(kLsFooter);
  return {verb, [arguments] { return run_ls(*arguments); }};
}

}  // namespace slackwater::cli
