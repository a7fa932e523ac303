// Four ranks in groups of two. Each has its own engine, and its own disk that fails or hangs on command. Their clock
// stands still until the test moves it, so a time-out comes when the test wants it, however busy the machine is. With
// SLACKWATER_TEST_NFS=1 each rank is also on its own NFS host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_impl.hpp"
#include "support/effort.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/hand_clock.hpp"
#include "support/pattern_state.hpp"
#include "support/rank_storage.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {

inline constexpr std::uint32_t kWorld = 4;
// Of the clock that stands still. Short, because whoever waits looks the more often the less time has passed.
inline constexpr std::chrono::milliseconds kCommitTimeout{160};
inline constexpr std::chrono::seconds kRealTimeLimit{120};  // of the real one: longer means that something hangs
inline constexpr std::uint64_t kNeverSaved = 999'999;       // a step

enum class Phase : std::uint8_t { kStage, kWrite, kSync, kRecord, kDecide, kLearn };
inline constexpr Phase kPhases[] = {Phase::kStage,  Phase::kWrite,  Phase::kSync,
                                    Phase::kRecord, Phase::kDecide, Phase::kLearn};
enum class Role : std::uint8_t { kLeader, kGroupLeader, kMember };
inline constexpr Role kRoles[] = {Role::kLeader, Role::kGroupLeader, Role::kMember};

[[nodiscard]] inline const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kStage: return "stage";
    case Phase::kWrite: return "write";
    case Phase::kSync: return "sync";
    case Phase::kRecord: return "record";
    case Phase::kDecide: return "decide";
    case Phase::kLearn: return "learn";
  }
  return "?";
}

[[nodiscard]] inline const char* to_string(Role role) {
  switch (role) {
    case Role::kLeader: return "leader";
    case Role::kGroupLeader: return "group_leader";
    case Role::kMember: return "member";
  }
  return "?";
}

[[nodiscard]] inline std::uint32_t rank_of(Role role) {
  switch (role) {
    case Role::kLeader: return 0;
    case Role::kGroupLeader: return 2;
    case Role::kMember: return 3;
  }
  return 0;
}

// The call that a rank makes in this phase, and in no earlier one.
struct FaultSite {
  FsCall call;
  const char* path;
};
[[nodiscard]] inline FaultSite site_of(Phase phase, Role role) {
  switch (phase) {
    case Phase::kStage: return {FsCall::kMakeDirectory, "/step-"};
    case Phase::kWrite: return {FsCall::kQueueWrite, ".safetensors"};
    case Phase::kSync: return {FsCall::kSyncData, ".safetensors"};
    case Phase::kRecord: return {FsCall::kSyncAll, ".record"};
    case Phase::kDecide:
      switch (role) {
        case Role::kLeader: return {FsCall::kLink, "/manifest.json"};
        case Role::kGroupLeader: return {FsCall::kLink, "/votes-2-"};
        case Role::kMember: return {FsCall::kLink, "/votes-1-"};
      }
      break;
    case Phase::kLearn:
      return role == Role::kLeader ? FaultSite{FsCall::kLink, "/outcomes/"} : FaultSite{FsCall::kList, "/outcomes"};
  }
  return {FsCall::kOpen, ""};
}

inline void move(std::atomic<std::int64_t>& moved_ns, double timeouts) {
  moved_ns +=
      static_cast<std::int64_t>(timeouts * static_cast<double>(std::chrono::nanoseconds(kCommitTimeout).count()));
}

// One rank: its engine, its disk, and a state whose every byte tells which run, step and rank it is of.
struct Rank {
  Rank(Options options, const std::atomic<std::int64_t>& clock, std::uint64_t run, bool locks = true,
       std::uint32_t first_host = 0)
      : storage(storage_of_host(options.path, (options.rank + first_host) % kWorld)),
        number(options.rank),
        run_number(run) {
    auto faulty = std::make_unique<FaultFileSystem>(storage.fs());
    fs = faulty.get();
    if (!locks) fs->fail(FsCall::kTryLock, ENOLCK, {.times = kAlways});
    auto opened =
        open_engine(std::move(options), {.fs = std::move(faulty), .clock = std::make_unique<HandClock>(clock)});
    if (!opened) throw std::runtime_error(opened.error().to_string());
    engine = std::make_unique<Engine>(std::move(*opened));
  }
  // However a test ended: nothing hangs any more, and nobody waits for a clock that stands still.
  ~Rank() {
    if (!engine) return;
    fs->release_hung();
    static_cast<void>(engine->close(std::chrono::seconds(10)));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  [[nodiscard]] std::uint64_t content_of(std::uint64_t step) const {
    return (run_number * 1'000'000 + step) * kWorld + number;
  }
  // The snapshot before must have ended.
  [[nodiscard]] Snapshot save(std::uint64_t step, bool sealed_by_caller = false) {
    state.fill(content_of(step));
    State described = state.state();
    described.sealed_by_caller = sealed_by_caller;
    auto saved = engine->save(step, std::move(described));
    if (!saved) throw std::runtime_error(saved.error().to_string());
    return std::move(**saved);
  }

  RankStorage& storage;
  std::uint32_t number;
  std::uint64_t run_number;
  PatternState state{{{"w", (1u << 20) + 13}, {"bias", 100}}};
  FaultFileSystem* fs = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
};

[[nodiscard]] inline Options rank_options(const std::string& path, std::uint32_t rank) {
  Options options;
  options.path = path;
  options.slab_bytes = 1u << 20;
  options.pool_bytes = 4u << 20;
  options.rank = rank;
  options.world = kWorld;
  options.fan_in = 2;
  options.commit_timeout = kCommitTimeout;
  options.log = [](LogLevel, std::string_view) {};
  return options;
}

// The ranks of one start, in this process. Rank 0 runs on this host, the others on those that follow.
class Ranks {
 public:
  Ranks(const std::string& path, std::uint64_t number, bool locks = true, std::uint32_t first_host = 0) : path_(path) {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      ranks.push_back(std::make_unique<Rank>(rank_options(path, rank), clock, number, locks, first_host));
  }

