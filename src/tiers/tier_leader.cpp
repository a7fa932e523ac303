#include "tiers/tier_leader.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "tiers/tier_survey.hpp"
#include "version/attempt_files.hpp"
#include "version/manifest_cache.hpp"
#include "version/old_uploads.hpp"
#include "version/pins.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::minutes kOthersPatience{10};  // without a new record, while newer versions wait

}  // namespace

CopyOptions TierWork::copy_options(const std::stop_token& stop) const {
  return {.direct_io = direct_io, .cap = &cap, .stop = stop, .on_sent = [this](std::uint64_t size_bytes) {
            backlog.note_sent(size_bytes);
          }};
}

TierLeader::TierLeader(const TierWork& work)
    : work_(work), policy_{.keep = work.tier.options().keep, .keep_every = work.tier.options().keep_every} {}

// Claiming the tier.

Status TierLeader::open_store() {
  if (store_) return {};
  SW_ASSIGN(store_, VersionStore::open(work_.tier.fs(), work_.clock, work_.tier.root(), work_.log));
  // What waits may be there in part. It is not debris: its copy continues.
  store_->set_held([this] { return work_.backlog.held(); });
  return {};
}

Status TierLeader::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) {
  copy_.reset();
  work_.backlog.end_copy();
  attempt_ = 0;
  SW_TRY(open_store());
  // The tier may hold versions that nobody saw when the attempt was claimed on tier 0. They stay live.
  SW_ASSIGN(const TierSurvey survey, survey_tier(work_.tier.fs(), work_.tier.root()));
  Attempt followed = attempt;
  if (survey.newest_attempt < attempt.number) {
    SW_ASSIGN(followed, attempt_on_tier(attempt, survey, {&work_.tier.fs(), work_.tier.root()},
                                        {&work_.local, work_.local_root}, continued));
  }
  SW_TRY(store_->follow(followed));
  attempt_ = attempt.number;
  SW_TRY(drop_finished());
  // In an object store, parts of uploads that were cut off take space that no list of files shows. Those of versions
  // that still wait are continued.
  std::set<VersionName> continued_copies;
  for (const VersionName& version : work_.backlog.waiting()) continued_copies.insert(version);
  abandon_older_uploads(work_.tier.fs(), work_.tier.root(), attempt.number, continued_copies, work_.log);
  clean_due_ = true;  // what killed runs left behind
  return {};
}

// Some of what waits is on the tier already, and some is not on tier 0 any more.
Status TierLeader::drop_finished() {
  SW_ASSIGN(const Catalog here, store_->scan_cached());
  for (const CatalogEntry& entry : here.entries)
    if (entry.state == VersionState::kLive) work_.backlog.note_step_on_tier(entry.name.step);
  SW_ASSIGN(const auto above, work_.local.list(work_.local_root));
  for (const VersionName& version : work_.backlog.waiting()) {
    const auto there = std::ranges::find(here.entries, version, &CatalogEntry::name);
    if (there != here.entries.end() && there->state == VersionState::kLive) {
      work_.backlog.finish(version);
    } else if (there != here.entries.end() && there->state == VersionState::kSetAside) {
      work_.backlog.skip(version, "the tier has a checkpoint of that name from another run, which is kept");
    } else if (!std::ranges::binary_search(above, version_directory(version), {}, &DirectoryEntry::name)) {
      work_.backlog.forget(version);
    }
  }
  return {};
}

// Copying.

Result<TierWorker::Outcome> TierLeader::advance(const std::stop_token& stop) {
  if (clean_due_) SW_TRY(clean_up(Need::kRoutine));
  if (!copy_) SW_TRY(begin_next());
  // What was passed over may be here in part, and is not held any more.
  if (!copy_) return clean_due_ ? Outcome::kWorked : Outcome::kIdle;
  auto outcome = continue_copy(stop);
  if (!outcome) settle_failure(outcome.error());
  return outcome;
}

// The newest version that waits. One that this tier would delete at once is not copied.
Status TierLeader::begin_next() {
  for (const VersionName& version : work_.backlog.waiting()) {
    auto files = VersionFiles::read(work_.local, work_.local_root, version);
    if (!files) {
      const ErrorKind kind = files.error().kind;
      if (kind != ErrorKind::kNotFound && kind != ErrorKind::kCorrupt && kind != ErrorKind::kUnsupported)
        return fail(std::move(files).error());
      work_.backlog.skip(version, kind == ErrorKind::kNotFound ? "it was deleted from tier 0 before it was copied"
                                                               : files.error().to_string());
      clean_due_ = true;
      continue;
    }
    SW_ASSIGN(const Catalog here, store_->scan_cached());
    std::vector<VersionInfo> live = here.live_versions();
    if (std::ranges::find(live, version, name_of) != live.end()) {
      work_.backlog.finish(version);
      continue;
    }
    SW_ASSIGN(const auto pins, list_pins(work_.local, work_.local_root));
    live.push_back(version_info(files->manifest()));
    live.back().pinned = pins.contains(version);
    std::ranges::sort(live, {}, name_of);
    const std::vector<VersionName> surplus = expired(live, policy_);
    if (std::ranges::find(surplus, version) != surplus.end()) {
      const std::string why = fmt::format("the newest {} of this tier are there already (keep)", policy_.keep);
      version.attempt == attempt_ ? work_.backlog.skip(version, why) : work_.backlog.forget(version);
      clean_due_ = true;
      continue;
    }
    copy_ = std::make_unique<Copy>(std::move(*files), work_.tier);
    work_.backlog.begin_copy(version);
    return {};
  }
  return {};
}

