#include "tiers/tier_member.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "tiers/tier_identity.hpp"
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

Result<TierInventory> TierMember::inventory() { return take_inventory(work_.tier.fs(), work_.tier.root()); }

Status TierMember::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> /*continued*/) {
  attempt_ = attempt.number;
  adopted_ = attempt.adopted;
  adopted_is_known_ = false;
  published_.clear();
  copied_.clear();
  source_errors_.clear();
  failed_.clear();
  noted_ = *work_.deletes_heard.lock();
  for (const DeleteNote& note : noted_) work_.backlog.remove(note);  // close() waits for it
  return {};
}

Result<TierWorker::Outcome> TierMember::advance(const std::stop_token& stop) {
  auto newest = newest_attempt_number(work_.tier.fs(), work_.tier.root());
  if (!newest) return fail(std::move(newest).error());
  SW_TRY(check_newest_attempt(work_.tier.fs(), work_.tier.root(), attempt_));
  // Rank 0 claims the tier first. Before that, nobody may make a version there.
  if (*newest < attempt_) return Outcome::kWaiting;
  if (!adopted_is_known_) SW_TRY(learn_adopted());

  SW_ASSIGN(const auto entries, work_.tier.fs().list(work_.tier.root()));
  std::vector<VersionName> there;
  for (const DirectoryEntry& entry : entries)
    if (const auto version = parse_version_directory(entry.name)) there.push_back(*version);
  std::erase_if(published_, [&](const VersionName& version) { return !contains(there, version); });
  // What was begun and is gone was given up, or published and deleted.
  for (const auto& [version, records] : copied_)
    if (!contains(there, version)) work_.backlog.forget(version);
  std::erase_if(copied_, [&](const auto& copied) { return !contains(there, copied.first); });
  std::ranges::sort(there, std::greater());
  for (const VersionName& version : there) {
    if (published_.contains(version)) continue;
    SW_ASSIGN(const Found found, check(version));
    if (found.seen == Seen::kPublished) published_.insert(version);
    if (found.seen != Seen::kBegun) continue;
    if (failed_.contains(version)) {
      if (!lists(found.entries, failure_note_file({work_.rank, attempt_}))) SW_TRY(write_note(version));
      continue;
    }
    SW_ASSIGN(const bool copied, is_copied(version, found.entries));
    if (!copied) SW_TRY(copy_own(version, stop));
  }
  drop_settled(there);
  SW_TRY(unlink_followed(there));
  return work_.backlog.waiting().empty() && noted_.empty() ? Outcome::kIdle : Outcome::kWaiting;
}

// Of a delete() in an earlier run, when rank 0 was on this node. Rank 0 deletes on the tier, and does not see this
// directory.
Status TierMember::unlink_followed(const std::vector<VersionName>& there) {
  if (noted_.empty()) return {};
  SW_ASSIGN(const auto another,
            remembers_another({&work_.local, work_.local_root}, {&work_.tier.fs(), work_.tier.root()}));
  std::vector<DeleteNote> left;
  for (const DeleteNote& note : noted_) {
    if (another) {  // rank 0 says so
      work_.backlog.forget(note.version);
      continue;
    }
    if (contains(there, note.version)) {
      const auto manifest = read_manifest(work_.tier.fs(), work_.tier.root(), note.version);
      // Rank 0 removes what it finds without a manifest, too. What another run saved stays.
      if (!manifest || is_meant(note, manifest->run)) {
        left.push_back(note);
        continue;
      }
    }
    SW_TRY(erase_delete_note(work_.local, work_.local_root, note.version, note.tier));
    work_.backlog.forget(note.version);
  }
  noted_ = std::move(left);
  return {};
}

// Rank 0 also adopts what only this tier has.
Status TierMember::learn_adopted() {
  auto attempt = read_attempt(work_.tier.fs(), work_.tier.root(), attempt_);
  if (!attempt && attempt.error().kind != ErrorKind::kCorrupt) return fail(std::move(attempt).error());
  if (attempt) adopted_ = std::move(attempt->adopted);  // if the file is damaged, those of tier 0 will do
  adopted_is_known_ = true;
  return {};
}

