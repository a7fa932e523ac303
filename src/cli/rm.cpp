#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/removal.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kRmFooter =
    R"(Removes checkpoints for good, in the order in which a run does it: first the manifest, then the files.
It refuses if
  a run uses the directory          end the run, or call delete(step) in it
  a step is pinned                  --pinned removes it anyway
  nothing restorable would be left  --yes removes it anyway; on a terminal it asks
  one of the steps is missing       it then removes none of them
A step may exist twice: a restore set it aside as damaged, and the run saved it again. Then only the damaged version
is removed. Run rm again to remove the other one.

Keys of --json: directory, dry_run, removed [as in ls, state, why, freed_bytes],
failed [as in ls, state, why, error], freed_bytes.

Examples:
  slackwater rm runs/gpt 3 9 --dry-run
  slackwater rm runs/gpt@42)";

struct RmArguments {
  std::string location;
  std::vector<std::uint64_t> steps;
  bool pinned = false;
  RemovalOptions options;
};

// If a step has several versions, those go that have the first of these states: damaged ones before good ones, and what
// was committed before debris.
constexpr std::array kRemovalOrder{VersionState::kSetAside, VersionState::kLive,    VersionState::kUnreadable,
                                   VersionState::kReplaced, VersionState::kAborted, VersionState::kUndecided};

std::string reason(const CatalogEntry& entry) {
  switch (entry.state) {
    case VersionState::kSetAside: return "it was set aside: " + entry.why;
    case VersionState::kUnreadable: return "its manifest could not be read";
    case VersionState::kReplaced: return "it was replaced after a rollback";
    case VersionState::kAborted: return "its writer had given it up";
    case VersionState::kUndecided: return "it was never committed";
    case VersionState::kLive: break;
  }
  return entry.info.pinned ? "it was pinned" : "";
}

std::vector<Chosen> versions_of(const Catalog& catalog, std::uint64_t step) {
  std::vector<Chosen> chosen;
  for (const VersionState state : kRemovalOrder) {
    for (const CatalogEntry& entry : catalog.entries)
      if (entry.name.step == step && entry.state == state) chosen.push_back({entry, reason(entry)});
    if (!chosen.empty()) break;
  }
  return chosen;
}

void mention_others(const Catalog& catalog, const std::vector<Chosen>& chosen, const RmArguments& arguments) {
  for (const CatalogEntry& entry : catalog.entries) {
    const auto same_step = [&](const Chosen& one) { return one.entry.name.step == entry.name.step; };
    const auto same = [&](const Chosen& one) { return one.entry.name == entry.name; };
    if (std::ranges::any_of(chosen, same_step) && std::ranges::none_of(chosen, same))
      print_problem("note", fmt::format("{} {} ({}); rm {} again to remove it", spoken_name(entry.name),
                                        arguments.options.dry_run ? "would stay" : "stays", state_name(entry.state),
                                        entry.name.step));
  }
}

int run_rm(const RmArguments& arguments) {
  const Location location = parse_location(arguments.location);
  const auto steps = steps_named(location, arguments.steps);
  if (!steps) return kFailed;
  const std::unique_ptr<FileSystem> fs = open_file_system(location.directory, Access::kWrite, arguments.options.store);
  if (!fs) return kFailed;
  const std::optional<LockedTier> tier =
      lock_tier(*fs, location.directory, arguments.options, "end that run first, or call delete(step) in it");
  if (!tier) return kFailed;

  bool refused = false;
  std::vector<Chosen> all;
  for (const std::uint64_t step : *steps) {
    const std::vector<Chosen> chosen = versions_of(tier->catalog, step);
    if (chosen.empty()) {
      (void)choose_version(tier->catalog, {location.directory, step});  // prints that there is none, and the live steps
      refused = true;
    }
    for (const Chosen& one : chosen) {
      if (!one.entry.info.pinned || arguments.pinned) continue;
      print_error(fmt::format("{} is pinned, so nothing was removed", spoken_name(one.entry.name)),
                  "--pinned removes it anyway");
      refused = true;
    }
    all.insert(all.end(), chosen.begin(), chosen.end());
  }
  if (refused) return kFailed;
  const auto pinned = arguments.pinned ? VersionRemover::Pinned::kGoesToo : VersionRemover::Pinned::kStays;
  const int code = remove_chosen(*fs, location.directory, *tier, all, pinned, arguments.options);
  if (code == kFine) mention_others(tier->catalog, all, arguments);
  return code;
}

}  // namespace

Verb add_rm(CLI::App& parser) {
  auto arguments = std::make_shared<RmArguments>();
  CLI::App* verb = parser.add_subcommand("rm", "Remove checkpoints of some steps");
  verb->add_option("DIR[@STEP]", arguments->location, "Directory the trainer saved to")->required();
  verb->add_option("STEP", arguments->steps, "Which steps");
  verb->add_flag("--pinned", arguments->pinned, "Also remove pinned steps");
  add_removal_flags(*verb, arguments->options);
  verb->footer(kRmFooter);
  return {verb, [arguments] { return run_rm(*arguments); }};
}

}  // namespace slackwater::cli
