#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/removal.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "version/garbage.hpp"
#include "version/old_uploads.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kGcFooter =
    R"(Removes what no restore will ever choose: checkpoints that were never committed because their run was killed,
checkpoints that were given up, and checkpoints that a rollback replaced, once the run that went on has committed.
With --set-aside, it also removes damaged checkpoints that a restore set aside (slackwater ls lists them).
It never removes a checkpoint that is live (slackwater rm does), is pinned, or cannot be read.
In an object store, it also aborts uploads that earlier runs began and never finished.
It only prints what it would remove, unless --delete is given.
It refuses while a run, or the memory keeper of one, uses the directory. A run also removes what earlier runs left
behind.

Keys of --json: directory, dry_run, removed [as in ls, state, why, freed_bytes],
failed [as in ls, state, why, error], freed_bytes, uploads [path, id] (object stores only).

Examples:
  slackwater gc runs/gpt
  slackwater gc runs/gpt --set-aside --delete
  slackwater gc s3://bucket/gpt --delete --no-lock)";

struct GcArguments {
  std::string directory;
  bool set_aside = false;
  bool do_delete = false;
  RemovalOptions options;
};

std::vector<Chosen> choose(FileSystem& fs, const GcArguments& arguments, const LockedTier& tier) {
  const Catalog& catalog = tier.catalog;
  std::vector<Chosen> chosen;
  for (const Removal& removal : find_garbage(fs, arguments.directory, catalog, tier.newest_attempt)) {
    const auto entry = std::ranges::find(catalog.entries, removal.version, &CatalogEntry::name);
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
    print_problem("note", fmt::format("kept {} that a restore set aside; --set-aside removes {}",
                                      plural(left, "version"), left == 1 ? "it" : "them"));
  std::ranges::sort(chosen, {}, [](const Chosen& one) { return one.entry.name; });
  return chosen;
}

// Aborts the uploads of attempts that are over, or prints them. False: one of them could not be aborted.
bool abort_uploads(FileSystem& fs, const GcArguments& arguments, const LockedTier& tier, OrderedJson& uploads) {
  const auto found = uploads_of_older_attempts(fs, arguments.directory, tier.newest_attempt);
  if (!found) {
    print_error(found.error());
    return false;
  }
  bool fine = true;
  for (const PendingUpload& upload : *found) {
    const Status abandoned = arguments.options.dry_run ? Status() : fs.abandon_upload(upload);
    if (!abandoned) {
      print_error(abandoned.error());
      fine = false;
      continue;
    }
    uploads.push_back({{"path", upload.path}, {"id", upload.id}});
    if (!arguments.options.json)
      fmt::print("{} the upload of {}: its run is over\n", arguments.options.dry_run ? "would abort" : "aborted",
                 escape_controls(upload.path));
  }
  return fine;
}

int run_gc(GcArguments arguments) {
  // What is deleted is gone, so the default is to show it.
  const bool shows_only = !arguments.do_delete && !arguments.options.yes;
  arguments.options.dry_run |= shows_only;
  const std::unique_ptr<FileSystem> fs = open_file_system(arguments.directory, Access::kWrite, arguments.options.store);
  if (!fs) return kFailed;
  const std::optional<LockedTier> tier =
      lock_tier(*fs, arguments.directory, arguments.options,
                "end that run first; at its start, a run removes what earlier ones left behind");
  if (!tier) return kFailed;
  const std::vector<Chosen> chosen = choose(*fs, arguments, *tier);
  OrderedJson more;
  bool aborted = true;
  std::size_t upload_count = 0;
  if (is_object_location(arguments.directory)) {
    OrderedJson uploads = OrderedJson::array();
    aborted = abort_uploads(*fs, arguments, *tier, uploads);
    upload_count = uploads.size();
    more["uploads"] = std::move(uploads);
  }
  if (chosen.empty() && upload_count == 0)
    print_problem("note", fmt::format("there is nothing to remove in {}", arguments.directory));
  const int code =
      remove_chosen(*fs, arguments.directory, *tier, chosen, VersionRemover::Pinned::kStays, arguments.options, more);
  if (shows_only && chosen.size() + upload_count > 0) print_problem("hint", "nothing was removed; --delete removes it");
  return aborted ? code : kFailed;
}

}  // namespace

Verb add_gc(CLI::App& parser) {
  auto arguments = std::make_shared<GcArguments>();
  CLI::App* verb = parser.add_subcommand("gc", "Show what killed runs left behind, and remove it with --delete");
  verb->add_option("DIR", arguments->directory, "Directory the trainer saved to, or s3://bucket/prefix")->required();
  verb->add_flag("--delete", arguments->do_delete, "Remove it; without this, gc only shows what it would remove");
  verb->add_flag("--set-aside", arguments->set_aside, "Also remove damaged checkpoints that a restore set aside");
  add_removal_flags(*verb, arguments->options);
  verb->footer(kGcFooter);
  return {verb, [arguments] { return run_gc(*arguments); }};
}

}  // namespace slackwater::cli
