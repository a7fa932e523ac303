#include "version/catalog.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr int kScans = 4;                 // then a directory that keeps changing is taken as it is
constexpr std::size_t kMaxWarnings = 20;  // a directory full of strange names is not worth a line for each

// What the names alone show.
struct Listing {
  std::vector<VersionName> versions;  // by step, then attempt
  std::vector<std::string> warnings;
  std::set<std::uint32_t> attempt_files;
  std::set<VersionName> pins;
};

Result<std::vector<DirectoryEntry>> list_control(FileSystem& fs, const std::string& root) {
  const Status usable = check_control_directory(fs, root);
  auto entries = usable ? retry_read([&] { return fs.list(control_path(root)); }) : fail(usable.error());
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return std::vector<DirectoryEntry>();
  return entries;
}

Result<std::vector<VersionName>> list_version_directories(FileSystem& fs, const std::string& root,
                                                          std::vector<std::string>& warnings) {
  auto entries = retry_read([&] { return fs.list(root); });
  if (!entries) {
    if (entries.error().kind == ErrorKind::kNotFound)
      entries.error().message = "the checkpoint directory does not exist";
    return fail(std::move(entries).error());
  }
  std::vector<VersionName> versions;
  for (const DirectoryEntry& entry : *entries) {
    if (!entry.name.starts_with("step-")) continue;  // a file of the user's
    const auto version = parse_version_directory(entry.name);
    if (version && entry.type == FileType::kDirectory) {
      versions.push_back(*version);
    } else {
      warnings.push_back(fmt::format("'{}' in {} is not a Slackwater checkpoint and is left alone", entry.name, root));
    }
  }
  std::ranges::sort(versions);
  return versions;
}

// Versions are listed before attempts. An attempt's file exists before its first version, so every version that is
// listed has its attempt file.
Result<Listing> list_names(FileSystem& fs, const std::string& root) {
  Listing listing;
  SW_ASSIGN(listing.versions, list_version_directories(fs, root, listing.warnings));
  SW_ASSIGN(const std::vector<DirectoryEntry> control, list_control(fs, root));
  for (const DirectoryEntry& entry : control) {
    if (const auto attempt = parse_attempt_file(entry.name)) listing.attempt_files.insert(*attempt);
    if (const auto pinned = parse_pin_file(entry.name)) listing.pins.insert(*pinned);
  }
  return listing;
}

// What the attempt files say about the versions listed.
struct Lineage {
  std::set<VersionName> current;                 // of the newest attempt, or adopted by it
  std::map<VersionName, std::string> set_aside;  // and why
  std::string guessed;                           // why `current` is a guess; empty if it is not
};

// Also sets newest_attempt and warnings of the catalog.
Result<Lineage> read_lineage(FileSystem& fs, const std::string& root, const Listing& listing, Catalog& catalog) {
  std::set<std::uint32_t> numbers = listing.attempt_files;
  for (const VersionName& version : listing.versions) numbers.insert(version.attempt);

  // From the newest down to the first that can be read. That is the newest one, unless a file is damaged.
  std::vector<std::uint32_t> unreadable;
  Lineage lineage;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    auto attempt = listing.attempt_files.contains(*number)
                       ? read_attempt(fs, root, *number)
                       : fail(ErrorKind::kNotFound, "the attempt file is missing",
                              fmt::format("{}/{}", control_path(root), attempt_file(*number)));
    if (!attempt) {
      // We guess only if the file is damaged, missing or of a newer release. After a storage error it may be readable
      // later, and then the guess would have been wrong.
      const ErrorKind kind = attempt.error().kind;
      if (kind != ErrorKind::kCorrupt && kind != ErrorKind::kNotFound && kind != ErrorKind::kUnsupported)
        return fail(std::move(attempt).error());
      unreadable.push_back(*number);
      if (lineage.guessed.empty())
        lineage.guessed = fmt::format(
            "the file of attempt {} cannot be read, so it is not known whether a rollback left this version behind",
            *number);
      catalog.warnings.push_back(
          fmt::format("the file of attempt {} cannot be read; its checkpoints and those before its first step are "
                      "taken as live: {}",
                      *number, attempt.error().to_string()));
      continue;
    }
    const std::set<VersionName> adopted(attempt->adopted.begin(), attempt->adopted.end());
    std::ranges::copy_if(
        listing.versions, std::inserter(lineage.current, lineage.current.end()),
        [&](const VersionName& version) { return version.attempt == *number || adopted.contains(version); });
    for (const SetAside& aside : attempt->set_aside) lineage.set_aside.emplace(aside.version, aside.why);
    if (unreadable.empty()) catalog.newest_attempt = std::move(*attempt);
    break;
  }
  // Back up: assume that each unreadable attempt rolled back to just below its first version.
  std::map<std::uint32_t, std::vector<VersionName>> own;
  for (const VersionName& version : listing.versions) own[version.attempt].push_back(version);
  for (auto number = unreadable.rbegin(); number != unreadable.rend(); ++number) {
    const auto versions = own.find(*number);
    if (versions == own.end()) continue;
    lineage.current.erase(lineage.current.lower_bound({versions->second.front().step, 0}), lineage.current.end());
    lineage.current.insert(versions->second.begin(), versions->second.end());
  }
  return lineage;
}

