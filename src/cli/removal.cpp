#include "cli/removal.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "os/durable.hpp"
#include "os/posix_lock.hpp"
#include "version/delete_notes.hpp"
#include "version/manifest_cache.hpp"

namespace slackwater::cli {
namespace {

// "process 47 on node7, newest attempt 3, run 'gpt'". The lock file names a process and a host; only the attempts say
// which run that is. A run that has just started may not have claimed its attempt yet.
std::string who_runs(const LockHolder& holder, const Catalog& catalog) {
  std::string who = holder.process.empty() ? "its process is not known" : holder.process;
  if (catalog.newest_attempt) {
    who += fmt::format(", newest attempt {}", catalog.newest_attempt->number);
    if (!catalog.newest_attempt->run_name.empty()) who += fmt::format(", run '{}'", catalog.newest_attempt->run_name);
  }
  return who;
}

void print_lock_error(FileSystem& fs, const std::string& directory, const Catalog& catalog, const Error& error,
                      const std::string& advice) {
  if (error.kind == ErrorKind::kBusy) {
    const LockHolder holder =
        parse_lock_holder(read_whole(fs, lock_path(directory), kMaxLockTextBytes).value_or(std::string()));
    const bool is_run = holder.doing.empty();
    print_error(fmt::format("{}, so nothing was removed: {} ({})", is_run ? "a run uses this directory" : holder.doing,
                            directory, who_runs(holder, catalog)),
                is_run || holder.remedy.empty() ? advice : holder.remedy);
  } else if (locks_unknown(error)) {
    print_error(fmt::format("this file system has no locks, so nobody can tell whether a run uses {}; nothing was "
                            "removed",
                            directory),
                "make sure that no run uses it, then add --no-lock");
  } else if (error.kind == ErrorKind::kNotFound) {
    print_error(
        fmt::format("this directory has no folder {}, so it cannot be locked: {}", kControlDirectory, directory),
        "no run has saved here; to remove a checkpoint that was copied here, delete its folder");
  } else {
    print_error(error);
  }
}

// The size of the files that a removal deletes, manifest included.
std::uint64_t bytes_on_disk(FileSystem& fs, const std::string& directory, bool top = true) {
  std::uint64_t bytes = 0;
  for (const DirectoryEntry& entry : fs.list(directory).value_or(std::vector<DirectoryEntry>())) {
    const std::string path = fmt::format("{}/{}", directory, entry.name);
    const bool ours = top ? is_version_file(entry.name) : rank_of_file(entry.name).has_value();
    if (entry.type == FileType::kRegular && ours) bytes += fs.status(path).value_or(FileStatus{}).size_bytes;
    if (top && entry.type == FileType::kDirectory && is_rank_directory(entry.name))
      bytes += bytes_on_disk(fs, path, false);
  }
  return bytes;
}

bool ever_committed(const CatalogEntry& entry) {
  return entry.state != VersionState::kAborted && entry.state != VersionState::kUndecided;
}

// Whether something goes that might be restorable, and nothing stays that surely is.
bool takes_the_last(const Catalog& catalog, const std::vector<Chosen>& chosen) {
  const auto goes = [&](const CatalogEntry& entry) {
    return std::ranges::any_of(chosen, [&](const Chosen& one) { return one.entry.name == entry.name; });
  };
  return std::ranges::any_of(chosen, ever_committed, &Chosen::entry) &&
         std::ranges::none_of(catalog.entries, [&](const CatalogEntry& entry) {
           return entry.state == VersionState::kLive && !goes(entry);
         });
}

constexpr int kPromptMs = 60'000;

bool confirmed_on_terminal(const std::string& question) {
  fmt::print(stderr, "{} [y/N] ", escape_controls(question));
  std::fflush(stderr);
  // Do not wait for ever: we hold the lock, and a run that starts now would not get it.
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&input, 1, kPromptMs) <= 0) {
    fmt::print(stderr, "\n");
    return false;
  }
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

// The last restorable checkpoint goes only if the user confirms it.
bool may_go(const std::string& directory, const Catalog& catalog, const std::vector<Chosen>& chosen,
            const RemovalOptions& options) {
  if (options.yes || !takes_the_last(catalog, chosen)) return true;
  const std::string loss =
      fmt::format("removing {} would leave no checkpoint that can be restored in {}",
                  chosen.size() == 1 ? spoken_name(chosen[0].entry.name) : plural(chosen.size(), "version"), directory);
  if (options.dry_run) {
    print_problem("note", loss + "; without --yes nothing would be removed");
    return true;
  }
  if (isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1) {
    if (confirmed_on_terminal(loss + ". Remove?")) return true;
    print_problem("note", "nothing was removed");
    return false;
  }
  print_error(loss + ", so nothing was removed", "add --yes if that is what you want");
  return false;
}

class Report {
 public:
  Report(const std::string& directory, const RemovalOptions& options)
      : options_(options), document_{{"directory", directory}, {"dry_run", options.dry_run}} {
    document_["removed"] = OrderedJson::array();
    document_["failed"] = OrderedJson::array();
  }