Result<TierMember::Found> TierMember::check(const VersionName& version) {
  auto entries = work_.tier.fs().list(version_path(work_.tier.root(), version));
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return Found{};  // rank 0 has just removed it
  if (!entries) return fail(std::move(entries).error());
  if (lists(*entries, kManifestName)) return Found{.seen = Seen::kPublished};
  if (!lists(*entries, kIndexName)) return Found{};
  return Found{.seen = Seen::kBegun, .entries = std::move(*entries)};
}

// Whether this rank is done. Rank 0 takes a record away if files that it vouches for are gone: they are copied again.
Result<bool> TierMember::is_copied(const VersionName& version, const std::vector<DirectoryEntry>& entries) {
  const auto copied = copied_.find(version);
  if (copied == copied_.end()) return false;
  for (const std::string& record : copied->second) {
    const auto slash = record.rfind('/');
    bool there = false;
    if (slash == std::string::npos) {
      there = lists(entries, record);
    } else {
      const std::string inner = version_path(work_.tier.root(), version) + "/" + record.substr(0, slash);
      const auto listed = lists_name(work_.tier.fs(), inner, record.substr(slash + 1));
      if (!listed && listed.error().kind != ErrorKind::kNotFound) return fail(listed.error());
      there = listed.value_or(false);
    }
    if (there) continue;
    copied_.erase(copied);
    return false;
  }
  return true;
}

Status TierMember::copy_own(const VersionName& version, const std::stop_token& stop) {
  const auto files = VersionFiles::read(work_.local, work_.local_root, version);
  // Debris of another run, or deleted from tier 0 meanwhile: rank 0 will remove it here.
  if (!files && (files.error().kind == ErrorKind::kNotFound || files.error().kind == ErrorKind::kAborted)) return {};
  if (!files) return settle_failure(version, files.error());
  VersionCopier copier(*files, work_.tier.fs(), work_.tier.root());
  work_.backlog.begin_copy(version);
  auto records = work_.copy_share(*files, copier, attempt_, work_.copy_options(stop));
  work_.backlog.end_copy();
  if (!records) return settle_failure(version, records.error());
  copied_[version] = std::move(*records);
  return {};
}

Status TierMember::settle_failure(const VersionName& version, const Error& error) {
  if (!work_.is_about_source(error) || error.kind == ErrorKind::kClosed) {
    if (error.kind == ErrorKind::kNotFound) return {};  // rank 0 has given the version up and removed it here
    return fail(error);
  }
  if (error.kind == ErrorKind::kNotFound) {
    // Or on tier 0. If it is still there, only this rank's files are gone.
    const auto still = lists_name(work_.local, version_path(work_.local_root, version), kManifestName);
    if (!still && still.error().kind == ErrorKind::kNotFound) return {};
    if (!still) return fail(still.error());
    if (!*still) return {};
  } else if (error.kind != ErrorKind::kCorrupt && ++source_errors_[version] < kSourceTries) {
    return fail(error);
  }
  work_.backlog.skip(version, fmt::format("rank {} cannot read its files: {}", work_.rank, error.to_string()));
  failed_[version] = error.to_string();
  return write_note(version);
}

Status TierMember::write_note(const VersionName& version) {
  const std::string directory = version_path(work_.tier.root(), version);
  Status written = place_file(work_.tier.fs(), directory, failure_note_file({work_.rank, attempt_}), failed_[version]);
  if (!written && written.error().kind == ErrorKind::kNotFound) return {};  // rank 0 has just removed the version
  return written;
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
    // What a rollback left behind is there until rank 0 deletes it, and takes nobody's place.
    std::vector<VersionInfo> live;
    for (const VersionName& name : published_) {
      if (name.attempt == attempt_ || contains(adopted_, name))
        live.push_back({.step = name.step, .attempt = name.attempt});
    }
    live.push_back({.step = version.step, .attempt = version.attempt});
    std::ranges::sort(live, {}, name_of);
    const bool begun = contains(there, version);
    const bool gone = !lists(*above, version_directory(version));
    if (gone || (!begun && contains(expired(live, policy), version))) work_.backlog.forget(version);
  }
}

Status TierMember::remove(const std::vector<DeleteNote>& deleted) {
  for (const DeleteNote& note : deleted)
    if (std::ranges::find(noted_, note) == noted_.end()) work_.backlog.forget(note.version);
  return {};
}

}  // namespace slackwater
