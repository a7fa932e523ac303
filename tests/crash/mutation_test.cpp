// Proof that the crash harness can fail: with one sync forgotten, or sync and truncation exchanged, it reports losses.
// The forgetting is done by the file system of the test, which answers and does nothing: to the product's bytes on disk
// that is the same as a product that lacks the call.
#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "crash/crash_rig.hpp"
#include "support/effort.hpp"

namespace slackwater::test {
namespace {

struct Mutation {
  const char* name;
  DiskLies lies;
  const char* scenario = "save and commit, several slabs";  // that finds it soonest; `make soak` goes through all
  const char* survived_because = nullptr;                   // the design does without it
};

DiskLies without(FsCall call, std::string path_part) {
  return {.ignored = [call, path_part = std::move(path_part)](const SyncCall& sync) {
    return sync.call == call && sync.path.find(path_part) != std::string::npos;
  }};
}
DiskLies without_directory(std::string path_end) {
  return {.ignored = [path_end = std::move(path_end)](const SyncCall& sync) {
    return sync.call == FsCall::kSyncDirectory && sync.path.ends_with(path_end);
  }};
}
// Syncs of a version's directory that follow a change of this name.
DiskLies without_version_sync(bool (*after)(const std::string& last_name)) {
  return {.ignored = [after](const SyncCall& sync) {
    return sync.call == FsCall::kSyncDirectory && sync.path.find("/step-") != std::string::npos &&
           after(sync.last_name);
  }};
}

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all{
      {"data files are not synced", without(FsCall::kSyncData, ".safetensors")},
      {"truncation and sync exchanged", {.ignored = {}, .truncate_after_sync = true}},
      {"the record is not synced", without(FsCall::kSyncAll, ".record")},
      {"the index is not synced", without(FsCall::kSyncAll, "/index")},
      {"the manifest is not synced", without(FsCall::kSyncAll, "manifest.json")},
      {"names of files are not synced before the decision",
       without_version_sync([](const std::string& name) { return name.ends_with(".record"); })},
      {"the name of the decision is not synced",
       without_version_sync([](const std::string& name) { return name.ends_with(".tmp"); })},
      {"deletion does not sync the manifest's end",
       without_version_sync([](const std::string& name) { return name.ends_with(".deleted.tmp"); }), "retention"},
      {"a subdirectory is not synced", without_directory("/g0000"), "subdirectories"},
      {"the name of a subdirectory is not synced before the decision",
       without_version_sync([](const std::string& name) { return name == "index"; }), "subdirectories"},
      {"the directory of versions is not synced", without_directory("/run")},
      {"copied data is not synced", without(FsCall::kSyncData, "/lower/step-"), "a lower tier"},
      {"the copy of a manifest is not synced", without(FsCall::kSyncAll, "/lower/step-"), "a lower tier"},
      {"the control directory is not synced (pins)", without_directory("/.slackwater"), "pin and remove"},
      {"the parent directory is not synced",
       {.ignored =
            [](const SyncCall& sync) {
              return sync.call == FsCall::kSyncDirectory && sync.path.find("/run") == std::string::npos;
            }}},
      {"the attempt's file is not synced", without(FsCall::kSyncAll, "attempt-"), "rollback",
       "the versions of an attempt whose file is damaged count, and those before its first step"},
  };
  return all;
}

TEST(CrashMutationTest, EachForgottenSyncIsFound) {
  const bool all_scenarios = effort("SLACKWATER_ALL_MUTATIONS", 0) > 0;
  std::string table = fmt::format("\n{:<52} | {:>6} | {:>4} | {}\n", "mutation", "states", "lost", "first finding");
  for (const Mutation& mutation : mutations()) {
    std::size_t states = 0;
    std::size_t lost = 0;
    std::string first;
    for (const NamedScenario& scenario : crash_scenarios()) {
      if (!all_scenarios && scenario.name != mutation.scenario) continue;
      // One loss is proof enough; where none is to be found, all is gone through.
      const CrashEffort effort{.stride = mutation.survived_because && !all_scenarios ? 7u : 1u,
                               .samples = 6,
                               .stop_after_lost = all_scenarios ? SIZE_MAX : 1};
      const CrashTally tally = crash_everywhere(scenario, effort, mutation.lies);
      states += tally.states;
      lost += tally.lost;
      if (first.empty() && !tally.findings.empty()) first = tally.findings[0].substr(0, tally.findings[0].find('\n'));
    }
    if (mutation.survived_because) {
      EXPECT_EQ(lost, 0u) << mutation.name << ": " << first;
      first = fmt::format("survived: {}", mutation.survived_because);
    } else {
      EXPECT_GT(lost, 0u) << "not noticed: " << mutation.name;
    }
    table += fmt::format("{:<52} | {:>6} | {:>4} | {}\n", mutation.name, states, lost, first);
  }
  std::fputs(table.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace
}  // namespace slackwater::test
