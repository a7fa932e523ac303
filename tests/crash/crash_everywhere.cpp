#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "crash/crash_rig.hpp"
#include "os/durable.hpp"
#include "restore/checkpoint_reader.hpp"
#include "support/effort.hpp"
#include "support/write_checkpoint.hpp"
#include "tiers/version_copier.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

constexpr std::uint64_t kNextNumber = 1'000'000;  // of the state saved after the cut
constexpr std::size_t kFindingsKept = 5;
const ReadOptions kReading{.buffer_bytes = 2u << 20, .io_backend = IoBackend::kThreads, .log = {}};

// What is wrong with a directory found after a cut, in one sentence; nullopt if everything promised is there.
class Inspection {
 public:
  // The pool is lent: making one for every version that is read takes longer than reading it.
  Inspection(std::string directory, const Promises& promises, PatternState& state, Pool& pool)
      : directory_(std::move(directory)), promises_(promises), state_(state), parts_{.fs = fs_.get(), .pool = &pool} {}

  std::optional<std::string> run() {
    Options options;
    options.path = directory_ + "/run";
    options.slab_bytes = 1u << 20;
    options.pool_bytes = 2u << 20;
    options.keep = 0;  // what is there now stays, to be looked at
    options.copy_threads = 1;
    options.io_backend = IoBackend::kThreads;  // rings take long to end, and are not what is tested here
    options.log = [](LogLevel, std::string_view) {};
    auto engine = Engine::open(options);
    if (!engine) return fmt::format("it cannot be opened: {}", engine.error().to_string());
    if (auto wrong = read_newest(*engine)) return wrong;
    if (auto wrong = look_at_all(options.path, promises_.present, promises_.pinned)) return wrong;
    const std::string lower = directory_ + "/lower";
    if (fs_->status(lower) || !promises_.copied.empty()) {
      if (auto wrong = look_at_all(lower, promises_.copied, {})) return fmt::format("on the lower tier, {}", *wrong);
      if (auto wrong = copy_newest(options.path, lower)) return fmt::format("on the lower tier, {}", *wrong);
    }
    return save_on(*engine, options.path);
  }

 private:
  std::optional<std::string> read_newest(Engine& engine) {
    const auto restored = engine.restore({}, state_.plan());
    if (!restored) return fmt::format("nothing can be restored: {}", restored.error().to_string());
    if (!*restored) {
      if (promises_.newest.contains(0)) return std::nullopt;
      return "a committed checkpoint is gone, and nothing else is there";
    }
    newest_step_ = (*restored)->version.step;
    // A cut damages nothing: what was not safe did not count.
    if (!(*restored)->damaged.empty()) return fmt::format("a damaged version counts: {}", (*restored)->damaged[0]);
    if (!promises_.newest.contains(state_.number()))
      return fmt::format("step {} (state {}) is restored, and should not be the newest", newest_step_, state_.number());
    return state_.difference();
  }

  std::optional<std::string> look_at_all(const std::string& path, const std::set<std::uint64_t>& present,
                                         const std::set<std::uint64_t>& pinned) {
    const auto catalog = scan_catalog(*fs_, path);
    if (!catalog) return fmt::format("it cannot be listed: {}", catalog.error().to_string());
    std::set<std::uint64_t> found;
    for (const CatalogEntry& entry : catalog->entries) {
      if (entry.state == VersionState::kUnreadable)
        return fmt::format("the manifest of step {} cannot be read: {}", entry.name.step, entry.error->to_string());
      if (entry.state != VersionState::kLive) continue;
      auto checkpoint = open_version(parts_, path, entry.info, kReading);
      if (!checkpoint)
        return fmt::format("step {} cannot be opened: {}", entry.name.step, checkpoint.error().to_string());
      if (const Status read = state_.read(*checkpoint); !read)
        return fmt::format("step {} cannot be read: {}", entry.name.step, read.error().to_string());
      if (auto difference = state_.difference()) return difference;
      const std::uint64_t number = state_.number();
      const auto promised = promises_.steps.find(number);
      if (promised == promises_.steps.end() || promised->second != entry.name.step)
        return fmt::format("step {} holds state {}, which was never saved under it", entry.name.step, number);
      if (promises_.gone.contains(number))
        return fmt::format("step {} (state {}) counts, but had failed or was removed", entry.name.step, number);
      if (pinned.contains(number) && !entry.info.pinned)
        return fmt::format("step {} was pinned and no longer is", entry.name.step);
      if (auto wrong = look_at_index(path, entry.name)) return wrong;
      found.insert(number);
    }
    for (const std::uint64_t number : present)
      if (!found.contains(number))
        return fmt::format("state {} (step {}) was committed and is gone", number, promises_.steps.at(number));
    return std::nullopt;
  }

