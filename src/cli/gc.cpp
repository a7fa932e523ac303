#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/location.hpp"
#include "cli/removal.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "version/retention.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kGcFooter =
    R"(Removes what no restore will ever choose: checkpoints that were never committed because their run was killed,
checkpoints that were given up, and checkpoints that a rollback replaced, once the run that went on has committed.
With --set-aside, it also removes damaged checkpoints that a restore set aside (slackwater ls lists them).
It never removes a checkpoint that is live (slackwater rm does), is pinned, or cannot be read.
It refuses while a run uses the directory. A run also removes what earlier runs left behind.

Keys of --json: directory, dry_run, removed [as in ls, state, why, freed_bytes],
failed [as in ls, state, why, error], freed_bytes.

Examples:
  slackwater gc runs/gpt --dry-run
  slackwater gc runs/gpt --set-aside)";

struct GcArguments {
  std::string directory;
  bool set_aside = false;
  RemovalOptions options;
};

// A number above every attempt. We hold the lock, so all of them are over.
std::uint32_t attempt_after_all(const LockedTier& tier) {
  std::uint32_t newest = tier.newest_attempt;
  for (const CatalogEntry& entry : tier.catalog.entries) newest = std::max(newest, entry.name.attempt);
  return newest == std::numeric_limits<std::uint32_t>::max() ? newest : newest + 1;
}

// Whether the newest attempt has committed, durably: its run may have died before it synced the decision, so sync it
// here. If the attempt's file cannot be read, which versions are live is a guess, and a guess must not delete anything.
bool newest_has_committed(FileSystem& fs, const std::string& directory, const Catalog& catalog) {
  if (!catalog.newest_attempt) return false;
  const std::vector<VersionInfo> live = catalog.live_versions();
  return std::ranges::any_of(live, [&](const VersionInfo& version) {
    return version.attempt == catalog.newest_attempt->number &&
           fs.sync_directory(fmt::format("{}/{}", directory, version.directory)).has_value();
  });
}

std::vector<Chosen> choose(FileSystem& fs, const GcArguments& arguments, const LockedTier& tier) {
  const Catalog& catalog = tier.catalog;
  const Sweeper sweeper{.attempt = attempt_after_all(tier),
                        .committed = newest_has_committed(fs, arguments.directory, catalog)};
  std::vector<Chosen> chosen;
  for (const Removal& removal : leftovers(catalog, sweeper)) {
    const auto entry = std::ranges::find(catalog.entries, removal.version, &CatalogEntry::name);
    if (entry != catalog.entries.end() && !entry->info.pinned)
      chosen.push_back({*entry, removal.why, removal.committed});
  }
  std::size_t left = 0;
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state != VersionState::kSetAside) continue;
    if (!arguments.set_aside) {
      ++left;
    } else if (entry.info.pinned) {
      print_problem("note", fmt::format("{} was set aside, but is pinned and stays; slackwater rm --pinned removes it",
                                        spoken_name(entry.name)));
    } else {
      chosen.push_back({entry, "it was set aside: " + entry.why});
    }
  }
  if (left > 0)
    print_problem("note",
                  fmt::format("{} that {} set aside {}; --set-aside removes {}", plural(left, "version"),
                              left == 1 ? "was" : "were", left == 1 ? "stays" : "stay", left == 1 ? "it" : "them"));
  std::ranges::sort(chosen, {}, [](const Chosen& one) { return one.entry.name; });
  return chosen;
}

int run_gc(const GcArguments& arguments) {
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const std::optional<LockedTier> tier =
      lock_tier(*fs, arguments.directory, arguments.options,
                "end that run first; at its start, a run removes what earlier ones left behind");
  if (!tier) return kFailed;
  const std::vector<Chosen> chosen = choose(*fs, arguments, *tier);
  if (chosen.empty()) print_problem("note", fmt::format("there is nothing to remove in {}", arguments.directory));
  return remove_chosen(*fs, arguments.directory, *tier, chosen, VersionRemover::Pinned::kStays, arguments.options);
}

}  // namespace

Verb add_gc(CLI::App& parser) {
  auto arguments = std::make_shared<GcArguments>();
  CLI::App* verb = parser.add_subcommand("gc", "Remove what killed runs left behind");
  verb->add_option("DIR", arguments->directory, "Directory the trainer saved to")->required();
  verb->add_flag("--set-aside", arguments->set_aside, "Also remove damaged checkpoints that a restore set aside");
  add_removal_flags(*verb, arguments->options);
  verb->footer(kGcFooter);
  return {verb, [arguments] { return run_gc(*arguments); }};
}

}  // namespace slackwater::cli
