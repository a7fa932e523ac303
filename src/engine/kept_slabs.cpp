#include "engine/kept_slabs.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"

namespace slackwater {

// KeptVersion.

bool KeptVersion::settled() const {
  return failed_ ||
         (all_full_ && plan_ && std::ranges::all_of(digests_, [](const auto& digests) { return digests.has_value(); }));
}

void KeptVersion::add_slab(std::uint32_t part, std::uint64_t chunk, int slab) {
  const std::lock_guard lock(owner_.mutex_);
  files_[part].slabs[chunk] = static_cast<std::uint32_t>(slab);
  ++out_;
  if (state_ == State::kDropped) ++owner_.coming_back_;
}

void KeptVersion::return_lease(Lease lease) {
  const std::lock_guard lock(owner_.mutex_);
  --out_;
  if (state_ != State::kDropped) {
    leases_.push_back(std::move(lease));
    return;
  }
  --owner_.coming_back_;
  lease.release();  // under the lock: whoever waits for a slab must find the count above right
}

void KeptVersion::set_digests(std::uint32_t part, std::vector<std::uint64_t> digests) {
  const std::lock_guard lock(owner_.mutex_);
  if (part >= digests_.size()) return;  // it has failed, and is over for sw-memory
  digests_[part] = std::move(digests);
  owner_.changed_.notify_all();
}

void KeptVersion::set_plan(KeptPlan plan) {
  const std::lock_guard lock(owner_.mutex_);
  plan_ = std::move(plan);
  owner_.changed_.notify_all();
}

void KeptVersion::set_staged() {
  const std::lock_guard lock(owner_.mutex_);
  all_full_ = true;
  owner_.changed_.notify_all();
}

void KeptVersion::fail() {
  const std::lock_guard lock(owner_.mutex_);
  failed_ = true;
  owner_.changed_.notify_all();
}

// KeptSlabs.

KeptSlabs::KeptSlabs(std::shared_ptr<Region> region, std::uint32_t versions, Log log)
    : region_(std::move(region)), versions_(versions), log_(std::move(log)) {
  std::vector<bool> listed(Region::kEntries);
  std::vector<bool> used(region_->shape().slab_count);
  for (Region::Kept& kept : region_->kept()) {
    const auto taken = [&](const StagedFile& file) {
      return std::ranges::any_of(file.slabs, [&](std::uint32_t slab) { return used[slab]; });
    };
    if (std::ranges::any_of(kept.version.files, taken)) continue;  // two versions claim one slab: neither is certain
    for (const StagedFile& file : kept.version.files)
      for (const std::uint32_t slab : file.slabs) used[slab] = true;
    listed[kept.entry] = true;
    std::shared_ptr<KeptVersion> version(new KeptVersion(*this));
    version->state_ = KeptVersion::State::kStaged;
    version->name_ = kept.version.name;
    version->entry_ = kept.entry;
    version->committed_ = kept.state == KeptState::kCommitted;
    version->files_ = std::move(kept.version.files);
    kept_.push_back(std::move(version));
  }
  // What the last trainer did not finish, and what cannot be believed.
  for (std::uint32_t entry = 0; entry < Region::kEntries; ++entry)
    if (!listed[entry]) region_->drop(entry);
}

KeptSlabs::~KeptSlabs() { detach(); }

std::vector<std::uint32_t> KeptSlabs::reserved() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> slabs;
  for (const auto& version : kept_)
    for (const StagedFile& file : version->files_) slabs.insert(slabs.end(), file.slabs.begin(), file.slabs.end());
  return slabs;
}

void KeptSlabs::attach(Pool& pool) {
  try {
    {
      const std::lock_guard lock(mutex_);
      pool_ = &pool;
      for (const auto& version : kept_)
        for (const StagedFile& file : version->files_)
          for (const std::uint32_t slab : file.slabs)
            version->leases_.push_back(pool.take_reserved(static_cast<int>(slab)));
    }
    thread_ = start_thread("sw-memory", [this](const std::stop_token& stop) { run(stop); });
  } catch (...) {
    detach();  // the pool ends now, and the next one is given the same slabs
    throw;
  }
}

void KeptSlabs::detach() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  const std::lock_guard lock(mutex_);
  for (const auto& version : kept_) version->leases_.clear();
  pool_ = nullptr;
}

