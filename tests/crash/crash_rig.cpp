#include "crash/crash_rig.hpp"

#include <algorithm>
#include <stdexcept>

#include "engine/engine_impl.hpp"
#include "support/write_checkpoint.hpp"
#include "tiers/version_copier.hpp"
#include "version/garbage.hpp"
#include "version/version_remover.hpp"

namespace slackwater::test {
namespace {

constexpr std::size_t kLowerKeep = 2;

Options options_of(const std::string& directory, std::uint64_t keep) {
  Options options;
  options.path = directory + "/run";
  options.slab_bytes = 1u << 20;
  options.pool_bytes = 2u << 20;
  options.keep = keep;
  options.log = [](LogLevel, std::string_view) {};
  return options;
}

}  // namespace

CrashRig::CrashRig(DiskLies lies, std::vector<PatternState::Part> parts)
    : parts_(std::move(parts)), lies_(std::move(lies)), disk_(*posix_, journal_, lies_) {
  book();
}

CrashRig::CrashRig(std::vector<PatternState::Part> parts, const DiskImage& found, const Promises& promises)
    : parts_(std::move(parts)), disk_(*posix_, journal_, lies_), steps_(promises.steps), gone_(promises.gone) {
  found.write_to(directory_.path());
  journal_.adopt_existing();
  first_cut_ = journal_.size();
  if (!steps_.empty()) last_number_ = steps_.rbegin()->first;
}

Engine CrashRig::open(std::uint64_t keep, std::optional<RankFiles> files) {
  keep_ = keep;
  auto disk = std::make_unique<PowerCutFileSystem>(*posix_, journal_, lies_);
  return must(open_engine(options_of(directory_.path(), keep), {.fs = std::move(disk), .clock = {}, .files = files}));
}

Engine CrashRig::open_with_tier(std::uint64_t keep) {
  keep_ = keep;
  Options options = options_of(directory_.path(), keep);
  options.tiers = {{.location = directory_.path() + "/lower", .keep = kLowerKeep}};
  auto disk = std::make_unique<PowerCutFileSystem>(*posix_, journal_, lies_);
  return must(open_engine(std::move(options), {.fs = std::move(disk), .clock = {}}));
}

void CrashRig::save_and_copy(Engine& engine, std::uint64_t step) {
  // The copy may push the oldest out before we hear of it.
  if (copied_.size() == kLowerKeep) copied_.erase(copied_.begin());
  Ticket ticket = begin(engine, step);
  report(ticket);
  must(engine.wait_copied());
  copied_.push_back(ticket.number);
  book();
}

void CrashRig::lose_data_and_copy_again() {
  const std::string root = directory_.path() + "/run";
  const std::string lower = directory_.path() + "/lower";
  const VersionName version = name_of(must(scan_catalog(disk_, lower)).live_versions().back());
  const std::string directory = version_path(lower, version);
  const std::uint64_t number = copied_.back();
  copied_.pop_back();
  book();
  for (const std::string& name : {std::string(kManifestName), data_file(0, 0)}) {
    must(disk_.unlink(directory + "/" + name));
    must(disk_.sync_directory(directory));
  }
  const VersionFiles files = must(VersionFiles::read(disk_, root, version));
  must(VersionCopier(files, disk_, lower).copy_all({}));
  copied_.push_back(number);
  book();
}

Engine CrashRig::open_faulty(std::uint64_t keep) {
  keep_ = keep;
  auto faulty = std::make_unique<FaultFileSystem>(disk_);
  faults_ = faulty.get();
  return must(open_engine(options_of(directory_.path(), keep), {.fs = std::move(faulty), .clock = {}}));
}

void CrashRig::book() {
  Promises promises;
  promises.steps = steps_;
  promises.pinned = pinned_;
  promises.gone = gone_;
  promises.copied.insert(copied_.begin(), copied_.end());
  promises.newest = under_way_;
  promises.newest.insert(doubtful_.begin(), doubtful_.end());
  promises.newest.insert(committed_.empty() ? 0 : committed_.back());
  // A rollback is decided when its first save claims an attempt; whether that is on disk yet nobody was told.
  if (!left_behind_.empty()) promises.newest.insert(left_behind_.back());
  // Whatever is under way may commit, and push the oldest out, before we hear of it.
  for (std::size_t i = 0; i < committed_.size(); ++i) {
    const std::size_t newer = committed_.size() - 1 - i + under_way_.size() + doubtful_.size();
    if (keep_ == 0 || newer < keep_ || pinned_.contains(committed_[i])) promises.present.insert(committed_[i]);
  }
  books_.emplace_back(journal_.size(), std::move(promises));
}

const Promises& CrashRig::promises_at(std::size_t operations) const {
  const auto after = std::ranges::upper_bound(books_, operations, {}, [](const auto& book) { return book.first; });
  return std::prev(after)->second;
}

CrashRig::Ticket CrashRig::begin(Engine& engine, std::uint64_t step) {
  PatternState state = make_state();
  const std::uint64_t number = ++last_number_;
  state.fill(number);
  steps_[number] = step;
  under_way_.insert(number);
  book();
  State given = state.state();
  const auto owner = std::make_shared<PatternState>(std::move(state));  // the memory of the tensors moves along
  given.owner = owner;
  auto saved = must(engine.save(step, std::move(given)));
  if (!saved) throw std::runtime_error("the save was skipped");
  return {number, std::move(*saved)};
}

void CrashRig::report(Ticket& ticket) {
  const Status status = ticket.snapshot.wait(Level::kCommitted);
  under_way_.erase(ticket.number);
  if (status) {
    committed_.push_back(ticket.number);
    doubtful_.clear();
    left_behind_.clear();
    // Expired: they may go at any time from now on.
    for (std::size_t i = 0; keep_ > 0 && i + keep_ < committed_.size();) {
      if (pinned_.contains(committed_[i]))
        ++i;
      else
        committed_.erase(committed_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  } else if (status.error().kind == ErrorKind::kInDoubt) {
    doubtful_.insert(ticket.number);
  } else {
    gone_.insert(ticket.number);
  }
  book();
}

void CrashRig::restore(Engine& engine, std::optional<std::uint64_t> step) {
  PatternState state = make_state();
  const auto restored = must(engine.restore({.step = step}, state.plan()));
  if (!restored) return;
  if (const auto difference = state.difference()) throw std::runtime_error(*difference);
  const auto base = std::ranges::find(committed_, state.number());
  if (base == committed_.end()) throw std::runtime_error("a state was restored that never was committed");
  if (std::next(base) == committed_.end()) return;
  copied_.clear();  // those that were left behind may go
  left_behind_.assign(std::next(base), committed_.end());
  committed_.erase(std::next(base), committed_.end());
  // Not booked: nothing has been written yet. The next begin() does.
}

std::uint64_t CrashRig::resume(Engine& engine) {
  PatternState state = make_state();
  const auto restored = must(engine.restore({}, state.plan()));
  if (restored) committed_ = {state.number()};
  book();
  books_.back().first = first_cut_;  // it was so from the beginning: opening and restoring change nothing
  return restored ? restored->version.step : 0;
}

void CrashRig::pin(Engine& engine, std::uint64_t step) {
  must(engine.pin(step));
  for (const std::uint64_t number : committed_)
    if (steps_[number] == step) pinned_.insert(number);
  book();
}

void CrashRig::remove(Engine& engine, std::uint64_t step) {
  const auto found = std::ranges::find_if(committed_, [&](std::uint64_t number) { return steps_[number] == step; });
  if (found == committed_.end()) throw std::runtime_error("there is no such step to remove");
  const std::uint64_t number = *found;
  committed_.erase(found);
  pinned_.erase(number);
  doubtful_.insert(number);  // either way until it is done
  book();
  must(engine.remove(step));
  doubtful_.erase(number);
  gone_.insert(number);
  book();
}

void CrashRig::collect_garbage() {
  const std::string root = directory_.path() + "/run";
  const auto lock = must(disk_.try_lock(lock_path(root)));
  const Catalog catalog = must(scan_catalog(disk_, root));
  const auto garbage = find_garbage(disk_, root, catalog, must(newest_attempt_number(disk_, root)));
  if (garbage.empty()) throw std::runtime_error("there is no garbage, so this scenario shows nothing");
  ManifestCache cache;
  VersionRemover remover(disk_, root, Log([](LogLevel, std::string_view) {}), cache);
  using Pinned = VersionRemover::Pinned;
  for (const Removal& removal : garbage)
    must(remover.remove(removal.version, removal.why, removal.committed ? Pinned::kStays : Pinned::kStaysIfConfirmed));
}

}  // namespace slackwater::test
