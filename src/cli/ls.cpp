#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/removal.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "version/delete_notes.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kLsFooter =
    R"(A version is live if the newest attempt (start of the run) has committed or adopted it. Only live versions are
restored.
A version that a restore found damaged is set aside: it is listed and kept, and no run deletes it.
A note names what delete() has removed here while a lower tier was out of reach. The next run removes it there.
--all also shows versions that are
  replaced    committed, then left behind by a rollback
  aborted     given up by their writer
  undecided   being written now, or left over from a crash
  unreadable  manifest damaged or of a newer format

Keys of --json: directory, newest_attempt, run_name (of that attempt; both may be null), warnings,
versions [step, attempt, directory, world, size_bytes, tensor_count, created_unix_ms, created, pinned, state,
error (unreadable ones)], set_aside [the same, why], deletes_pending [step, attempt, tier],
tiers [the same keys for each --tier that can be read].

Examples:
  slackwater ls runs/gpt
  slackwater ls runs/gpt --json | jq '.versions[-1].step'
  slackwater ls /nvme/gpt --tier s3://bucket/gpt)";

struct LsArguments {
  std::string directory;
  std::vector<std::string> tiers;  // further ones
  bool all = false;
  bool json = false;
  S3Options store;
};

bool has_manifest(const CatalogEntry& entry) {
  return entry.state != VersionState::kUndecided && entry.state != VersionState::kUnreadable && !entry.error;
}

bool is_listed(const LsArguments& arguments, const CatalogEntry& entry) {
  return arguments.all || entry.state == VersionState::kLive || entry.state == VersionState::kSetAside;
}

// Only a directory is ever a tier 0. What cannot be read there was a warning of the run.
std::vector<DeleteNote> deletes_pending(FileSystem& fs, const std::string& directory) {
  if (is_object_location(directory)) return {};
  const auto found = pending_deletes(fs, directory);
  return found ? found->notes : std::vector<DeleteNote>();
}

OrderedJson describe(const LsArguments& arguments, const Catalog& catalog, const std::vector<DeleteNote>& deletes) {
  OrderedJson versions = OrderedJson::array();
  OrderedJson set_aside = OrderedJson::array();  // apart: a script that takes the last version wants to restore it
  for (const CatalogEntry& entry : catalog.entries) {
    if (!is_listed(arguments, entry)) continue;
    const bool aside = entry.state == VersionState::kSetAside;
    OrderedJson version = version_json(entry);
    if (aside) version["why"] = entry.why;
    if (entry.error) version["error"] = entry.error->to_string();
    (aside ? set_aside : versions).push_back(std::move(version));
  }
  OrderedJson document{
      {"directory", arguments.directory}, {"newest_attempt", nullptr},         {"run_name", nullptr},
      {"versions", std::move(versions)},  {"set_aside", std::move(set_aside)}, {"warnings", catalog.warnings}};
  document["deletes_pending"] = OrderedJson::array();
  for (const DeleteNote& note : deletes) {
    document["deletes_pending"].push_back(
        {{"step", note.version.step}, {"attempt", note.version.attempt}, {"tier", note.tier}});
  }
  if (catalog.newest_attempt) {
    document["newest_attempt"] = catalog.newest_attempt->number;
    document["run_name"] = catalog.newest_attempt->run_name;
  }
  return document;
}

void print_table(const LsArguments& arguments, const Catalog& catalog) {
  using enum Table::Align;
  Table table({kRight, kRight, kLeft, kRight, kRight, kRight, kLeft});
  table.add({"STEP", "ATTEMPT", "WHEN", "SIZE", "TENSORS", "WORLD", "STATE"});
  std::size_t shown = 0;
  for (const CatalogEntry& entry : catalog.entries) {
    if (!is_listed(arguments, entry)) continue;
    ++shown;
    std::string state(state_name(entry.state));
    if (entry.info.pinned) state += ", pinned";
    if (entry.state == VersionState::kSetAside) {
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
    // Only the newest attempt's name: those of earlier ones are forgotten after a while.
    if (catalog.newest_attempt && !catalog.newest_attempt->run_name.empty())
      fmt::print("run {} (attempt {})\n", escape_controls(catalog.newest_attempt->run_name),
                 catalog.newest_attempt->number);
    table.print(stdout);
  } else {
    print_problem("note", fmt::format("there is no committed checkpoint in {}", arguments.directory));
  }
}

void print_text(const LsArguments& arguments, const Catalog& catalog) {
  print_table(arguments, catalog);
  const auto unreadable = std::ranges::count(catalog.entries, VersionState::kUnreadable, &CatalogEntry::state);
  if (unreadable > 0 && !arguments.all)
    print_problem("warning", fmt::format("{} cannot be read and {} not shown; --all shows why",
                                         plural(static_cast<std::uint64_t>(unreadable), "version"),
                                         unreadable == 1 ? "is" : "are"));
}

void print_deletes(const std::vector<DeleteNote>& deletes) {
  for (const DeleteNote& note : deletes)
    print_problem("note", fmt::format("{} was deleted here, and the next run deletes it on {}",
                                      spoken_name(note.version), note.tier));
}

// One tier after the other. One that cannot be read does not keep the others from being listed.
int run_ls(const LsArguments& arguments) {
  int code = kFine;
  OrderedJson documents = OrderedJson::array();
  std::vector<std::string> locations{arguments.directory};
  locations.insert(locations.end(), arguments.tiers.begin(), arguments.tiers.end());
  for (const std::string& location : locations) {
    LsArguments here = arguments;
    here.directory = location;
    const std::unique_ptr<FileSystem> fs = open_file_system(location, Access::kRead, arguments.store);
    const std::optional<Catalog> catalog = fs ? open_catalog(*fs, location) : std::nullopt;
    if (!catalog) {
      code = kFailed;
      continue;
    }
    const std::vector<DeleteNote> deletes = deletes_pending(*fs, location);
    if (arguments.json) {
      documents.push_back(describe(here, *catalog, deletes));
      continue;
    }
    if (locations.size() > 1)
      fmt::print("{}{}\n", &location == &locations.front() ? "" : "\n", escape_controls(location));
    print_text(here, *catalog);
    print_deletes(deletes);
    std::fflush(stdout);
  }
  if (!arguments.json || documents.empty()) return code;
  // The first document is what one location prints alone; the others are in it.
  OrderedJson document = std::move(documents.front());
  documents.erase(documents.begin());
  if (!arguments.tiers.empty()) document["tiers"] = std::move(documents);
  fmt::print("{}\n", dump(document));
  return code;
}

}  // namespace

Verb add_ls(CLI::App& parser) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* verb = parser.add_subcommand("ls", "List the checkpoints of a directory, oldest first");
  verb->add_option("DIR", arguments->directory, "Directory the trainer saves to, or s3://bucket/prefix")->required();
  verb->add_option("--tier", arguments->tiers, "A further tier to list; may be given several times");
  verb->add_flag("-a,--all", arguments->all, "Also what is not live: replaced, aborted, undecided, unreadable");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  add_store_options(*verb, arguments->store);
  verb->footer(kLsFooter);
  return {verb, [arguments] { return run_ls(*arguments); }};
}

}  // namespace slackwater::cli