std::shared_ptr<KeptVersion> KeptSlabs::begin(const VersionName& name, const SnapshotLayout& layout,
                                              std::shared_ptr<Snapshot::Impl> snapshot) {
  const std::lock_guard lock(mutex_);
  std::uint64_t needed = 0;
  for (const FileLayout& part : layout.parts) needed += part.chunk_count(region_->shape().slab_bytes);
  if (needed > region_->shape().slab_count) {
    if (!std::exchange(told_too_large_, true))
      log_.warn(
          "step {} has {}, more than the pool: the memory tier cannot hold it, and a restart reads from disk; "
          "make the pool at least twice as large as the state",
          name.step, format_bytes(layout.size_bytes));
    return nullptr;
  }
  std::shared_ptr<KeptVersion> version(new KeptVersion(*this));
  version->name_ = name;
  version->snapshot_ = std::move(snapshot);
  version->digests_.resize(layout.parts.size());
  for (const FileLayout& part : layout.parts) {
    version->files_.push_back({.name = part.file_name(), .size_bytes = part.size_bytes(), .slabs = {}});
    version->files_.back().slabs.resize(part.chunk_count(region_->shape().slab_bytes));
  }
  kept_.push_back(version);
  to_publish_.push_back(version);
  return version;
}

void KeptSlabs::begin_unkept_write() {
  const std::lock_guard lock(mutex_);
  ++coming_back_;
}

void KeptSlabs::end_unkept_write(Lease lease) {
  const std::lock_guard lock(mutex_);
  --coming_back_;
  lease.release();  // under the lock, as in return_lease()
}

void KeptSlabs::make_room() {
  const std::lock_guard lock(mutex_);
  // A slab that is being written comes back by itself, and one whose pages are not there yet comes soon. Neither costs
  // a version. Dropping one for them could lose the only step that was reported as staged.
  if (coming_back_ > 0 || pool_ == nullptr || pool_->free_count() > 0) return;
  if (pool_->touched_count() < pool_->slab_count()) return;
  // Nor does a later step that could as well wait until the one before it is staged.
  if (has_only_copy() && front_has_its_slabs()) return;
  drop_oldest();
}

void KeptSlabs::mark_committed(const VersionName& name) {
  bool waiting = false;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& version : kept_) {
      if (version->name_ != name || version->state_ != KeptVersion::State::kStaged) continue;
      version->committed_ = true;
      region_->mark_committed(*version->entry_);
    }
    waiting = somebody_waits();
  }
  if (waiting) make_room();  // it is not the only copy any more
}

void KeptSlabs::drop(const std::function<bool(const VersionName&)>& which) {
  const std::lock_guard lock(mutex_);
  const auto all = kept_;
  for (const auto& version : all)
    if (version->state_ == KeptVersion::State::kStaged && which(version->name_)) drop_version(*version);
}

void KeptSlabs::set_next_owner(const VersionName& name, const std::string& member, const std::string& next) {
  const std::lock_guard lock(mutex_);
  for (const auto& version : kept_)
    if (version->name_ == name && version->state_ == KeptVersion::State::kStaged)
      region_->set_next_owner(*version->entry_, member, next);
}

// Allocates nothing: versions are dropped when memory is short, too.
void KeptSlabs::drop_version(KeptVersion& version) {
  // The table first: from the next line on its slabs may be filled with something else.
  if (version.entry_) region_->drop(*version.entry_);
  version.state_ = KeptVersion::State::kDropped;
  coming_back_ += version.out_;
  version.leases_.clear();
  std::erase_if(kept_, [&](const auto& each) { return each.get() == &version; });
}

void KeptSlabs::drop_oldest() {
  const auto oldest =
      std::ranges::find(kept_, KeptVersion::State::kStaged, [](const auto& each) { return each->state_; });
  if (oldest == kept_.end()) return;
  const std::shared_ptr<KeptVersion> version = *oldest;
  drop_version(*version);
}

// Of the newest step that was reported as staged: only one is kept, and it is not on disk.
bool KeptSlabs::has_only_copy() const {
  return staged_count() == 1 && std::ranges::any_of(kept_, [](const auto& version) {
           return version->state_ == KeptVersion::State::kStaged && !version->committed_;
         });
}

// Whether the next version to be staged has got all its slabs. Then it waits for the disk alone, and whoever needs a
// slab now is of a later step, and can wait for it. The pool grants slabs in the order of the steps. So the front has
// its slabs if no slab is free and it needs no more than the kept versions leave.
bool KeptSlabs::front_has_its_slabs() const {
  const auto slabs_of = [](const KeptVersion& version) {
    std::uint64_t slabs = 0;
    for (const StagedFile& file : version.files_) slabs += file.slabs.size();
    return slabs;
  };
  std::uint64_t left = region_->shape().slab_count;
  for (const auto& version : kept_)
    if (version->state_ == KeptVersion::State::kStaged) left -= std::min(left, slabs_of(*version));
  const auto front = std::ranges::find_if(
      kept_, [](const auto& version) { return version->state_ == KeptVersion::State::kFilling && !version->failed_; });
  return front != kept_.end() && slabs_of(**front) <= left;
}

