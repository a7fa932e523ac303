// CrashRig: runs a scenario on an engine whose disk is recorded, and keeps the books on what was promised when; then
// crash_everywhere() cuts the power behind every operation and holds what is left against the books.
//
// To add a scenario (promote, repair, ...): a function that takes a CrashRig, in scenarios.cpp.
// Thread rule: one thread. Lifetime: engines opened through a rig end before it does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "os/file_system.hpp"
#include "slackwater/engine.hpp"
#include "support/pattern_state.hpp"
#include "support/power_cut_file_system.hpp"
#include "support/temp_dir.hpp"
#include "version/names.hpp"

namespace slackwater::test {

// Promises in force after some operation. States go by their number, which grows with every save; 0 stands for "none".
struct Promises {
  std::set<std::uint64_t> newest;                // one of these is what a restore must find
  std::set<std::uint64_t> present;               // each of these must be among the versions that count
  std::set<std::uint64_t> pinned;                // and these must still be pinned
  std::set<std::uint64_t> gone;                  // none of these may count
  std::set<std::uint64_t> copied;                // each of these must be among those that count on the lower tier
  std::map<std::uint64_t, std::uint64_t> steps;  // of every state whose save has begun
};

class CrashRig {
 public:
  CrashRig(DiskLies lies, std::vector<PatternState::Part> parts);
  // On what an earlier cut left. resume() comes before any save.
  CrashRig(std::vector<PatternState::Part> parts, const DiskImage& found, const Promises& promises);

  [[nodiscard]] Engine open(std::uint64_t keep, std::optional<RankFiles> files = {});
  // With a lower tier on the same disk, which keeps two versions. Save with save_and_copy().
  [[nodiscard]] Engine open_with_tier(std::uint64_t keep);
  void save_and_copy(Engine& engine, std::uint64_t step);
  // While no engine is open: the newest copy on the lower tier loses its manifest and its data, but not its record, as
  // when a delete is cut short. Then it is copied again.
  void lose_data_and_copy_again();
  // With these calls failing on top; faults() sets them.
  [[nodiscard]] Engine open_faulty(std::uint64_t keep);
  [[nodiscard]] FaultFileSystem& faults() { return *faults_; }

  // Begins a save; report() waits for it and books the outcome. A Ticket is the state's number.
  struct Ticket {
    std::uint64_t number = 0;
    Snapshot snapshot;
  };
  [[nodiscard]] Ticket begin(Engine& engine, std::uint64_t step);
  void report(Ticket& ticket);
  void save(Engine& engine, std::uint64_t step) {
    Ticket ticket = begin(engine, step);
    report(ticket);
    static_cast<void>(engine.wait(Level::kCommitted));  // until what expired is removed; errors are the scenario's
  }
  void restore(Engine& engine, std::optional<std::uint64_t> step = {});
  // Restores what there is after a cut, and takes it for what was promised: that it is allowed was looked at before.
  // Returns its step, 0 if there is nothing.
  std::uint64_t resume(Engine& engine);
  void pin(Engine& engine, std::uint64_t step);
  void remove(Engine& engine, std::uint64_t step);
  // What `slackwater gc --delete` does, while no engine is open.
  void collect_garbage();

  [[nodiscard]] const PowerCutJournal& journal() const { return journal_; }
  [[nodiscard]] std::size_t first_cut() const { return first_cut_; }
  [[nodiscard]] const Promises& promises_at(std::size_t operations) const;
  [[nodiscard]] PatternState make_state() const { return PatternState(parts_); }

 private:
  void book();  // from now on

  const std::vector<PatternState::Part> parts_;
  const DiskLies lies_;
  TempDir directory_;
  const std::unique_ptr<FileSystem> posix_ = make_posix_file_system();
  PowerCutJournal journal_{directory_.path()};
  PowerCutFileSystem disk_;            // under faults_
  FaultFileSystem* faults_ = nullptr;  // of the last engine opened by open_faulty()

  std::size_t first_cut_ = 0;  // what came before was there already
  std::uint64_t keep_ = 0;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, std::uint64_t> steps_;
  std::vector<std::uint64_t> committed_;  // on the branch that is continued, oldest first
  std::vector<std::uint64_t>
      left_behind_;  // committed, on a branch that a rollback left; until the new branch has a commit
  std::set<std::uint64_t> under_way_;
  std::set<std::uint64_t> doubtful_;
  std::set<std::uint64_t> pinned_;
  std::set<std::uint64_t> gone_;
  std::vector<std::uint64_t> copied_;                    // on the lower tier, oldest first
  std::vector<std::pair<std::size_t, Promises>> books_;  // by the operation from which on they hold
};

using Scenario = std::function<void(CrashRig&)>;

struct NamedScenario {
  std::string name;
  Scenario run;
  std::vector<PatternState::Part> parts;
};
[[nodiscard]] const std::vector<NamedScenario>& crash_scenarios();

struct CrashEffort {
  std::size_t stride = 1;       // cut behind every n-th operation
  std::size_t exhaustive = 24;  // all outcomes of a cut, if there are no more than these
  std::size_t samples = 4;      // random ones otherwise, beside the four corners
  std::size_t stop_after_lost = SIZE_MAX;
};

struct CrashTally {
  std::string scenario;
  std::size_t operations = 0;
  std::size_t cuts = 0;
  std::size_t states = 0;  // different ones, each opened, read, saved to
  std::size_t lost = 0;
  std::vector<std::string> findings;  // one sentence for each of the first lost ones
};

[[nodiscard]] CrashTally crash_everywhere(const NamedScenario& scenario, const CrashEffort& effort, DiskLies lies = {});
// Cuts each scenario `restarts` times at random, goes on with what is left, and cuts that everywhere.
[[nodiscard]] CrashTally crash_again(const std::vector<NamedScenario>& scenarios, std::size_t restarts,
                                     const CrashEffort& effort);
[[nodiscard]] std::string table_of(const std::vector<CrashTally>& tallies);

}  // namespace slackwater::test
