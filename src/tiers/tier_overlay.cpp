#include "tiers/tier_overlay.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/retry.hpp"
#include "tiers/overlay_queue.hpp"

namespace slackwater {
namespace {

// Bytes that cannot be read now: they may be intact.
bool is_storage_error(const Error& error) { return is_transient(error) || error.kind == ErrorKind::kPermission; }

}  // namespace

TierOverlay::TierOverlay(std::vector<TierPlace> tiers)
    : ReadOnlyFileSystem("this view of several tiers is read-only"), tiers_(std::move(tiers)) {}

void TierOverlay::leave_out(std::size_t tier, Error why) {
  const std::lock_guard lock(mutex_);
  left_out_.emplace(tier, std::move(why));
}

std::map<std::size_t, Error> TierOverlay::left_out() const {
  const std::lock_guard lock(mutex_);
  return left_out_;
}

void TierOverlay::exclude(std::size_t tier, const std::string& name) {
  const std::lock_guard lock(mutex_);
  excluded_[name].insert(tier);
}

void TierOverlay::include(std::size_t tier, const std::string& name) {
  const std::lock_guard lock(mutex_);
  excluded_[name].erase(tier);
}

// Paths.

std::string TierOverlay::name_of(const std::string& path) const {
  const std::string& own = root();
  return path.size() > own.size() ? path.substr(own.size() + 1) : std::string();
}

std::string TierOverlay::path_on(std::size_t tier, const std::string& name) const {
  return name.empty() ? tiers_[tier].root : fmt::format("{}/{}", tiers_[tier].root, name);
}

// The longest root that the path is below: one tier may lie in a directory of another.
std::optional<TierOverlay::Place> TierOverlay::place_of(const std::string& path) const {
  std::optional<Place> found;
  std::size_t longest = 0;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    const std::string& root = tiers_[tier].root;
    if (root.size() < longest || path.size() <= root.size() || !path.starts_with(root) || path[root.size()] != '/')
      continue;
    longest = root.size();
    found = Place{path.substr(root.size() + 1), tier};
  }
  if (!found || found->name.empty()) return std::nullopt;
  return found;
}

bool TierOverlay::used(std::size_t tier, const std::string& name) const {
  if (left_out_.contains(tier)) return false;
  // A directory that is excluded on this tier takes everything in it along.
  for (std::size_t end = name.find('/'); !name.empty(); end = name.find('/', end + 1)) {
    const auto excluded = excluded_.find(name.substr(0, end));
    if (excluded != excluded_.end() && excluded->second.contains(tier)) return false;
    if (end == std::string::npos) break;
  }
  return true;
}

std::vector<std::size_t> TierOverlay::tiers_for(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> tiers;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (used(tier, name)) tiers.push_back(tier);
  }
  return tiers;
}

// Moving on.

