#include "cli/doctor/copies.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/doctor/fake_training.hpp"
#include "cli/doctor/storage.hpp"
#include "cli/doctor/thresholds.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::uint64_t kSpeedBytes = 512ull << 20;
constexpr std::uint64_t kQuickSpeedBytes = 32ull << 20;
constexpr std::uint64_t kSmallBytes = 4096;           // what loss.item() moves, and a little more
constexpr std::uint64_t kHostCallBytes = 1ull << 20;  // a copy that a data loader makes
constexpr std::size_t kIdleCalls = 200;
constexpr std::size_t kFewestCalls = 100;  // while copying, for a p99 worth its name
constexpr std::size_t kQuickCalls = 10;
constexpr int kMostSaves = 6;

struct Speeds {
  Rates rates;
  Latencies small_copy;
  Latencies launch;
};

// The engine, a state, and memory for bare copies.
class SpeedRun {
 public:
  SpeedRun(const Settings& settings, Scratch& scratch, std::uint64_t size_bytes)
      : settings_(settings), scratch_(scratch), size_bytes_(size_bytes), on_host_(scratch.streams().empty()) {}

  Result<Speeds> measure() {
    SW_ASSIGN(state_, scratch_.allocate(size_bytes_));
    SW_ASSIGN(other_, scratch_.allocate(kHostCallBytes));
    SW_ASSIGN(host_, scratch_.allocate_pinned(size_bytes_));
    fill_random({host_, size_bytes_}, 3);
    SW_TRY(scratch_.upload(state_, host_, size_bytes_));
    SW_TRY(scratch_.wait(settings_.time_limit()));
    Options options = settings_.engine_options("speed");
    options.pool_bytes = size_bytes_ + 4 * options.slab_bytes;  // copies never wait for the disk
    SW_ASSIGN(EngineRun engine, EngineRun::open(settings_, std::move(options)));
    SW_TRY(engine->prepare(state()));
    SW_TRY(engine->wait_prepared(settings_.time_limit()));

    Speeds speeds;
    const int pairs = settings_.quick ? 1 : 5;
    for (int pair = 0; pair < pairs; ++pair) {
      SW_ASSIGN(const double raw, bare_copy());
      SW_ASSIGN(const double ours, engine_copy(*engine));
      speeds.rates.raw.push_back(raw);
      speeds.rates.ours.push_back(ours);
    }
    const std::size_t idle_calls = settings_.quick ? kQuickCalls : kIdleCalls;
    for (std::size_t i = 0; i < idle_calls; ++i) SW_TRY(call(speeds.small_copy.idle, speeds.launch.idle));
    const std::size_t fewest = settings_.quick ? kQuickCalls : kFewestCalls;
    for (int save = 0; save < kMostSaves && speeds.small_copy.copying.size() < fewest; ++save) {
      SW_ASSIGN(auto snapshot, engine->save(step_++, state()));
      // No fence: copies go on by themselves, and the trainer's calls come in between.
      while (snapshot->progress().level < Level::kStaged && !snapshot->progress().failed)
        SW_TRY(call(speeds.small_copy.copying, speeds.launch.copying));
      SW_TRY(snapshot->wait(Level::kCommitted, settings_.time_limit()));
    }
    SW_TRY(engine.close());
    return speeds;
  }

 private:
  State state() const {
    State state;
    state.tensors.push_back({.name = "state",
                             .shape = {static_cast<std::int64_t>(size_bytes_)},
                             .data = state_,
                             .device = scratch_.device()});
    state.after = scratch_.streams();
    return state;
  }

  Result<double> bare_copy() {
    const Stopwatch watch;
    SW_TRY(scratch_.download(host_, state_, size_bytes_));
    SW_TRY(scratch_.wait(settings_.time_limit()));
    return static_cast<double>(size_bytes_) / watch.seconds() / 1e9;
  }

