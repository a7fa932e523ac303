#include "engine/memory_tier.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "version/attempt.hpp"

namespace slackwater {

MemoryTier::MemoryTier(const Options& options, FileSystem& fs, Log log)
    : options_(options), fs_(fs), log_(std::move(log)) {}

KeeperSettings MemoryTier::settings(std::uint32_t rank) const {
  return {.directory = options_.path, .rank = rank, .program = options_.keeper, .keep_for = options_.memory_timeout};
}

void MemoryTier::warn_once(const Error& error) {
  if (std::exchange(warned_, true)) return;
  log_.warn("there is no memory tier, and training goes on without it: {}", error.to_string());
}

void MemoryTier::attach() {
  const std::lock_guard lock(mutex_);
  auto attached = KeeperClient::attach(settings(options_.rank));
  if (!attached) return warn_once(attached.error());
  if (!*attached) return;
  client_ = std::move(**attached);
  if (!client_->memory()) return;
  auto region = Region::open(client_->memory());
  if (!region) return log_.info("ignoring the memory of an earlier trainer: {}", region.error().to_string());
  if (region->shape().rank != options_.rank || region->shape().world != options_.world) return;
  slabs_ = std::make_shared<KeptSlabs>(std::make_shared<Region>(std::move(*region)), options_.memory_versions, log_);
}

std::vector<RankPart> MemoryTier::parts_of(const Region::Kept& own) const {
  std::vector<RankPart> parts;
  for (std::uint32_t rank = 0; rank < options_.world; ++rank) {
    if (rank == options_.rank) {
      parts.push_back({slabs_->region(), own.version});
      continue;
    }
    auto memory = peek_at_keeper(settings(rank));
    if (!memory || !*memory) return {};
    auto opened = Region::open(std::move(**memory));
    if (!opened) return {};
    const auto region = std::make_shared<const Region>(std::move(*opened));
    const auto all = region->kept();
    const auto name_of_kept = [](const Region::Kept& each) { return each.version.name; };
    const auto same = std::ranges::find(all, own.version.name, name_of_kept);
    if (same == all.end() || same->version.world != options_.world || same->version.rank != rank) return {};
    parts.push_back({region, same->version});
  }
  return parts;
}

std::vector<CatalogEntry> MemoryTier::versions(const Catalog& catalog) {
  const std::lock_guard lock(mutex_);
  files_ = std::make_unique<KeptFiles>(options_.path, fs_);
  offered_.clear();
  only_in_memory_.clear();
  std::vector<CatalogEntry> entries;
  const auto& newest = catalog.newest_attempt;
  // Other ranks are asked only if they are all on this machine.
  const bool all_here = options_.world == 1 || options_.world == options_.local_ranks;
  if (!slabs_ || !newest || newest->world != options_.world || options_.rank >= newest->members.size() || !all_here)
    return entries;
  newest_member_ = newest->members[options_.rank];
  for (const Region::Kept& kept : slabs_->region()->kept()) {
    const VersionName& name = kept.version.name;
    // The attempts tell whether this is what the directory would go on from. A run without a memory tier may have been
    // here since, or a rollback.
    if (std::ranges::find(kept.members, newest_member_) == kept.members.end()) {
      log_.info("step {} in the keeper's memory is of an earlier run and is not used", name.step);
      continue;
    }
    const auto on_disk = std::ranges::find(catalog.entries, name, &CatalogEntry::name);
    const bool known = on_disk != catalog.entries.end();
    if (known && (on_disk->state == VersionState::kAborted || on_disk->state == VersionState::kReplaced)) continue;
    const std::vector<RankPart> parts = parts_of(kept);
    if (parts.empty()) continue;
    auto info = files_->add(parts);
    if (!info) {
      log_.warn("step {} in the keeper's memory cannot be used: {}", name.step, info.error().to_string());
      continue;
    }
    offered_.insert(name);
    if (!known || !on_disk->adoptable()) only_in_memory_.insert(name);
    CatalogEntry entry;
    entry.name = name;
    entry.state = VersionState::kLive;
    entry.current = true;
    entry.info = std::move(*info);
    if (known) entry.info.pinned = on_disk->info.pinned;
    entries.push_back(std::move(entry));
  }
  return entries;
}

FileSystem* MemoryTier::files_of(const VersionName& name) const {
  const std::lock_guard lock(mutex_);
  return offered_.contains(name) ? files_.get() : nullptr;
}

void MemoryTier::note_restored(const VersionName& name) {
  const std::lock_guard lock(mutex_);
  restored_ = name;
}

std::string MemoryTier::begin_attempt(std::uint64_t epoch, std::string id) {
  const std::lock_guard lock(mutex_);
  if (epoch_ == epoch) return id_;  // the claim is tried again
  epoch_ = epoch;
  id_ = id.empty() ? random_id() : std::move(id);
  files_.reset();  // unmaps the memory of other ranks
  offered_.clear();
  if (slabs_) {
    // Before the claim. If the claim came first, a crash in between would leave versions that the new attempt went back
    // behind (a rollback), or lose the one that it continues.
    slabs_->drop([&](const VersionName& name) { return name != restored_; });
    if (restored_ && !newest_member_.empty()) slabs_->set_heir(*restored_, newest_member_, id_);
  }
  restored_.reset();
  return id_;
}

void MemoryTier::settle_adopted(std::vector<VersionName>& adopted) const {
  std::set<VersionName> unsure;
  {
    const std::lock_guard lock(mutex_);
    unsure = only_in_memory_;
  }
  for (const VersionName& name : unsure) {
    // The keeper may have committed it before this run took over, and after the versions were listed.
    const auto manifest = read_manifest(fs_, options_.path, name);
    const bool committed = manifest && manifest->decision == Decision::kCommit;
    const auto listed = std::ranges::find(adopted, name);
    if (!committed && listed != adopted.end()) adopted.erase(listed);
  }
}

std::shared_ptr<KeptSlabs> MemoryTier::memory_for(std::uint32_t slab_count) {
  const std::lock_guard lock(mutex_);
  if (!client_) {
    auto started = KeeperClient::start(settings(options_.rank));
    if (!started) {
      warn_once(started.error());
      return nullptr;
    }
    client_ = std::move(*started);
  }
  if (slabs_) {
    const RegionShape& shape = slabs_->region()->shape();
    // Memory that is a little too small costs less than touching all of it again, and it holds a version.
    const std::uint64_t reach = std::uint64_t{shape.slab_count} + shape.slab_count / 8;
    if (shape.slab_bytes == options_.slab_bytes && slab_count <= reach &&
        shape.slab_count <= 2 * std::uint64_t{slab_count})
      return slabs_;
    log_.info("the keeper's memory of {} is made again for another state",
              format_bytes(shape.slab_bytes * shape.slab_count));
    slabs_->drop([](const VersionName&) { return true; });
    slabs_.reset();
  }
  const RegionShape shape{
      .slab_bytes = options_.slab_bytes, .slab_count = slab_count, .rank = options_.rank, .world = options_.world};
  auto memory = client_->make_memory(Region::size_bytes(shape));
  auto region = memory ? Region::format(std::move(*memory), shape) : fail(memory.error());
  if (!region) {
    warn_once(region.error());
    return nullptr;
  }
  slabs_ = std::make_shared<KeptSlabs>(std::make_shared<Region>(std::move(*region)), options_.memory_versions, log_);
  return slabs_;
}

void MemoryTier::mark_committed(const VersionName& name) {
  const std::lock_guard lock(mutex_);
  if (slabs_) slabs_->mark_committed(name);
}

void MemoryTier::drop_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (slabs_) slabs_->drop([&](const VersionName& name) { return name.step == step; });
}

void MemoryTier::keep_after_close() {
  const std::lock_guard lock(mutex_);
  keep_after_close_ = true;
}

void MemoryTier::close(bool all_committed) {
  const std::lock_guard lock(mutex_);
  files_.reset();
  slabs_.reset();
  if (client_ && all_committed && !keep_after_close_) {
    if (const Status released = client_->release(); !released)
      log_.warn("the keeper did not release its memory; it will do so after memory_timeout: {}",
                released.error().to_string());
  }
  client_.reset();  // the keeper takes this for the end of the trainer, and flushes what is not committed
}

}  // namespace slackwater
