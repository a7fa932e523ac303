#include "tiers/tier_leader.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "tiers/tier_identity.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"
#include "version/manifest_cache.hpp"
#include "version/pins.hpp"

namespace slackwater {
namespace {

constexpr unsigned kPartsAtOnce = 4;
constexpr std::chrono::minutes kOtherRanksTimeout{10};  // without a new record, while newer versions wait
constexpr const char* kNamesake = "the tier has a checkpoint of that name from another run, which is kept";

}  // namespace

CopyOptions TierWork::copy_options(const std::stop_token& stop) const {
  return {.threads = kPartsAtOnce,
          .buffer_bytes = buffer_bytes,
          .direct_io = direct_io,
          .cap = &cap,
          .stop = stop,
          .on_sent = [this](std::uint64_t size_bytes) { backlog.note_sent(size_bytes); }};
}

// With a directory on each node, the rank of a number may be on another node now than when it saved. So the leader of a
// node copies whatever its node has of versions of earlier runs. What two nodes have may be copied twice, with the same
// bytes.
Result<std::vector<std::string>> TierWork::copy_share(const VersionFiles& files, VersionCopier& copier,
                                                      std::uint32_t attempt, const CopyOptions& options) const {
  const bool by_node = shares_by_node(files.name(), attempt);
  std::vector<std::string> records;
  for (const RecordReference& reference : files.manifest().records) {
    if (by_node ? !*leads_node : !owns(reference)) continue;
    Status copied = copier.copy_rank(reference, options);
    if (copied) {
      records.push_back(reference.file);
      continue;
    }
    const bool elsewhere = by_node && copied.error().kind == ErrorKind::kNotFound && is_about_source(copied.error());
    if (!elsewhere) return fail(std::move(copied).error());
  }
  return records;
}

TierLeader::TierLeader(const TierWork& work)
    : work_(work),
      policy_{.keep = work.tier.options().keep, .keep_every = work.tier.options().keep_every},
      cleaner_(work_, policy_) {}

// Claiming the tier.

Status TierLeader::open_store() {
  if (store_) return {};
  SW_ASSIGN(store_, VersionStore::open(work_.tier.fs(), work_.clock, work_.tier.root(), work_.log));
  // What waits may be there in part. It is not debris: its copy continues.
  store_->set_held([this] { return work_.backlog.held(); });
  return {};
}

Status TierLeader::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) {
  end_copy();
  source_errors_.clear();
  attempt_ = 0;
  // The cleaner follows once the tier can be reached, and close() waits for it.
  SW_ASSIGN(const std::vector<DeleteNote> deleted, pending());
  for (const DeleteNote& note : deleted) work_.backlog.remove(note);
  SW_TRY(open_store());
  // The tier may hold versions that nobody saw when the attempt was claimed on tier 0. They stay live.
  SW_ASSIGN(const TierInventory inventory, take_inventory(work_.tier.fs(), work_.tier.root(), deleted));
  Attempt followed = attempt;
  if (inventory.newest_attempt < attempt.number) {
    SW_ASSIGN(followed, attempt_on_tier(attempt, inventory, {&work_.tier.fs(), work_.tier.root()},
                                        {&work_.local, work_.local_root}, continued));
  }
  SW_TRY(store_->attempt().follow(followed));
  attempt_ = attempt.number;
  tell_kept(attempt, followed, inventory);
  SW_ASSIGN(const std::set<VersionName> unfinished, drop_finished());
  SW_ASSIGN(const bool another, is_another_place(deleted));
  cleaner_.begin_attempt(*store_, attempt_, unfinished, another);
  return {};
}