  // GB/s from the first slab that has arrived to the last: what comes before is work on files.
  Result<double> engine_copy(Engine& engine) {
    SW_ASSIGN(auto snapshot, engine.save(step_++, state()));
    if (!on_host_) SW_TRY(snapshot->fence(scratch_.streams()));  // has all copies queued
    std::uint64_t first_bytes = 0;
    double first_seconds = 0;
    const Stopwatch watch;
    while (true) {
      const Progress progress = snapshot->progress();
      if (progress.failed || progress.level >= Level::kStaged) break;
      if (first_bytes == 0 && progress.staged_bytes > 0) {
        first_bytes = progress.staged_bytes;
        first_seconds = watch.seconds();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const double seconds = watch.seconds();
    SW_TRY(snapshot->wait(Level::kCommitted, settings_.time_limit()));
    // Staged at the first look: too quick to measure from slab to slab.
    if (first_bytes == 0) return static_cast<double>(size_bytes_) / seconds / 1e9;
    return static_cast<double>(size_bytes_ - std::min(first_bytes, size_bytes_)) / (seconds - first_seconds) / 1e9;
  }

  // What a trainer does between two steps: a small copy that it waits for, and a call that it does not wait for.
  Status call(std::vector<double>& small_copy, std::vector<double>& launch) {
    const std::uint64_t bytes = on_host_ ? kHostCallBytes : kSmallBytes;
    const Stopwatch copying;
    SW_TRY(scratch_.download(host_, other_, bytes));
    SW_TRY(scratch_.wait(settings_.time_limit()));
    small_copy.push_back(copying.seconds() * 1e3);
    if (on_host_) return {};
    const Stopwatch launching;
    SW_TRY(scratch_.update(other_ + bytes, other_, bytes));
    launch.push_back(launching.seconds() * 1e3);
    return scratch_.wait(settings_.time_limit());
  }

  const Settings& settings_;
  Scratch& scratch_;
  const std::uint64_t size_bytes_;
  const bool on_host_;
  std::byte* state_ = nullptr;
  std::byte* other_ = nullptr;
  std::byte* host_ = nullptr;
  std::uint64_t step_ = 0;
};

std::string milliseconds_text(double milliseconds) { return format_seconds(milliseconds / 1e3); }

}  // namespace

Check latency_check(std::string name, const Latencies& latencies, Band p99_ms, bool quick) {
  Check check{.section = "interference", .name = std::move(name)};
  const double p99 = percentile(latencies.copying, 0.99);
  const double idle_p99 = percentile(latencies.idle, 0.99);
  check.figure =
      fmt::format("p50 {}, p99 {} while copying; {} and {} idle", milliseconds_text(median(latencies.copying)),
                  milliseconds_text(p99), milliseconds_text(median(latencies.idle)), milliseconds_text(idle_p99));
  check.threshold = fmt::format("p99 of {}", milliseconds_text(p99_ms.warn));
  check.verdict = soften(at_most(p99, p99_ms), quick);
  if (latencies.copying.empty()) {
    check.verdict = Verdict::kSkip;
    check.figure = "the copies were over before a call could be measured";
  } else if (check.verdict != Verdict::kPass && idle_p99 > p99 / 2) {
    check.verdict = Verdict::kWarn;  // no fault of the copies
    check.remedy = "this machine is as slow when nothing is copied: see top";
  } else if (check.verdict != Verdict::kPass) {
    check.remedy = "give the job more processors";
  }
  return check;
}

Check small_copy_check(std::string name, const Latencies& latencies, bool quick) {
  const Band band{.warn = kSmallCopyOverIdle * percentile(latencies.idle, 0.99) + kSmallCopyTurnMs,
                  .fail = kSmallCopyFailMs};
  Check check = latency_check(std::move(name), latencies, band, quick);
  if (check.verdict == Verdict::kWarn || check.verdict == Verdict::kFail)
    check.remedy = "lower copy_turn, and leave CUDA_DEVICE_MAX_CONNECTIONS unset (docs/devices.md, copies ahead)";
  return check;
}

void copy_checks(const Settings& settings, Scratch& scratch, std::uint64_t most_bytes, const Emit& emit) {
  const std::uint64_t size_bytes =
      round_down(std::min(most_bytes, settings.quick ? kQuickSpeedBytes : kSpeedBytes), 1u << 20);
  Check check{.section = "copies", .name = scratch.name() + " speed"};
  const bool on_host = scratch.streams().empty();
  auto speeds = SpeedRun(settings, scratch, size_bytes).measure();
  if (!speeds) {
    check.verdict = Verdict::kFail;
    check.figure = speeds.error().to_string();
    check.remedy = on_host ? "report it with slackwater doctor --json" : "see nvidia-smi and dmesg for its state";
    emit(std::move(check));
    return;
  }
  check.remedy = on_host ? "other work on this machine? run it again when it is idle"
                         : "see the line about registering, and whether other work uses this GPU";
  emit(ratio_check(std::move(check), speeds->rates, on_host ? "memcpy" : "a bare pinned copy", settings.soft));
  if (on_host) {
    emit(latency_check("host memory copy of 1 MiB", speeds->small_copy, kHostCopyP99Ms, settings.soft));
    return;
  }
  emit(small_copy_check(scratch.name() + " copy of 4 KiB", speeds->small_copy, settings.soft));
  emit(latency_check(scratch.name() + " launch", speeds->launch, kLaunchP99Ms, settings.soft));
}

}  // namespace slackwater::cli::doctor