VersionState state_of(Decision decision, bool current) {
  switch (decision) {
    case Decision::kAbort: return VersionState::kAborted;
    case Decision::kCommit: break;
  }
  return current ? VersionState::kLive : VersionState::kReplaced;
}

// nullopt: it has been deleted since it was listed.
std::optional<CatalogEntry> read_entry(FileSystem& fs, const std::string& root, const VersionName& version,
                                       bool current, ManifestCache* cache) {
  CatalogEntry entry{.name = version, .state = VersionState::kUndecided, .current = current, .info = {}, .error = {}};
  entry.info.step = version.step;
  entry.info.attempt = version.attempt;
  entry.info.directory = version_directory(version);
  auto known = cache != nullptr ? cache->find(version) : std::nullopt;
  if (!known) {
    const auto manifest = read_manifest(fs, root, version);
    if (manifest) {
      known = ManifestCache::Entry{manifest->decision, version_info(*manifest), manifest->run};
      if (cache != nullptr) cache->put(version, *known);
    } else if (manifest.error().kind != ErrorKind::kNotFound) {
      entry.state = VersionState::kUnreadable;
      entry.error = manifest.error();
    } else {
      const auto directory = retry_read([&] { return fs.status(version_path(root, version)); });
      if (!directory && directory.error().kind == ErrorKind::kNotFound) return std::nullopt;
    }
  }
  if (known) {
    entry.state = state_of(known->decision, current);
    entry.info = known->info;
    entry.run = known->run;
  }
  return entry;
}

Result<Catalog> read_catalog(FileSystem& fs, const std::string& root, const Listing& listing, ManifestCache* cache) {
  Catalog catalog;
  catalog.warnings = listing.warnings;
  SW_ASSIGN(const Lineage lineage, read_lineage(fs, root, listing, catalog));
  if (cache != nullptr) cache->keep_only(listing.versions);
  for (const VersionName& version : listing.versions) {
    auto entry = read_entry(fs, root, version, lineage.current.contains(version), cache);
    if (!entry) continue;
    entry->info.pinned = listing.pins.contains(version);
    const auto aside = lineage.set_aside.find(version);
    // Without a decision it is ordinary debris: there was never anything to set aside.
    if (aside != lineage.set_aside.end() && entry->state != VersionState::kUndecided) {
      entry->state = VersionState::kSetAside;
      entry->why = aside->second;
    } else if (entry->state == VersionState::kReplaced && !lineage.guessed.empty()) {
      // A guess is good enough to read by, not to delete by. The damaged file may also have listed it as set aside.
      entry->state = VersionState::kSetAside;
      entry->why = lineage.guessed;
    }
    catalog.entries.push_back(std::move(*entry));
  }
  if (catalog.warnings.size() > kMaxWarnings) {
    const std::size_t more = catalog.warnings.size() - kMaxWarnings;
    catalog.warnings.resize(kMaxWarnings);
    catalog.warnings.push_back(fmt::format("{} more like these in {}", more, root));
  }
  return catalog;
}

}  // namespace