std::optional<TierOverlay::Move> TierOverlay::move_on(const Error& error) {
  const bool damage = error.kind == ErrorKind::kCorrupt;
  if (!damage && !is_storage_error(error)) return std::nullopt;
  const auto place = place_of(error.path);
  if (!place) return std::nullopt;
  const std::string& name = place->name;
  // Readers name a file by its path on the fastest tier, wherever it came from.
  std::size_t from = *place->tier;
  if (from == 0) {
    const std::vector<std::size_t> left = tiers_for(name);
    if (left.empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto served = served_.find(name);
    from = served != served_.end() ? served->second : left.front();
  }
  {
    const std::lock_guard lock(mutex_);
    excluded_[name].insert(from);
    tried_[name].insert_or_assign(from, error);
  }
  for (const std::size_t to : tiers_for(name)) {
    const auto found = retry_read([&] { return tiers_[to].fs->status(path_on(to, name)); });
    if (!found && found.error().kind == ErrorKind::kNotFound) continue;
    return Move{name, from, to, error};  // what else may be wrong there shows when it is read
  }
  // Nobody has it. It stays where it is, so that it is found damaged rather than missing.
  const std::lock_guard lock(mutex_);
  excluded_[name].erase(from);
  return std::nullopt;
}

Error TierOverlay::explain(Error error) const {
  const auto place = place_of(error.path);
  if (!place) return error;
  std::string tried;
  const std::lock_guard lock(mutex_);
  const auto tried_here = tried_.find(place->name);
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    std::string what = tiers_[tier].missing;
    if (const auto out = left_out_.find(tier); out != left_out_.end()) {
      what = fmt::format("cannot be reached ({})", out->second.message);
    } else if (tried_here != tried_.end() && tried_here->second.contains(tier)) {
      const Error& why = tried_here->second.at(tier);
      what = why.message;
      if (is_storage_error(why)) {
        if (error.kind == ErrorKind::kCorrupt) error.kind = why.kind;
        error.sys_errno = why.sys_errno;
        error.retryable = true;
      }
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", tiers_[tier].root, what);
  }
  error.message = fmt::format("{} (no tier has it intact: {})", error.message, tried);
  return error;
}

std::vector<TierOverlay::Damaged> TierOverlay::damaged() const {
  const std::lock_guard lock(mutex_);
  std::vector<Damaged> all;
  for (const auto& [name, tiers] : tried_) {
    for (const auto& [tier, why] : tiers) {
      if (why.kind == ErrorKind::kCorrupt) all.push_back({name, tier, why});
    }
  }
  return all;
}

// Reading.

Result<std::unique_ptr<File>> TierOverlay::open(const std::string& path, OpenMode mode, bool direct) {
  if (mode != OpenMode::kRead) return refuse(path);
  const std::string name = name_of(path);
  for (const std::size_t tier : tiers_for(name)) {
    auto file = tiers_[tier].fs->open(path_on(tier, name), mode, direct);
    if (!file && file.error().kind == ErrorKind::kNotFound) continue;
    {
      const std::lock_guard lock(mutex_);
      served_[name] = tier;
    }
    // A storage error is not hidden by the next tier: the caller tries again first, and then move_on() says so.
    if (!file) return fail(std::move(file).error());
    return std::make_unique<OverlayFile>(std::move(*file), tier);
  }
  return fail(ErrorKind::kNotFound, "no tier has this file", path);
}

Result<std::vector<DirectoryEntry>> TierOverlay::list(const std::string& path) {
  const std::string name = name_of(path);
  std::map<std::string, FileType> merged;
  bool found = false;
  for (const std::size_t tier : tiers_for(name)) {
    auto entries = tiers_[tier].fs->list(path_on(tier, name));
    if (!entries && entries.error().kind == ErrorKind::kNotFound) continue;
    if (!entries) return entries;
    found = true;
    const std::lock_guard lock(mutex_);
    for (const DirectoryEntry& entry : *entries) {
      if (used(tier, name.empty() ? entry.name : fmt::format("{}/{}", name, entry.name)))
        merged.emplace(entry.name, entry.type);
    }
  }
  if (!found) return fail(ErrorKind::kNotFound, "no tier has this directory", path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [entry, type] : merged) entries.push_back({entry, type});
  return entries;
}

Result<FileStatus> TierOverlay::status(const std::string& path) {
  const std::string name = name_of(path);
  for (const std::size_t tier : tiers_for(name)) {
    auto found = tiers_[tier].fs->status(path_on(tier, name));
    if (found || found.error().kind != ErrorKind::kNotFound) return found;
  }
  return fail(ErrorKind::kNotFound, "no tier has this file", path);
}

Result<std::unique_ptr<IoQueue>> TierOverlay::make_queue(const IoQueueOptions& options) {
  const auto make = [this, options](std::size_t tier) { return tiers_[tier].fs->make_queue(options); };
  SW_ASSIGN(auto first, make(0));
  return std::make_unique<OverlayQueue>(std::move(first), make);
}

}  // namespace slackwater