  // Nothing that is restored needs it, so reading does not look at it.
  std::optional<std::string> look_at_index(const std::string& path, const VersionName& version) {
    const auto manifest = read_manifest(*fs_, path, version);
    const auto index =
        read_whole(*fs_, fmt::format("{}/{}/{}", path, version_directory(version), kIndexName), 1u << 20);
    if (manifest && index && digest128(*index) == manifest->index_digest) return std::nullopt;
    return fmt::format("the index of step {} is not the one that was written", version.step);
  }

  // Whoever copies next takes a file for complete if it seems so, and publishes the version.
  std::optional<std::string> copy_newest(const std::string& path, const std::string& lower) {
    const auto versions = list_versions(path);
    if (!versions || versions->empty()) return std::nullopt;
    const VersionName newest = name_of(versions->back());
    const auto files = VersionFiles::read(*fs_, path, newest);
    if (!files) return fmt::format("step {} cannot be read: {}", newest.step, files.error().to_string());
    if (const Status copied = VersionCopier(*files, *fs_, lower).copy_all({}); !copied)
      return fmt::format("step {} cannot be copied: {}", newest.step, copied.error().to_string());
    const auto report = verify_version({.fs = fs_.get()}, lower, newest, {});
    if (!report) return fmt::format("the copy of step {} cannot be read: {}", newest.step, report.error().to_string());
    if (report->damages.empty()) return std::nullopt;
    return fmt::format("the copy of step {} is damaged: {}", newest.step, report->damages[0].what);
  }

  std::optional<std::string> save_on(Engine& engine, const std::string& path) {
    state_.fill(kNextNumber);
    auto saved = engine.save(newest_step_ + 1, state_.state());
    if (!saved) return fmt::format("the next save is refused: {}", saved.error().to_string());
    if (const Status committed = (*saved)->wait(Level::kCommitted); !committed)
      return fmt::format("the next save fails: {}", committed.error().to_string());
    if (const Status closed = engine.close(); !closed)
      return fmt::format("closing fails: {}", closed.error().to_string());
    const auto versions = list_versions(path);
    if (!versions || versions->empty()) return "the next save is not listed";
    auto checkpoint = open_version(parts_, path, versions->back(), kReading);
    if (!checkpoint) return fmt::format("the next save cannot be opened: {}", checkpoint.error().to_string());
    if (const Status read = state_.read(*checkpoint); !read)
      return fmt::format("the next save cannot be read: {}", read.error().to_string());
    if (state_.number() != kNextNumber) return "the next save is not the newest";
    return state_.difference();
  }

  const std::string directory_;
  const Promises& promises_;
  PatternState& state_;
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  const ReaderDependencies parts_;
  std::uint64_t newest_step_ = 0;
};

std::string text_of(const DiskOperation& operation) {
  switch (operation.change) {
    case DiskChange::kName: return fmt::format("the change of the name {}", operation.name);
    case DiskChange::kSyncNames: return "the sync of a directory";
    case DiskChange::kWrite: return fmt::format("the start of a write at {}", operation.offset);
    case DiskChange::kWritten: return "the end of a write";
    case DiskChange::kAllocate: return "an allocation";
    case DiskChange::kTruncate: return fmt::format("a truncation to {}", operation.offset);
    case DiskChange::kSyncBytes: return "the sync of a file";
  }
  return {};
}