  Rank& operator[](std::uint32_t rank) { return *ranks[rank]; }

  [[nodiscard]] std::vector<Snapshot> save_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks) snapshots.push_back(rank->save(step));
    return snapshots;
  }
  // Time passes until this snapshot has ended; slowly enough that a busy machine is not taken for a rank that is late.
  [[nodiscard]] Status end_of(Snapshot& snapshot) {
    const auto deadline = std::chrono::steady_clock::now() + kRealTimeLimit;
    for (;;) {
      Status status = snapshot.wait(Level::kCommitted, std::chrono::milliseconds(kSanitized ? 60 : 20));
      if (status) return status;
      // It may have ended since: then that is what there is to say, not that it was waited for in vain.
      if (snapshot.error()) return snapshot.wait(Level::kCommitted, kRealTimeLimit);
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "it hangs: " << status.error().message;
        return status;
      }
      move(clock, 0.1);
    }
  }
  // All ranks commit this step, and no time passes.
  void commit_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots = save_all(step);
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_TRUE(status) << "step " << step << ": " << status.error().to_string();
    }
  }
  // The step that all ranks restored, each with the bytes of the rank and the run that saved it.
  [[nodiscard]] std::uint64_t restore_all(std::uint64_t run_of_bytes) {
    std::vector<std::uint64_t> steps(kWorld);
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t rank = 0; rank < kWorld; ++rank)
        threads.emplace_back([&, rank] { steps[rank] = restore(rank, run_of_bytes); });
    }
    for (const std::uint64_t step : steps) EXPECT_EQ(step, steps[0]) << "ranks restored different steps";
    return steps[0];
  }
  // Rank 0 deletes in the background, and remove() waits for that.
  void settle() {
    EXPECT_TRUE(ranks[0]->engine->wait(Level::kCommitted));
    EXPECT_EQ(ranks[0]->engine->remove(kNeverSaved).error().kind, ErrorKind::kNotFound);
  }
  // What is visible of a step to somebody who only reads: nothing, or all of it.
  [[nodiscard]] bool visible(std::uint64_t step) const {
    const auto versions = list_versions(path_);
    for (const VersionInfo& version : versions.value()) {
      if (version.step != step) continue;
      auto checkpoint = Checkpoint::open(path_, step);
      if (!checkpoint) {
        ADD_FAILURE() << checkpoint.error().to_string();
        continue;
      }
      const auto report = checkpoint->verify();
      EXPECT_TRUE(report && report->damages.empty()) << "step " << step << " is visible and incomplete";
      return true;
    }
    return false;
  }

  std::atomic<std::int64_t> clock{0};
  std::vector<std::unique_ptr<Rank>> ranks;  // ended before the clock

 private:
  std::uint64_t restore(std::uint32_t number, std::uint64_t run_of_bytes) {
    Rank& rank = *ranks[number];
    const auto restored = rank.engine->restore({}, rank.state.plan());
    EXPECT_TRUE(restored) << restored.error().to_string();
    if (!restored || !*restored) return 0;
    EXPECT_TRUE((*restored)->damaged.empty());
    const std::uint64_t step = (*restored)->version.step;
    EXPECT_EQ(rank.state.number(), (run_of_bytes * 1'000'000 + step) * kWorld + number);
    EXPECT_EQ(rank.state.difference(), std::nullopt);
    return step;
  }

  const std::string path_;
};

// Every file below a directory whose path contains one of these words, with its bytes.
[[nodiscard]] inline std::map<std::string, std::string> files_with(const std::string& directory,
                                                                   const std::vector<std::string>& words) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string path = entry.path();
    const auto named = [&](const std::string& word) { return path.find(word) != std::string::npos; };
    if (!entry.is_regular_file() || std::ranges::none_of(words, named)) continue;
    try {
      files[path] = read_file_text(path);
    } catch (const std::runtime_error&) {
      if (std::filesystem::exists(path)) throw;  // else it was a private name, which goes when the message is sent
    }
  }
  return files;
}

}  // namespace slackwater::test