std::size_t KeptSlabs::staged_count() const {
  return static_cast<std::size_t>(
      std::ranges::count(kept_, KeptVersion::State::kStaged, [](const auto& version) { return version->state_; }));
}

void KeptSlabs::run(const std::stop_token& stop) {
  for (;;) {
    std::shared_ptr<KeptVersion> version;
    {
      Lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !to_publish_.empty() && to_publish_.front()->settled(); })) return;
      version = to_publish_.front();
      to_publish_.pop_front();
    }
    publish(version);
  }
}

void KeptSlabs::publish(const std::shared_ptr<KeptVersion>& version) {
  // Nothing of it changes any more, but for its leases and its state. (A write of it may still fail. Its bytes are in
  // the slabs all the same.)
  const std::shared_ptr<Snapshot::Impl> snapshot = version->snapshot_;
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    failed = version->failed_;
  }
  std::optional<Error> why = failed ? snapshot->error() : snapshot->wait_sealed();
  bool kept = !why && !failed;
  if (kept) {
    try {
      if (const Status published = keep(*version); !published) why = published.error();
    } catch (const std::exception& trouble) {  // the texts of a large state take hundreds of megabytes
      why = Error{.kind = ErrorKind::kOutOfMemory, .message = trouble.what()};
    }
    kept = !why;
  }
  bool waiting = false;
  {
    const std::lock_guard lock(mutex_);
    if (!kept && version->state_ != KeptVersion::State::kDropped) drop_version(*version);
    version->snapshot_.reset();
    version->plan_.reset();
    version->digests_ = std::vector<std::optional<std::vector<std::uint64_t>>>();
    waiting = somebody_waits();
  }
  if (why && !snapshot->error()) log_.warn("step {} is not kept in memory: {}", version->name_.step, why->to_string());
  // One that is not kept is staged all the same, as it is without a memory tier. One that failed is not: whoever called
  // fail() may not have told the snapshot yet, and a fence must not open while its tensors are still being copied.
  if (!failed) snapshot->reach(Level::kStaged);
  if (waiting) make_room();
}

Status KeptSlabs::keep(KeptVersion& version) {
  SW_ASSIGN(const StagedVersion text, describe(version));
  const std::lock_guard lock(mutex_);
  // Only now: more versions may be in flight than the table has entries, and none of those is worth a staged one.
  version.entry_ = region_->begin(version.name_);
  if (!version.entry_) {  // what an earlier run kept
    drop_oldest();
    version.entry_ = region_->begin(version.name_);
  }
  if (!version.entry_) return fail(ErrorKind::kInternal, "the table of the keeper's memory is full");
  SW_TRY(region_->publish(*version.entry_, text, version.plan_->member));
  version.state_ = KeptVersion::State::kStaged;
  // A restart of several ranks needs a step that all of them have, and they stage it at different times. So the step
  // before stays here until a copy needs its slabs.
  const std::size_t spare = region_->shape().world > 1 ? 1 : 0;
  while (staged_count() > versions_ + spare) drop_oldest();
  return {};
}

Result<StagedVersion> KeptSlabs::describe(const KeptVersion& version) const {
  const KeptPlan& plan = *version.plan_;
  Record record = plan.record;
  for (std::size_t part = 0; part < record.files.size(); ++part)
    record.files[part].block_digests = *version.digests_[part];
  StagedVersion text{.name = version.name_,
                     .rank = record.identity.rank,
                     .world = record.identity.world,
                     .files = version.files_,
                     .record = serialize(record),
                     .index = plan.index,
                     .manifest = {},
                     .vote = {}};
  Manifest manifest = plan.manifest;
  const RankFiles files = RankFiles::of_world(text.world);
  const RecordReference reference{text.rank, files.record(text.rank), digest128(text.record)};
  if (text.world == 1) {
    manifest.records = {reference};
  } else {
    manifest.decision = Decision::kAbort;  // it names no records
    SW_TRY(plan.add_vote(reference, text));
  }
  text.manifest = serialize(manifest);
  return text;
}

}  // namespace slackwater
