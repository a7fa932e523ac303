// A trainer without a framework, to be killed at any moment: its state is a function of the step, it checkpoints every
// step and says on stdout what it was told is committed.
//
//   kill_trainer DIRECTORY SIZE_MIB STEPS committed|captured|staged [RANK WORLD [local|global]]
//
// "local": each rank has its own tensors. "global": the ranks hold all tensors together. "captured": it reports a step
// as soon as save() returns, which is a lie that the harness must detect.
// SLACKWATER_TRAINER_DISK=flaky: every call that reads fails once with EIO, then works. =slow: the writes of rank 1
// take long. =tier: every second step is copied to a lower tier (DIRECTORY-lower), slowly, so that kills meet the copy,
// its commit and its retention. =nfs: each process is an NFS host with its own caches. =small: one snapshot at a time,
// for a disk that has no room for two.
// =stuck: no write of data ever ends, as on a disk that does not answer.
// SLACKWATER_TRAINER_KEEPER=PROGRAM: with a memory tier. SLACKWATER_TRAINER_POOL_MIB: the size of its pool. "staged":
// also says "staged N" as soon as the step is staged.
// Lines: "restored N" (0: a fresh start), "committed N", "done N". Exit code 3 when restored bytes are not those of the
// step they claim.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "engine/engine_impl.hpp"
#include "slackwater/engine.hpp"
#include "support/fault_file_system.hpp"
#include "support/global_pattern_state.hpp"
#include "support/nfs_file_system.hpp"
#include "support/pattern_state.hpp"

namespace {

using slackwater::Engine;
using slackwater::Level;
using slackwater::Options;
using slackwater::Snapshot;
using slackwater::test::GlobalPatternState;
using slackwater::test::NfsFileSystem;
using slackwater::test::PatternState;

constexpr int kUsage = 2;
constexpr int kWrongBytes = 3;
constexpr int kFailed = 4;

// One write: whoever reads the pipe sees whole lines, and nothing is left in a buffer when we die.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::_Exit(kFailed);
}

int complain(int code, const std::string& what) {
  fmt::print(stderr, "kill_trainer: {}\n", what);
  return code;
}

std::string_view disk_kind() {
  const char* kind = std::getenv("SLACKWATER_TRAINER_DISK");
  return kind == nullptr ? "" : kind;
}

slackwater::Result<Engine> open_on_its_disk(const Options& options, slackwater::FileSystem& real) {
  static const slackwater::SystemClock clock;
  if (disk_kind().empty() || disk_kind() == "small" || disk_kind() == "tier") return Engine::open(options);
  if (disk_kind() == "nfs") {
    return slackwater::open_engine(options, {.fs = std::make_unique<NfsFileSystem>(real, clock), .clock = nullptr});
  }
  auto disk = std::make_unique<slackwater::test::FaultFileSystem>(real);
  if (disk_kind() == "flaky") disk->fail_each_read_once(EIO);
  if (disk_kind() == "slow" && options.rank == 1) {
    disk->delay(slackwater::test::FsCall::kQueueWrite, std::chrono::milliseconds(20),
                {.times = slackwater::test::kAlways});
  }
  if (disk_kind() == "stuck") disk->hold_writes();
  return slackwater::open_engine(options, {.fs = std::move(disk), .clock = nullptr});
}

// What the state of a step is a function of: something else on each rank, unless they hold it together.
struct Numbers {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  [[nodiscard]] std::uint64_t of(std::uint64_t step) const { return step * world + rank; }
};