  void removed(const Chosen& chosen, std::uint64_t bytes) {
    ++count_;
    bytes_ += bytes;
    OrderedJson version = describe(chosen);
    version["freed_bytes"] = bytes;
    document_["removed"].push_back(std::move(version));
    if (options_.json) return;
    fmt::print("{} {}, {}{}\n", options_.dry_run ? "would remove" : "removed", spoken_name(chosen.entry.name),
               format_bytes(bytes), chosen.why.empty() ? "" : ": " + escape_controls(chosen.why));
    std::fflush(stdout);
  }
  void failed(const Chosen& chosen, const Error& error) {
    OrderedJson version = describe(chosen);
    version["error"] = error.to_string();
    document_["failed"].push_back(std::move(version));
    print_error(error);
  }
  int finish(const OrderedJson& more) {
    document_["freed_bytes"] = bytes_;
    if (more.is_object()) document_.update(more);
    if (options_.json)
      fmt::print("{}\n", dump(document_));
    else if (count_ > 1)
      fmt::print("{} {}, {} {}\n", plural(count_, "version"), options_.dry_run ? "would be removed" : "removed",
                 format_bytes(bytes_), options_.dry_run ? "would be freed" : "freed");
    return document_["failed"].empty() ? kFine : kFailed;
  }

 private:
  static OrderedJson describe(const Chosen& chosen) {
    OrderedJson version = version_json(chosen.entry);
    version["why"] = chosen.why;
    return version;
  }

  const RemovalOptions& options_;
  OrderedJson document_;
  std::uint64_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// Every object store lacks locks, so looking is allowed there. Removing is not.
bool is_dry_run_on_objects(const std::string& directory, const RemovalOptions& options) {
  if (!options.dry_run || !is_object_location(directory)) return false;
  print_problem("note",
                "an object store has no locks: to remove anything, make sure that no run uses it and add "
                "--no-lock");
  return true;
}

Status check_newest(FileSystem& fs, const std::string& directory, std::uint32_t known) {
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs, directory));
  if (newest <= known) return {};
  return fail(ErrorKind::kBusy, "a run has started in this directory in the meantime, so the rest was not removed",
              directory);
}

}  // namespace

void add_removal_flags(CLI::App& verb, RemovalOptions& options) {
  verb.add_flag("-n,--dry-run", options.dry_run, "Only print what would be removed");
  verb.add_flag("-y,--yes", options.yes, "Remove even if no checkpoint that can be restored is left");
  verb.add_flag("--no-lock", options.no_lock,
                "Go on where the file system has no locks; make sure that no run uses the directory");
  verb.add_flag("--json", options.json, "One JSON document on stdout");
  add_store_options(verb, options.store);
}

std::string spoken_name(const VersionName& version) {
  return fmt::format("step {} (attempt {})", version.step, version.attempt);
}

std::optional<LockedTier> lock_tier(FileSystem& fs, const std::string& directory, const RemovalOptions& options,
                                    const std::string& advice) {
  std::optional<Catalog> before = open_catalog(fs, directory);
  if (!before) return std::nullopt;
  LockedTier tier;
  if (const Status usable = check_control_directory(fs, directory); !usable) {
    print_lock_error(fs, directory, *before, usable.error(), advice);
    return std::nullopt;
  }
  if (auto lock = fs.try_lock(lock_path(directory)); lock) {
    tier.lock = std::move(*lock);
  } else if (!locks_unknown(lock.error()) || (!options.no_lock && !is_dry_run_on_objects(directory, options))) {
    print_lock_error(fs, directory, *before, lock.error(), advice);
    return std::nullopt;
  }
  // Scan again: a run may have committed or deleted something before the lock was ours.
  const auto newest = newest_attempt_number(fs, directory);
  auto catalog = scan_catalog(fs, directory);
  if (!newest || !catalog) {
    print_error(newest ? catalog.error() : newest.error());
    return std::nullopt;
  }
  tier.newest_attempt = *newest;
  tier.catalog = std::move(*catalog);
  return tier;
}

int remove_chosen(FileSystem& fs, const std::string& directory, const LockedTier& tier,
                  const std::vector<Chosen>& chosen, VersionRemover::Pinned pinned, const RemovalOptions& options,
                  const OrderedJson& more) {
  if (!may_go(directory, tier.catalog, chosen, options)) return kFailed;
  ManifestCache cache;
  VersionRemover remover(fs, directory, Log([](LogLevel level, std::string_view message) {
                           if (level != LogLevel::kInfo) print_problem("warning", message);
                         }),
                         cache);
  Report report(directory, options);
  for (const Chosen& one : chosen) {
    const VersionName& version = one.entry.name;
    const std::uint64_t bytes = bytes_on_disk(fs, fmt::format("{}/{}", directory, version_directory(version)));
    if (options.dry_run) {
      report.removed(one, bytes);
      continue;
    }
    // Over NFS a lock may hold on one host only, so a run elsewhere may have started. Its new attempt shows that.
    if (const Status newest = check_newest(fs, directory, tier.newest_attempt); !newest) {
      report.failed(one, newest.error());
      break;
    }
    // Only what is here goes, even if a delete() was killed that would have taken it from lower tiers too.
    if (ever_committed(one.entry) && !is_object_location(directory)) {
      if (const Status withdrawn = withdraw_delete_notes(fs, directory, version); !withdrawn) {
        report.failed(one, withdrawn.error());
        continue;
      }
    }
    const auto removed =
        remover.remove(version, one.why, one.committed ? pinned : VersionRemover::Pinned::kStaysIfConfirmed);
    if (!removed && removed.error().kind == ErrorKind::kNotFound) continue;  // somebody else removed it
    if (!removed) {
      report.failed(one, removed.error());
    } else if (!*removed) {
      report.failed(one,
                    {ErrorKind::kBusy,
                     fmt::format("{} stays: it is pinned, or has been committed in the meantime", spoken_name(version)),
                     directory});
    } else if (bytes > 0 || !remover.left_alone(version)) {  // otherwise it held nothing of ours
      report.removed(one, bytes);
    }
  }
  return report.finish(more);
}

}  // namespace slackwater::cli