Result<TierWorker::Outcome> TierLeader::continue_copy(const std::stop_token& stop) {
  const VersionName version = copy_->files.name();
  // A delete(), or a full disk, may have taken it off tier 0, and a restore may have replaced it.
  if (!work_.backlog.held().contains(version)) {
    end_copy();
    clean_due_ = true;
    return Outcome::kWorked;
  }
  SW_TRY(check_newest_attempt(work_.tier.fs(), work_.tier.root(), attempt_));
  SW_TRY(copy_->copier.begin());
  CopyOptions options = work_.copy_options(stop);
  options.on_sent = [this, note = options.on_sent](std::uint64_t size_bytes) {
    copy_->sent_bytes += size_bytes;
    note(size_bytes);
  };
  for (const RecordReference& reference : copy_->files.manifest().records)
    if (work_.owns(reference)) SW_TRY(copy_->copier.copy_rank(reference, options));
  SW_ASSIGN(const std::vector<std::uint32_t> missing, copy_->copier.missing_ranks());
  if (!missing.empty()) return await_others(missing);
  SW_TRY(publish(version));
  work_.log.info("step {} is on {}", version.step, work_.tier.root());
  work_.backlog.finish(version);
  copy_.reset();
  clean_due_ = true;
  return Outcome::kWorked;
}

Result<TierWorker::Outcome> TierLeader::await_others(const std::vector<std::uint32_t>& missing) {
  const VersionName version = copy_->files.name();
  // The others read tier 0 as well. If the version is gone there, they cannot copy their part.
  SW_TRY(VersionFiles::read(work_.local, work_.local_root, version));
  if (std::exchange(copy_->missing, missing.size()) != missing.size()) copy_->missing_since = work_.clock.now();
  // A rank may be unable to copy its part, because the tier is out of its reach or its file is damaged. Then newer
  // versions must not wait for ever.
  const std::vector<VersionName> waiting = work_.backlog.waiting();
  const bool newest = waiting.empty() || waiting.front() == version;
  if (newest || work_.clock.now() - copy_->missing_since < kOthersPatience) return Outcome::kWaiting;
  work_.backlog.skip(version, fmt::format("rank {} has not copied its part", missing.front()));
  end_copy();
  clean_due_ = true;
  return Outcome::kWorked;
}

Status TierLeader::publish(const VersionName& version) {
  // In this order, so that no crash leaves a pinned version on this tier without its pin.
  SW_ASSIGN(const auto pins, list_pins(work_.local, work_.local_root));
  if (pins.contains(version)) SW_TRY(pin_ahead_of_commit(work_.tier.fs(), work_.tier.root(), version));
  // A run that is over must not publish. (If one does so a moment later: the newer run has not adopted it.)
  SW_TRY(check_newest_attempt(work_.tier.fs(), work_.tier.root(), attempt_));
  return copy_->copier.publish();
}

// After an error. The copy continues later, unless it can never succeed.
void TierLeader::settle_failure(const Error& error) {
  if (!copy_ || error.kind == ErrorKind::kClosed) return;
  const VersionName version = copy_->files.name();
  const bool of_source = error.path.starts_with(work_.local_root + "/");
  if (of_source && (error.kind == ErrorKind::kNotFound || error.kind == ErrorKind::kCorrupt)) {
    work_.backlog.skip(version, error.kind == ErrorKind::kNotFound ? "it was deleted from tier 0 before it was copied"
                                                                   : error.to_string());
    end_copy();
    clean_due_ = true;
    return;
  }
  if (error.kind == ErrorKind::kNoSpace) {
    if (Status cleaned = clean_up(Need::kSpace); !cleaned) work_.backlog.note_error(cleaned.error());
  }
  // What is there in part is continued. If nothing is, the next try takes the newest version.
  if (copy_->sent_bytes == 0) end_copy();
}

void TierLeader::end_copy() {
  copy_.reset();
  work_.backlog.end_copy();
}

// Deleting.

Status TierLeader::clean_up(Need need) {
  SW_TRY(copy_pins());
  SW_TRY(store_->clean_up(policy_, need));
  SW_TRY(abandon_uploads());
  clean_due_ = false;
  return {};
}

// Parts of files that nobody will finish: of versions that this run, or an earlier one, no longer copies.
Status TierLeader::abandon_uploads() {
  SW_ASSIGN(const auto uploads, work_.tier.fs().list_uploads(work_.tier.root()));
  const std::set<VersionName> held = work_.backlog.held();
  for (const PendingUpload& upload : uploads) {
    const std::string below = upload.path.substr(std::min(upload.path.size(), work_.tier.root().size() + 1));
    const auto version = parse_version_directory(below.substr(0, below.find('/')));
    if (!version || held.contains(*version) || version->attempt > attempt_) continue;
    SW_TRY(work_.tier.fs().abandon_upload(upload));
  }
  return {};
}

// Whatever is pinned on tier 0 is pinned here, before anything is deleted.
Status TierLeader::copy_pins() {
  SW_ASSIGN(const auto above, list_pins(work_.local, work_.local_root));
  if (above.empty()) return {};
  SW_ASSIGN(const auto here, list_pins(work_.tier.fs(), work_.tier.root()));
  SW_ASSIGN(const Catalog catalog, store_->scan_cached());
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state == VersionState::kLive && above.contains(entry.name) && !here.contains(entry.name))
      SW_TRY(store_->pin(entry.name));
  }
  return {};
}

Status TierLeader::remove(const std::vector<VersionName>& versions) {
  for (const VersionName& version : versions) {
    if (copy_ && copy_->files.name() == version) end_copy();
    Status removed = store_->remove(version, "delete() was called");
    if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
    work_.backlog.forget(version);
  }
  return {};
}

}  // namespace slackwater