// Nothing is mounted there, or it was emptied, or it is another place. Nobody can tell which, so the run goes on. But
// nobody may believe that the tier has followed a delete(): it may come back with the version.
Result<bool> TierLeader::is_another_place(const std::vector<DeleteNote>& deleted) {
  const TierPlace tier_0{&work_.local, work_.local_root};
  const TierPlace tier{&work_.tier.fs(), work_.tier.root()};
  SW_ASSIGN(const auto remembered, remembers_another(tier_0, tier));
  if (!remembered) {
    told_another_place_ = false;
    if (const Status done = remember_tier(tier_0, tier); !done)
      work_.log.info("the id of this tier could not be noted on tier 0: {}", done.error().to_string());
    return false;
  }
  if (std::exchange(told_another_place_, true)) return true;
  std::set<std::uint64_t> steps;
  for (const DeleteNote& note : deleted) steps.insert(note.version.step);
  work_.log.warn(
      "{} is not the place that this run has copied to before: it is not mounted, or it was emptied; checkpoints are "
      "copied there all the same, but deletes stay noted for the tier that was there{}; mount it, or remove {} if it "
      "is gone for good",
      work_.tier.root(), steps.empty() ? "" : fmt::format(" (steps {})", fmt::join(steps, ", ")), *remembered);
  return true;
}

// What the tier turned out to have and nobody knew of when the attempt was claimed.
void TierLeader::tell_kept(const Attempt& claimed, const Attempt& followed, const TierInventory& inventory) const {
  const auto lists = [](const std::vector<SetAside>& versions, const VersionName& version) {
    return std::ranges::find(versions, version, &SetAside::version) != versions.end();
  };
  std::vector<SetAside> kept;
  for (const SetAside& aside : followed.set_aside) {
    const bool adopted = std::ranges::find(claimed.adopted, aside.version) != claimed.adopted.end();  // of this name
    if (!adopted && !lists(claimed.set_aside, aside.version) && !lists(inventory.set_aside, aside.version))
      kept.push_back(aside);
  }
  for (const std::string& sentence : sentences_on_kept(kept, work_.tier.root())) work_.log.warn("{}", sentence);
}

// delete() may have been called while this tier was out of reach, perhaps in an earlier run.
Result<std::vector<DeleteNote>> TierLeader::pending() const {
  SW_ASSIGN(DeleteNotes pending, pending_deletes(work_.local, work_.local_root));
  const std::string noted = noted_location(work_.tier.root());
  std::erase_if(pending.notes, [&](const DeleteNote& note) { return note.tier != noted; });
  const std::vector<DeleteNote> heard = *work_.deletes_heard.lock();
  pending.notes.insert(pending.notes.end(), heard.begin(), heard.end());
  return std::move(pending.notes);
}

Result<TierInventory> TierLeader::inventory() {
  SW_ASSIGN(const std::vector<DeleteNote> deleted, pending());
  return take_inventory(work_.tier.fs(), work_.tier.root(), deleted);
}

// Some of what waits is on the tier already, and some is not on tier 0 any more. Returns what killed runs left here.
Result<std::set<VersionName>> TierLeader::drop_finished() {
  SW_ASSIGN(const Catalog here, store_->scan_cached());
  std::set<VersionName> unfinished;
  for (const CatalogEntry& entry : here.entries) {
    if (entry.state == VersionState::kLive) work_.backlog.note_step_on_tier(entry.name.step);
    if (entry.state == VersionState::kUndecided && entry.name.attempt < attempt_) unfinished.insert(entry.name);
  }
  SW_ASSIGN(const auto above, work_.local.list(work_.local_root));
  for (const VersionName& version : work_.backlog.waiting()) {
    const auto there = std::ranges::find(here.entries, version, &CatalogEntry::name);
    if (there != here.entries.end() && there->state == VersionState::kLive) {
      SW_ASSIGN(const bool namesake, is_namesake(*there));
      namesake ? work_.backlog.skip(version, kNamesake) : work_.backlog.finish(version);
    } else if (there != here.entries.end() && there->state == VersionState::kSetAside) {
      work_.backlog.skip(version, kNamesake);
    } else if (!std::ranges::binary_search(above, version_directory(version), {}, &DirectoryEntry::name)) {
      work_.backlog.forget(version);
    }
  }
  return unfinished;
}

// Two runs that have not seen each other may use the same names (tier_branches.hpp). What this run adopts by its name
// is then live on this tier, and yet it is not what waits on tier 0.
Result<bool> TierLeader::is_namesake(const CatalogEntry& there) const {
  const auto above = read_manifest(work_.local, work_.local_root, there.name);
  if (above) return above->run != there.run;
  const ErrorKind kind = above.error().kind;
  if (kind == ErrorKind::kNotFound || kind == ErrorKind::kCorrupt || kind == ErrorKind::kUnsupported) return false;
  return fail(above.error());
}

