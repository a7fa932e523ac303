#include <cerrno>

#include "crash/crash_rig.hpp"

namespace slackwater::test {
namespace {

const std::vector<PatternState::Part> kSmall{{"bias", 1000}, {"layer.weight", 70'001}, {"step", 8}};
// More than one block and one slab: writes that are in flight together.
const std::vector<PatternState::Part> kSeveralSlabs{{"bias", 12'345}, {"layer.weight", 1'800'000}};

void several_steps(CrashRig& rig) {
  Engine engine = rig.open(0);
  for (std::uint64_t step = 1; step <= 3; ++step) rig.save(engine, step);
}

void two_in_flight(CrashRig& rig) {
  Engine engine = rig.open(2);
  CrashRig::Ticket first = rig.begin(engine, 1);
  CrashRig::Ticket second = rig.begin(engine, 2);
  rig.report(first);
  rig.report(second);
}

void retention(CrashRig& rig) {
  Engine engine = rig.open(1);
  for (std::uint64_t step = 1; step <= 4; ++step) rig.save(engine, step);
}

void rollback(CrashRig& rig) {
  Engine engine = rig.open(3);
  for (std::uint64_t step = 1; step <= 4; ++step) rig.save(engine, step);
  rig.restore(engine, 2);
  for (std::uint64_t step = 3; step <= 4; ++step) rig.save(engine, step);
}

void second_attempt(CrashRig& rig) {
  {
    Engine engine = rig.open(2);
    for (std::uint64_t step = 1; step <= 2; ++step) rig.save(engine, step);
  }
  Engine engine = rig.open(2);
  rig.restore(engine);
  for (std::uint64_t step = 3; step <= 4; ++step) rig.save(engine, step);
}

void pin_and_remove(CrashRig& rig) {
  Engine engine = rig.open(2);
  for (std::uint64_t step = 1; step <= 2; ++step) rig.save(engine, step);
  rig.pin(engine, 1);
  for (std::uint64_t step = 3; step <= 4; ++step) rig.save(engine, step);
  rig.remove(engine, 3);
  rig.remove(engine, 4);  // the newest
  rig.save(engine, 5);
  rig.remove(engine, 1);  // the pinned one
}

void subdirectories(CrashRig& rig) {
  Engine engine = rig.open(1, RankFiles{.ranks_in_directory = 1});
  for (std::uint64_t step = 1; step <= 3; ++step) rig.save(engine, step);
}

// Copies to a lower tier, its retention, and a second run that goes on there.
void lower_tier(CrashRig& rig) {
  {
    Engine engine = rig.open_with_tier(1);
    for (std::uint64_t step = 1; step <= 4; ++step) rig.save_and_copy(engine, step);
  }
  Engine engine = rig.open_with_tier(1);
  rig.restore(engine);
  for (std::uint64_t step = 5; step <= 6; ++step) rig.save_and_copy(engine, step);
}

// A record vouches for data that is gone, until the data is there again.
void copy_again(CrashRig& rig) {
  {
    Engine engine = rig.open_with_tier(1);
    for (std::uint64_t step = 1; step <= 2; ++step) rig.save_and_copy(engine, step);
  }
  rig.lose_data_and_copy_again();
}

// A step whose files are there but not its decision, and a rollback: what `slackwater gc` removes.
void garbage(CrashRig& rig) {
  {
    Engine engine = rig.open(3);
    for (std::uint64_t step = 1; step <= 3; ++step) rig.save(engine, step);
    rig.pin(engine, 1);
  }
  {
    Engine engine = rig.open_faulty(3);
    rig.restore(engine, 2);
    rig.faults().fail(FsCall::kUnlink, EIO, {.times = kAlways});  // as if it were killed before it cleans up
    rig.save(engine, 3);
    rig.faults().fail(FsCall::kLink, EIO, {.path = "manifest"});
    rig.save(engine, 4);
  }
  rig.collect_garbage();
}

// Errors first, then the cut: what an error left unsynced must not count, nor take anything else along.
void failing_disk(CrashRig& rig) {
  Engine engine = rig.open_faulty(1);
  rig.save(engine, 1);
  rig.faults().fail(FsCall::kSyncData, EIO, {.path = ".safetensors"});
  rig.save(engine, 2);
  rig.faults().fail(FsCall::kSyncDirectory, EIO, {.nth = 2, .path = "step-0000000003"});  // in doubt
  rig.save(engine, 3);
  rig.faults().fail(FsCall::kQueueWrite, ENOSPC, {.path = ".safetensors"});
  rig.save(engine, 4);
  rig.save(engine, 5);
}

// Each of these calls fails once, then works: a step may be lost, nothing that was reported.
void each_call_fails_once(CrashRig& rig) {
  Engine engine = rig.open_faulty(1);
  std::uint64_t step = 0;
  for (const FsCall call : {FsCall::kMakeDirectory, FsCall::kOpen, FsCall::kSyncAll, FsCall::kLink, FsCall::kUnlink,
                            FsCall::kSyncDirectory, FsCall::kRemoveDirectory}) {
    rig.save(engine, ++step);
    rig.faults().fail(call, EIO, {.path = "step-"});
    rig.save(engine, ++step);
  }
  rig.faults().clear_faults();
  rig.save(engine, ++step);
}

// Room for `keep` + 1 states: a step finds no space, what an earlier run left beyond `keep` goes before anything is
// committed, and the step is written after all.
void full_disk(CrashRig& rig) {
  {
    Engine engine = rig.open(0);
    for (std::uint64_t step = 1; step <= 3; ++step) rig.save(engine, step);
  }
  Engine engine = rig.open_faulty(1);
  rig.restore(engine);
  for (std::uint64_t step = 4; step <= 6; ++step) {
    rig.faults().fail(FsCall::kAllocate, ENOSPC, {.path = ".safetensors"});
    rig.save(engine, step);
  }
}

}  // namespace

const std::vector<NamedScenario>& crash_scenarios() {
  static const std::vector<NamedScenario> scenarios{
      {"save and commit, several slabs", several_steps, kSeveralSlabs},
      {"two snapshots in flight", two_in_flight, kSmall},
      {"retention", retention, kSmall},
      {"rollback", rollback, kSmall},
      {"second attempt", second_attempt, kSmall},
      {"pin and remove", pin_and_remove, kSmall},
      {"failing disk", failing_disk, kSmall},
      {"subdirectories", subdirectories, kSmall},
      {"a lower tier", lower_tier, kSmall},
      {"a copy that lost its data", copy_again, kSmall},
      {"gc", garbage, kSmall},
      {"each call fails once", each_call_fails_once, kSmall},
      {"a disk of keep + 1 states", full_disk, kSmall},
  };
  return scenarios;
}

}  // namespace slackwater::test