// Cuts behind every operation of the rig's journal and inspects what may be left.
void cut_everywhere(const CrashRig& rig, const CrashEffort& effort, std::mt19937_64& random, CrashTally& tally) {
  const std::size_t last = rig.journal().size();
  tally.operations += last - rig.first_cut();
  CutDisk disk(rig.journal());
  PatternState state = rig.make_state();
  const std::unique_ptr<Pool> pool = must(Pool::create(1u << 20, 2));
  std::set<std::pair<std::uint64_t, const Promises*>> seen;
  for (std::size_t cut = 0; cut <= last && tally.lost < effort.stop_after_lost; ++cut) {
    if (cut > 0) disk.advance();
    if (cut < rig.first_cut() || (cut % effort.stride != 0 && cut != last)) continue;
    ++tally.cuts;
    const Promises& promises = rig.promises_at(cut);
    for (const DiskImage& image : disk.images(effort.exhaustive, effort.samples, random)) {
      if (!seen.insert({image.digest(), &promises}).second) continue;
      ++tally.states;
      const TempDir found;
      image.write_to(found.path());
      const auto wrong = Inspection(found.path(), promises, state, *pool).run();
      if (!wrong) continue;
      ++tally.lost;
      if (tally.findings.size() < kFindingsKept)
        tally.findings.push_back(fmt::format("cut {} of {}, behind {}: {}", cut, last,
                                             cut == 0 ? "nothing" : text_of(rig.journal().operation(cut - 1)), *wrong));
      if (tally.lost >= effort.stop_after_lost) break;
    }
  }
}

}  // namespace

CrashTally crash_everywhere(const NamedScenario& scenario, const CrashEffort& effort, DiskLies lies) {
  CrashRig rig(std::move(lies), scenario.parts);
  scenario.run(rig);
  CrashTally tally{.scenario = scenario.name, .findings = {}};
  std::mt19937_64 random(harness_seed());
  cut_everywhere(rig, effort, random, tally);
  return tally;
}

CrashTally crash_again(const std::vector<NamedScenario>& scenarios, std::size_t restarts, const CrashEffort& effort) {
  CrashTally tally{.scenario = "cut, restarted, cut again", .findings = {}};
  std::mt19937_64 random(harness_seed());
  for (const NamedScenario& scenario : scenarios) {
    CrashRig first({}, scenario.parts);
    scenario.run(first);
    for (std::size_t restart = 0; restart < restarts; ++restart) {
      const std::size_t cut = random() % (first.journal().size() + 1);
      CutDisk disk(first.journal());
      while (disk.operations() < cut) disk.advance();
      const std::vector<DiskImage> images = disk.images(effort.exhaustive, effort.samples, random);
      CrashRig second(scenario.parts, images[random() % images.size()], first.promises_at(cut));
      {
        Engine engine = second.open(1);
        const std::uint64_t step = second.resume(engine);
        second.save(engine, step + 1);
        second.save(engine, step + 2);
      }
      cut_everywhere(second, effort, random, tally);
    }
  }
  return tally;
}

std::string table_of(const std::vector<CrashTally>& tallies) {
  std::string text = fmt::format("{:<40} | {:>10} | {:>6} | {:>12} | {:>6}\n", "scenario", "operations", "cuts",
                                 "states tried", "lost");
  CrashTally sum;
  for (const CrashTally& tally : tallies) {
    text += fmt::format("{:<40} | {:>10} | {:>6} | {:>12} | {:>6}\n", tally.scenario, tally.operations, tally.cuts,
                        tally.states, tally.lost);
    sum.operations += tally.operations;
    sum.cuts += tally.cuts;
    sum.states += tally.states;
    sum.lost += tally.lost;
  }
  return text + fmt::format("{:<40} | {:>10} | {:>6} | {:>12} | {:>6}\n", "all", sum.operations, sum.cuts, sum.states,
                            sum.lost);
}

}  // namespace slackwater::test