// Copying.

Result<TierWorker::Outcome> TierLeader::advance(const std::stop_token& stop) {
  if (!copy_) SW_TRY(begin_next());
  if (!copy_) return Outcome::kIdle;
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
      cleaner_.request(Need::kRoutine);  // it may be here in part
      continue;
    }
    SW_ASSIGN(const Catalog here, store_->scan_cached());
    std::vector<VersionInfo> live = here.live_versions();
    if (std::ranges::find(live, version, name_of) != live.end()) {
      const auto there = std::ranges::find(here.entries, version, &CatalogEntry::name);
      there->run == files->manifest().run ? work_.backlog.finish(version) : work_.backlog.skip(version, kNamesake);
      continue;
    }
    SW_ASSIGN(const auto pins, list_pins(work_.local, work_.local_root));
    live.push_back(version_info(files->manifest()));
    live.back().pinned = pins.contains(version);
    std::ranges::sort(live, {}, name_of);
    const std::vector<VersionName> surplus = expired(live, policy_);
    if (std::ranges::find(surplus, version) != surplus.end()) {
      const std::string why = fmt::format("the tier already holds {} newer checkpoints (keep)", policy_.keep);
      version.attempt == attempt_ ? work_.backlog.skip(version, why) : work_.backlog.forget(version);
      cleaner_.request(Need::kRoutine);  // it may be here in part
      continue;
    }
    watch_free_space(here.live_versions().size(), files->manifest().size_bytes);
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
    cleaner_.request(Need::kRoutine);
    return Outcome::kWorked;
  }
  SW_TRY(check_newest_attempt(work_.tier.fs(), work_.tier.root(), attempt_));
  SW_TRY(begin_copy());
  CopyOptions options = work_.copy_options(stop);
  options.on_sent = [this, note = options.on_sent](std::uint64_t size_bytes) {
    copy_->sent_bytes += size_bytes;
    note(size_bytes);
  };
  SW_TRY(work_.copy_share(copy_->files, copy_->copier, attempt_, options));
  SW_ASSIGN(const std::vector<std::uint32_t> missing, copy_->copier.missing_ranks());
  if (!missing.empty()) return await_others(missing);
  SW_ASSIGN(const bool published, publish(version));
  if (!published) return copy_again();
  work_.log.info("step {} was copied to {}", version.step, work_.tier.root());
  work_.backlog.finish(version);
  copy_.reset();
  cleaner_.request(Need::kRoutine);
  return Outcome::kWorked;
}

Status TierLeader::begin_copy() {
  const std::string& directory = copy_->copier.directory();
  cleaner_.note_copy(copy_->files.name());  // before anything of it is here
  SW_TRY(copy_->copier.begin());
  if (std::exchange(copy_->begun, true)) return {};
  // What ranks of an earlier attempt could not copy may be in order by now.
  SW_ASSIGN(const auto entries, work_.tier.fs().list(directory));
  for (const DirectoryEntry& entry : entries) {
    const auto note = parse_failure_note_file(entry.name);
    if (note && note->attempt != attempt_) (void)work_.tier.fs().unlink(fmt::format("{}/{}", directory, entry.name));
  }
  return {};
}

// Somebody has removed files since they were copied, or a power cut kept a record and not what it vouches for.
Result<TierWorker::Outcome> TierLeader::copy_again() {
  constexpr int kMostTimes = 3;
  const VersionName version = copy_->files.name();
  for (const RecordReference& reference : copy_->files.manifest().records) {
    const bool own = work_.owns(reference) && !work_.shares_by_node(version, attempt_);
    if (own || !copy_->copier.incomplete().contains(reference.rank)) continue;
    // Another rank believes that it is done, until its record is gone.
    Status unlinked = work_.tier.fs().unlink(fmt::format("{}/{}", copy_->copier.directory(), reference.file));
    if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return fail(std::move(unlinked).error());
  }
  if (++copy_->incomplete < kMostTimes) {
    work_.log.info("files of step {} are missing on {} although they were copied; they are copied again", version.step,
                   work_.tier.root());
    return Outcome::kWorked;
  }
  copy_->incomplete = 0;
  return fail(Error{.kind = ErrorKind::kIo,
                    .message = "files that were copied are missing again; end the process that deletes files here",
                    .path = copy_->copier.directory(),
                    .retryable = true});
}