std::vector<VersionInfo> Catalog::live_versions() const {
  std::vector<VersionInfo> versions;
  for (const CatalogEntry& entry : entries) {
    if (entry.state == VersionState::kLive) versions.push_back(entry.info);
  }
  return versions;
}

std::vector<SetAside> Catalog::set_aside() const {
  std::vector<SetAside> versions;
  for (const CatalogEntry& entry : entries) {
    if (entry.state == VersionState::kSetAside) versions.push_back({entry.name, entry.why});
  }
  return versions;
}

Result<Catalog> scan_catalog(FileSystem& fs, const std::string& root, ManifestCache* cache) {
  fs.refresh();
  SW_ASSIGN(Listing listing, list_names(fs, root));
  for (int scan = 1;; ++scan) {
    SW_ASSIGN(Catalog catalog, read_catalog(fs, root, listing, cache));
    // A writer may have committed a version that was not listed yet and deleted the one that was. So repeat until the
    // names stop changing: otherwise a run that keeps one checkpoint might seem to have none.
    SW_ASSIGN(Listing after, list_names(fs, root));
    if (scan == kScans || (after.versions == listing.versions && after.attempt_files == listing.attempt_files))
      return catalog;
    listing = std::move(after);
  }
}

Status check_own_directory(FileSystem& fs, const std::string& path) {
  SW_ASSIGN(const FileStatus found, retry_read([&] { return fs.status(path); }));
  if (found.type == FileType::kDirectory) return {};
  return corrupt("expected a directory made by Slackwater, found a link or a file; remove it", path);
}

Status check_control_directory(FileSystem& fs, const std::string& root) {
  return check_own_directory(fs, control_path(root));
}

Result<std::uint32_t> newest_attempt_number(FileSystem& fs, const std::string& root) {
  SW_ASSIGN(const std::vector<DirectoryEntry> control, list_control(fs, root));
  std::uint32_t newest = 0;
  for (const DirectoryEntry& entry : control) newest = std::max(newest, parse_attempt_file(entry.name).value_or(0));
  return newest;
}

Result<std::string> read_listed(FileSystem& fs, const std::string& directory, const std::string& name,
                                std::uint64_t max_bytes) {
  const std::string path = fmt::format("{}/{}", directory, name);
  return retry_read([&]() -> Result<std::string> {
    auto text = read_whole(fs, path, max_bytes);
    if (text || text.error().kind != ErrorKind::kNotFound) return text;
    auto entries = fs.list(directory);
    if (!entries) return fail(std::move(entries).error());
    if (std::ranges::find(*entries, name, &DirectoryEntry::name) == entries->end()) return text;
    text = read_whole(fs, path, max_bytes);  // listing the directory has refreshed this host's cache
    if (text || text.error().kind != ErrorKind::kNotFound) return text;
    Error error = std::move(text).error();
    error.kind = ErrorKind::kIo;
    error.message = "the directory lists the file, but it cannot be opened";
    return fail(std::move(error));
  });
}

Result<Attempt> read_attempt(FileSystem& fs, const std::string& root, std::uint32_t number) {
  const std::string path = fmt::format("{}/{}", control_path(root), attempt_file(number));
  SW_ASSIGN(const std::string text, read_listed(fs, control_path(root), attempt_file(number), kMaxAttemptBytes));
  SW_ASSIGN(Attempt attempt, parse_attempt(text, path));
  if (attempt.number != number) return corrupt(fmt::format("the attempt file holds attempt {}", attempt.number), path);
  return attempt;
}

Result<Manifest> read_manifest(FileSystem& fs, const std::string& root, const VersionName& version) {
  const std::string directory = version_path(root, version);
  const std::string path = fmt::format("{}/{}", directory, kManifestName);
  SW_ASSIGN(const std::string text, read_listed(fs, directory, kManifestName, kMaxManifestBytes));
  SW_ASSIGN(Manifest manifest, parse_manifest(text, path));
  if (manifest.step != version.step || manifest.attempt != version.attempt) {
    return corrupt(fmt::format("the manifest is of step {}, attempt {}, but its directory has another name",
                               manifest.step, manifest.attempt),
                   path);
  }
  return manifest;
}

}  // namespace slackwater