// As a training loop would: a little of the state at a time, so that a kill meets it anywhere.
template <class AnyState>
int train(Engine& engine, AnyState& state, const Numbers& numbers, std::uint64_t step, std::uint64_t last,
          std::string_view when) {
  const bool report_early = when == "captured";
  std::deque<Snapshot> under_way;
  const auto report = [&](bool all) -> bool {
    while (!under_way.empty()) {
      Snapshot& oldest = under_way.front();
      if (!all && oldest.progress().level != Level::kCommitted && !oldest.error()) return true;
      if (const auto status = oldest.wait(Level::kCommitted); !status) {
        complain(kFailed, status.error().to_string());
        return false;
      }
      if (!report_early) say(fmt::format("committed {}", oldest.step()));
      under_way.pop_front();
    }
    return true;
  };
  for (++step; step <= last; ++step) {
    if (const auto fenced = engine.fence(); !fenced) return complain(kFailed, fenced.error().to_string());
    state.fill(numbers.of(step));
    auto saved = engine.save(step, state.state());
    if (!saved) return complain(kFailed, saved.error().to_string());
    under_way.push_back(std::move(**saved));
    if (when == "staged") {
      if (const auto staged = under_way.back().wait(Level::kStaged); !staged)
        return complain(kFailed, staged.error().to_string());
      say(fmt::format("staged {}", step));
    }
    if (report_early) say(fmt::format("committed {}", step));
    if (!report(false)) return kFailed;
  }
  return report(true) ? 0 : kFailed;
}

template <class AnyState>
int run(const Options& options, AnyState state, const Numbers& numbers, std::uint64_t steps, std::string_view when) {
  const auto real = slackwater::make_posix_file_system();
  auto engine = open_on_its_disk(options, *real);
  if (!engine) return complain(kFailed, engine.error().to_string());
  const auto restored = engine->restore({}, state.plan());
  if (!restored) return complain(kFailed, restored.error().to_string());
  std::uint64_t step = 0;
  if (*restored) {
    step = (*restored)->version.step;
    if (!(*restored)->damaged.empty()) return complain(kWrongBytes, (*restored)->damaged[0]);
    if (state.number() != numbers.of(step))
      return complain(kWrongBytes, fmt::format("step {} holds {}", step, state.number()));
    if (const auto difference = state.difference()) return complain(kWrongBytes, *difference);
  }
  say(fmt::format("restored {}", step));
  if (const int failed = train(*engine, state, numbers, step, step + steps, when); failed != 0) return failed;
  if (const auto closed = engine->close(); !closed) return complain(kFailed, closed.error().to_string());
  say(fmt::format("done {}", step + steps));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7 && argc != 8) {
    return complain(kUsage,
                    "usage: kill_trainer DIRECTORY SIZE_MIB STEPS committed|captured [RANK WORLD [local|global]]");
  }
  const std::uint64_t size_bytes = std::strtoull(argv[2], nullptr, 10) << 20;
  const std::uint64_t steps = std::strtoull(argv[3], nullptr, 10);
  const std::string_view when = argv[4];
  Options options;
  options.path = argv[1];
  options.slab_bytes = 1u << 20;
  options.pool_bytes = 4u << 20;
  if (disk_kind() == "small") options.in_flight = 1;
  if (disk_kind() == "tier") {
    options.tiers = {
        {.location = options.path + "-lower", .every = 2, .keep = 3, .bandwidth_bytes = 200u << 20, .backlog = 2}};
  }
  if (const char* keeper = std::getenv("SLACKWATER_TRAINER_KEEPER"); keeper != nullptr && *keeper != '\0') {
    options.memory = true;
    options.keeper = keeper;
    options.memory_timeout = std::chrono::seconds(60);
    const char* pool = std::getenv("SLACKWATER_TRAINER_POOL_MIB");
    options.pool_bytes = pool == nullptr ? 0 : std::strtoull(pool, nullptr, 10) << 20;
  }
  if (argc > 5) {
    options.rank = static_cast<std::uint32_t>(std::strtoul(argv[5], nullptr, 10));
    options.world = static_cast<std::uint32_t>(std::strtoul(argv[6], nullptr, 10));
    options.fan_in = 2;
    options.local_ranks = options.world;
  }
  if (argc == 8 && std::string_view(argv[7]) == "global")
    return run(options, GlobalPatternState(size_bytes, options.rank, options.world), {0, 1}, steps, when);
  return run(options,
             PatternState({{"embedding", size_bytes / 2 + 13},
                           {"layer.0.weight", size_bytes / 4},
                           {"layer.1.weight", size_bytes / 4 - 4096},
                           {"bias", 4096},
                           {"scale", 1}}),
             {options.rank, options.world}, steps, when);
}