Result<TierWorker::Outcome> TierLeader::await_others(const std::vector<std::uint32_t>& missing) {
  const VersionName version = copy_->files.name();
  // The others read tier 0 as well. If the version is gone there, they cannot copy their part.
  SW_TRY(VersionFiles::read(work_.local, work_.local_root, version));
  if (std::exchange(copy_->missing, missing.size()) != missing.size()) copy_->missing_since = work_.clock.now();
  SW_ASSIGN(const auto failure, find_failure());
  if (failure) {
    skip(*failure);
    return Outcome::kWorked;
  }
  // A rank may be unable to say so, because the tier is out of its reach. Then newer versions must not wait for ever.
  const std::vector<VersionName> waiting = work_.backlog.waiting();
  const bool newest = waiting.empty() || waiting.front() == version;
  if (newest || work_.clock.now() - copy_->missing_since < kOtherRanksTimeout) return Outcome::kWaiting;
  skip(fmt::format("rank {} copied nothing for 10 minutes", missing.front()));
  return Outcome::kWorked;
}

// What a rank of this attempt says about files that it cannot copy.
Result<std::optional<std::string>> TierLeader::find_failure() {
  constexpr std::uint64_t kMaxNoteBytes = 64u << 10;
  const std::string& directory = copy_->copier.directory();
  const auto entries = work_.tier.fs().list(directory);
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return std::nullopt;
  if (!entries) return fail(entries.error());
  for (const DirectoryEntry& entry : *entries) {
    const auto note = parse_failure_note_file(entry.name);
    if (!note || note->attempt != attempt_) continue;
    SW_ASSIGN(std::string why, read_listed(work_.tier.fs(), directory, entry.name, kMaxNoteBytes));
    std::ranges::replace_if(why, [](char letter) { return static_cast<unsigned char>(letter) < 0x20; }, ' ');
    return fmt::format("rank {} cannot copy its files: {}", note->rank, why);
  }
  return std::nullopt;
}

Result<bool> TierLeader::publish(const VersionName& version) {
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
  if (work_.is_about_source(error)) {
    if (error.kind == ErrorKind::kNotFound) return skip("it was deleted from tier 0 before it was copied");
    if (error.kind == ErrorKind::kCorrupt || ++source_errors_[version] >= kSourceTries) return skip(error.to_string());
  }
  // VersionCopier::begin() says so of the directory, before anything is written.
  if (error.kind == ErrorKind::kAlreadyExists && error.path == copy_->copier.directory()) return skip(kNamesake);
  if (error.kind == ErrorKind::kCorrupt && error.path == fmt::format("{}/{}", copy_->copier.directory(), kManifestName))
    return skip(error.to_string());
  if (error.kind == ErrorKind::kNoSpace) cleaner_.request(Need::kSpace);
  // What is there in part is continued. If nothing is, the next try takes the newest version.
  if (copy_->sent_bytes == 0) end_copy();
}

// The version on its way will not be copied.
void TierLeader::skip(const std::string& why) {
  work_.backlog.skip(copy_->files.name(), why);
  end_copy();
  cleaner_.request(Need::kRoutine);  // it is here in part
}

void TierLeader::end_copy() {
  copy_.reset();
  work_.backlog.end_copy();
}

// A directory that is almost full. An object store does not tell.
void TierLeader::watch_free_space(std::uint64_t present, std::uint64_t version_bytes) {
  const auto free_bytes = work_.tier.fs().free_bytes(work_.tier.root());
  if (!free_bytes) return;
  if (const auto warning = space_.check(*free_bytes, version_bytes, present))
    work_.log.warn("{}: {}", *warning, work_.tier.root());
}

Status TierLeader::remove(const std::vector<DeleteNote>& deleted) {
  for (const DeleteNote& note : deleted)
    if (copy_ && copy_->files.name() == note.version) end_copy();
  cleaner_.remove(deleted);
  return {};
}

// The lock of the tier is free when close() returns, and not only when the engine is destroyed: the next run of this
// process may begin in between.
void TierLeader::stop() {
  cleaner_.stop();
  copy_.reset();
  store_.reset();
}

}  // namespace slackwater
