#include "tiers/tier_member.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/retention.hpp"

namespace slackwater {
namespace {

bool contains(const std::vector<VersionName>& versions, const VersionName& version) {
  return std::ranges::find(versions, version) != versions.end();
}

bool lists(const std::vector<DirectoryEntry>& entries, std::string_view name) {
  return std::ranges::binary_search(entries, name, {}, &DirectoryEntry::name);
}

}  // namespace

Status TierMember::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> /*continued*/) {
  attempt_ = attempt.number;
  published_.clear();
  copied_.clear();
  return {};
}

Result<TierWorker::Outcome> TierMember::advance(const std::stop_token& stop) {
  auto newest = newest_attempt_number(work_.tier.fs(), work_.tier.root());
  if (!newest) return fail(std::move(newest).error());
  SW_TRY(check_newest_attempt(work_.tier.fs(), work_.tier.root(), attempt_));
  // Rank 0 claims the tier first. Before that, nobody may make a version there.
  if (*newest < attempt_) return Outcome::kWaiting;

  SW_ASSIGN(const auto entries, work_.tier.fs().list(work_.tier.root()));
  std::vector<VersionName> there;
  for (const DirectoryEntry& entry : entries)
    if (const auto version = parse_version_directory(entry.name)) there.push_back(*version);
  std::erase_if(published_, [&](const VersionName& version) { return !contains(there, version); });
  std::erase_if(copied_, [&](const VersionName& version) { return !contains(there, version); });
  std::ranges::sort(there, std::greater());
  for (const VersionName& version : there) {
    if (published_.contains(version)) continue;
    SW_ASSIGN(const Seen seen, look_at(version));
    if (seen == Seen::kPublished) published_.insert(version);
    if (seen == Seen::kBegun && !copied_.contains(version)) SW_TRY(copy_own(version, stop));
  }
  drop_settled(there);
  return work_.backlog.waiting().empty() ? Outcome::kIdle : Outcome::kWaiting;
}

Result<TierMember::Seen> TierMember::look_at(const VersionName& version) {
  const auto entries = work_.tier.fs().list(version_path(work_.tier.root(), version));
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return Seen::kNothing;  // rank 0 has just removed it
  if (!entries) return fail(entries.error());
  if (lists(*entries, kManifestName)) return Seen::kPublished;
  return lists(*entries, kIndexName) ? Seen::kBegun : Seen::kNothing;
}

Status TierMember::copy_own(const VersionName& version, const std::stop_token& stop) {
  const auto files = VersionFiles::read(work_.local, work_.local_root, version);
  // Debris of another run, or deleted from tier 0 meanwhile: rank 0 will remove it here.
  if (!files && (files.error().kind == ErrorKind::kNotFound || files.error().kind == ErrorKind::kAborted)) return {};
  if (!files) return fail(files.error());
  VersionCopier copier(*files, work_.tier.fs(), work_.tier.root());
  work_.backlog.begin_copy(version);
  const Status copied = work_.copy_share(*files, copier, attempt_, work_.copy_options(stop));
  work_.backlog.end_copy();
  if (copied) {
    copied_.insert(version);
    return {};
  }
  // Rank 0 has given the version up and removed it, here or on tier 0. It may be damaged on tier 0: rank 0 waits for
  // this rank's part until it gives the version up.
  if (copied.error().kind == ErrorKind::kNotFound) return {};
  return copied;
}

// What waits here ends when it is published, when tier 0 does not have it any more, or when rank 0 will not copy it
// because this tier would delete it at once.
void TierMember::drop_settled(const std::vector<VersionName>& there) {
  const RetentionPolicy policy{.keep = work_.tier.options().keep, .keep_every = work_.tier.options().keep_every};
  const auto above = work_.local.list(work_.local_root);
  if (!above) return;
  for (const VersionName& version : work_.backlog.waiting()) {
    if (published_.contains(version)) {
      work_.backlog.finish(version);
      continue;
    }
    std::vector<VersionInfo> live;
    for (const VersionName& name : published_) live.push_back({.step = name.step, .attempt = name.attempt});
    live.push_back({.step = version.step, .attempt = version.attempt});
    std::ranges::sort(live, {}, name_of);
    const bool begun = contains(there, version);
    const bool gone = !lists(*above, version_directory(version));
    if (gone || (!begun && contains(expired(live, policy), version))) work_.backlog.forget(version);
  }
}

Status TierMember::remove(const std::vector<VersionName>& versions) {
  for (const VersionName& version : versions) work_.backlog.forget(version);
  return {};
}

}  // namespace slackwater
