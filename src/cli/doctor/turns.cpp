#include "cli/doctor/turns.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/doctor/thresholds.hpp"
#include "cli/text.hpp"
#include "device/devices.hpp"
#include "stage/pool.hpp"
#include "stage/stager.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::uint64_t kKiB = 1u << 10;
constexpr std::uint64_t kTurns[] = {0, 512 * kKiB, 1024 * kKiB, 2048 * kKiB, 4096 * kKiB, 8192 * kKiB};
constexpr std::uint64_t kMostRunBytes = 1ull << 30;
constexpr std::uint64_t kFewestRunBytes = 32ull << 20;
constexpr double kRunSeconds = 0.04;             // that a state takes to leave
constexpr std::uint64_t kSlabsBesidesAhead = 4;  // so that copies_ahead is the limit, and not the pool
constexpr double kWorthATurn = 0.8;              // of a p99: what is less of a difference may be noise
constexpr std::uint64_t kItemBytes = 4096;       // what loss.item() moves, and a little more
constexpr std::uint64_t kHeaderBytes = 4096;
constexpr unsigned kCopyThreads = 2;  // as the engine's
constexpr int kMostRounds = 9;
constexpr int kFewestRounds = 3;
constexpr std::size_t kIdleCallsPerRound = 40;

// How a job of the stager ended. Shared with its callback, which may come after everybody else has given up.
struct StageEnd {
  Stopwatch watch;
  std::atomic<bool> over = false;
  std::mutex mutex;
  std::condition_variable changed;
  Status status;       // guarded by mutex, like the next
  double seconds = 0;  // until the last slab had arrived
};

// One length of turns, as an engine with this copy_turn has it: streams of its own, and copy threads.
struct Lane {
  Lane(const Settings& settings, Pool& pool, std::uint64_t turn)
      : turn_bytes(turn),
        devices(settings.cuda_driver, Options().batched_copies, turn),
        stager(pool, stager_options()) {}
  static StagerOptions stager_options() {
    const Options defaults;
    return {.copy_threads = kCopyThreads,
            .copies_ahead_bytes = defaults.copies_ahead_bytes,
            .copies_ahead_operations = defaults.copies_ahead_operations};
  }

  const std::uint64_t turn_bytes;
  Devices devices;  // outlives the copies
  Stager stager;
  AsyncDevice* device = nullptr;
  std::vector<double> seconds;  // until staged, by round
  std::vector<double> p99_ms;   // of small copies, by round
};

class TurnsRun {
 public:
  TurnsRun(const Settings& settings, cuda::CudaScratch& scratch) : settings_(settings), scratch_(scratch) {}
  ~TurnsRun() {
    lanes_.clear();
    for (std::byte* const slab : registered_) scratch_.unregister_host(slab);
  }
  TurnsRun(const TurnsRun&) = delete;
  TurnsRun& operator=(const TurnsRun&) = delete;

  Result<TurnCosts> measure(std::uint64_t most_bytes, double seconds) {
    const Stopwatch watch;
    SW_TRY(prepare(std::min(most_bytes, kMostRunBytes)));
    const int most = settings_.quick ? 1 : kMostRounds;
    const int fewest = settings_.quick ? 1 : kFewestRounds;
    for (int round = 0; round < most && (round < fewest || watch.seconds() < seconds); ++round) {
      for (std::size_t i = 0; i < kIdleCallsPerRound; ++i) SW_TRY(small_copy(idle_ms_));
      // Forwards and backwards in turn, so that a machine that gets busier favours none.
      for (std::size_t i = 0; i < lanes_.size(); ++i)
        SW_TRY(measure_round(*lanes_[round % 2 == 0 ? i : lanes_.size() - 1 - i]));
    }
    return summary();
  }
  // The memory for it could not be registered.
  [[nodiscard]] bool refused() const { return refused_; }

 private:
  Status prepare(std::uint64_t state_bytes) {
    const Options defaults;
    const std::uint64_t slabs = defaults.copies_ahead_bytes / defaults.slab_bytes + kSlabsBesidesAhead;
    SW_ASSIGN(const cuda::DeviceFacts facts, scratch_.facts());
    SW_ASSIGN(pool_, Pool::create(defaults.slab_bytes, static_cast<std::uint32_t>(slabs), {}, facts.numa_node,
                                  {.threads = kCopyThreads}));
    pool_->wait_touched();
    for (std::uint64_t at = 0; at < pool_->memory().size(); at += pool_->slab_bytes()) {
      refused_ = true;
      SW_TRY(scratch_.register_host(pool_->memory().subspan(at, pool_->slab_bytes())));
      refused_ = false;
      registered_.push_back(pool_->memory().data() + at);
    }
    SW_ASSIGN(state_, scratch_.allocate(state_bytes));
    SW_ASSIGN(item_, scratch_.allocate(kItemBytes));
    SW_ASSIGN(item_on_host_, scratch_.allocate_pinned(kItemBytes));
    for (const std::uint64_t turn_bytes : kTurns) {
      lanes_.push_back(std::make_unique<Lane>(settings_, *pool_, turn_bytes));
      SW_ASSIGN(lanes_.back()->device, lanes_.back()->devices.cuda(scratch_.device()));
    }
    // The first copies of each pair of streams may have something to set up. The last of these tells how long a run is.
    run_bytes_ = std::min(state_bytes, kFewestRunBytes);
    for (const auto& lane : lanes_) SW_TRY(stage(*lane));
    SW_ASSIGN(const double seconds, stage(no_turns()));
    bytes_per_s_ = static_cast<double>(run_bytes_) / seconds;
    const double wanted =
        std::clamp(bytes_per_s_ * kRunSeconds, static_cast<double>(run_bytes_), static_cast<double>(state_bytes));
    run_bytes_ = round_down(static_cast<std::uint64_t>(wanted), kItemBytes);
    return {};
  }

  Status measure_round(Lane& lane) {
    SW_ASSIGN(const double seconds, stage(lane));
    lane.seconds.push_back(seconds);
    // At any moment of a turn: a copy that always came right after the last one would meet the turn at the same point.
    const std::uint64_t turn_bytes = lane.turn_bytes == 0 ? kCopyTurnBytes : lane.turn_bytes;
    std::uniform_real_distribution<double> pause(0, static_cast<double>(turn_bytes) / bytes_per_s_);
    std::vector<double> waits_ms;
    SW_TRY(stage(lane, [&]() -> Status {
      wait_for(pause(random_));
      return small_copy(waits_ms);
    }));
    if (!waits_ms.empty()) lane.p99_ms.push_back(percentile(std::move(waits_ms), 0.99));
    return {};
  }

  // Seconds until the first `run_bytes_` of the state are staged as by save(), but without a fence and without a disk:
  // a slab that is full is free again. `meanwhile` is called over and over until then.
  Result<double> stage(Lane& lane, const std::function<Status()>& meanwhile = {}) {
    auto end = std::make_shared<StageEnd>();
    auto layout = std::make_shared<SnapshotLayout>();
    const std::uint64_t tensor_bytes = run_bytes_ - kHeaderBytes;
    layout->parts.emplace_back("turns", std::string(kHeaderBytes, ' '),
                               std::vector<Extent>{{.tensor = 0, .offset = kHeaderBytes, .size_bytes = tensor_bytes}});
    layout->stored = {0};
    layout->size_bytes = run_bytes_;
    auto job = std::make_shared<StageJob>();
    job->layout = std::move(layout);
    job->sources.push_back({.memory = {state_, 1, {static_cast<std::int64_t>(tensor_bytes)}, {}},
                            .device = lane.device,
                            .device_index = 0});
    job->names = {"state"};
    SW_ASSIGN(auto copies, lane.device->begin(nullptr, {}, 0));
    job->device_copies.push_back({.device = lane.device, .copies = std::move(copies), .early_filled = nullptr});
    job->on_slab = [](FullSlab) {};  // its lease ends here
    job->on_done = [end](Status status) {
      const std::lock_guard lock(end->mutex);
      end->seconds = end->watch.seconds();
      end->status = std::move(status);
      end->over = true;
      end->changed.notify_all();
    };
    end->watch = {};
    lane.stager.enqueue(std::move(job));
    while (meanwhile && !end->over) SW_TRY(meanwhile());
    std::unique_lock lock(end->mutex);
    if (!end->changed.wait_for(lock, settings_.time_limit(), [&] { return end->over.load(); }))
      return fail(ErrorKind::kTimeout, fmt::format("copies on {} did not finish", scratch_.name()));
    SW_TRY(end->status);
    return end->seconds;
  }

  Status small_copy(std::vector<double>& milliseconds) {
    const Stopwatch watch;
    SW_TRY(scratch_.download(item_on_host_, item_, kItemBytes));
    SW_TRY(scratch_.wait(settings_.time_limit()));
    milliseconds.push_back(watch.seconds() * 1e3);
    return {};
  }

  // Spins at the end, because a sleep ends 50 us late.
  static void wait_for(double seconds) {
    constexpr double kSpinSeconds = 200e-6;
    const Stopwatch watch;
    if (seconds > kSpinSeconds) std::this_thread::sleep_for(std::chrono::duration<double>(seconds - kSpinSeconds));
    while (watch.seconds() < seconds) {
    }
  }

  [[nodiscard]] Lane& no_turns() const { return *lanes_.front(); }

  // Without lanes whose state had left before a small copy was over.
  [[nodiscard]] TurnCosts summary() const {
    TurnCosts costs{.idle_p50_us = median(idle_ms_) * 1e3,
                    .idle_p99_us = percentile(idle_ms_, 0.99) * 1e3,
                    .no_turns_gbs = static_cast<double>(run_bytes_) / median(no_turns().seconds) / 1e9};
    for (const auto& lane : lanes_) {
      if (lane->p99_ms.empty()) continue;
      std::vector<double> ratios;
      for (std::size_t round = 0; round < lane->seconds.size(); ++round)
        ratios.push_back(lane->seconds[round] / no_turns().seconds[round]);
      costs.turns.push_back({.turn_bytes = lane->turn_bytes,
                             .p99_over_idle = median(lane->p99_ms) * 1e3 / costs.idle_p50_us,
                             .staging_over_no_turns = median(std::move(ratios))});
    }
    return costs;
  }

  const Settings& settings_;
  cuda::CudaScratch& scratch_;
  std::unique_ptr<Pool> pool_;  // outlives the lanes
  std::vector<std::byte*> registered_;
  bool refused_ = false;
  std::vector<std::unique_ptr<Lane>> lanes_;  // the one without turns first
  std::byte* state_ = nullptr;
  std::byte* item_ = nullptr;
  std::byte* item_on_host_ = nullptr;
  std::uint64_t run_bytes_ = 0;
  double bytes_per_s_ = 0;
  std::vector<double> idle_ms_;
  std::mt19937_64 random_{14};
};

Check turns_line(std::string name) {
  Check check{.section = "interference", .name = std::move(name) + " copy turns"};
  check.threshold = fmt::format("a turn with p99 up to {:g} x idle, staging up to {:g} x no turns", kSmallCopyOverIdle,
                                kStagingOverNoTurns);
  return check;
}

bool lets_pass(const TurnCost& turn) { return turn.p99_over_idle <= kSmallCopyOverIdle; }
bool is_cheap(const TurnCost& turn) { return turn.staging_over_no_turns <= kStagingOverNoTurns; }

std::string turn_text(const TurnCost& turn) {
  const std::string length = turn.turn_bytes == 0 ? "0 (no turns)" : format_bytes(turn.turn_bytes);
  return fmt::format("copy_turn={}: p99 {:.1f} x idle, staging {:.2f} x", length, turn.p99_over_idle,
                     turn.staging_over_no_turns);
}

// The turn with the smallest `cost` of those that are `fit`. End if none is.
template <class Fit, class Cost>
std::vector<TurnCost>::const_iterator cheapest(const std::vector<TurnCost>& turns, Fit fit, Cost cost) {
  auto best = turns.end();
  for (auto each = turns.begin(); each != turns.end(); ++each)
    if (std::invoke(fit, *each) && (best == turns.end() || std::invoke(cost, *each) < std::invoke(cost, *best)))
      best = each;
  return best;
}

OrderedJson values_of(const TurnCosts& costs, double turn_cost) {
  OrderedJson turns = OrderedJson::array();
  for (const TurnCost& turn : costs.turns)
    turns.push_back({{"copy_turn_bytes", turn.turn_bytes},
                     {"p99_over_idle", turn.p99_over_idle},
                     {"staging_over_no_turns", turn.staging_over_no_turns}});
  return {{"idle_p50_us", costs.idle_p50_us},
          {"idle_p99_us", costs.idle_p99_us},
          {"no_turns_gbs", costs.no_turns_gbs},
          {"turn_cost_us", turn_cost},
          {"turns", std::move(turns)}};
}

}  // namespace

// Per slab there is one copy without turns, and so many turns with them.
double turn_cost_us(const TurnCosts& costs, std::uint64_t slab_bytes) {
  const auto shortest =
      cheapest(costs.turns, [](const TurnCost& turn) { return turn.turn_bytes != 0; }, &TurnCost::turn_bytes);
  if (shortest == costs.turns.end() || shortest->turn_bytes >= slab_bytes || costs.no_turns_gbs <= 0) return 0;
  const double slab_us = static_cast<double>(slab_bytes) / costs.no_turns_gbs / 1e3;
  const double more_turns = static_cast<double>(slab_bytes) / static_cast<double>(shortest->turn_bytes) - 1;
  return std::max(0.0, (shortest->staging_over_no_turns - 1) * slab_us / more_turns);
}

Check turns_check(std::string name, const TurnCosts& costs) {
  Check check = turns_line(std::move(name));
  const double turn_cost = turn_cost_us(costs, Options().slab_bytes);
  const std::string scale = fmt::format("; idle {}, a turn costs {}", format_seconds(costs.idle_p50_us / 1e6),
                                        format_seconds(turn_cost / 1e6));
  check.values = values_of(costs, turn_cost);
  const auto usual = std::ranges::find(costs.turns, kCopyTurnBytes, &TurnCost::turn_bytes);
  if (usual == costs.turns.end()) {
    check.verdict = Verdict::kSkip;
    check.figure = "the copies were over before a small copy could be measured";
    return check;
  }
  const auto meets_both = [](const TurnCost& turn) { return lets_pass(turn) && is_cheap(turn); };
  // Of several, the longest: it costs least.
  const auto shortness = [](const TurnCost& turn) {
    return turn.turn_bytes == 0 ? 0 : 1 / static_cast<double>(turn.turn_bytes);
  };
  const auto best = meets_both(*usual) ? usual : cheapest(costs.turns, meets_both, shortness);
  if (best != costs.turns.end()) {
    check.figure = turn_text(*best);
    if (best == usual) {
      check.figure += " (the default)" + scale;
    } else {
      check.figure += fmt::format("; the default, {}{}", turn_text(*usual), scale);
      check.remedy = fmt::format("set copy_turn={}", best->turn_bytes == 0 ? "0" : format_bytes(best->turn_bytes));
    }
    return check;
  }

  check.verdict = Verdict::kWarn;
  check.figure = turn_text(*usual);
  const auto any = [](const TurnCost&) { return true; };
  auto other = lets_pass(*usual) ? cheapest(costs.turns, is_cheap, &TurnCost::p99_over_idle)
                                 : cheapest(costs.turns, lets_pass, &TurnCost::staging_over_no_turns);
  if (other == costs.turns.end()) {  // none meets even that goal: the one that comes nearest
    other = lets_pass(*usual) ? cheapest(costs.turns, any, &TurnCost::staging_over_no_turns)
                              : cheapest(costs.turns, any, &TurnCost::p99_over_idle);
    if (!lets_pass(*usual) && other->p99_over_idle > kWorthATurn * usual->p99_over_idle) other = usual;
  }
  if (other != usual) check.figure += "; " + turn_text(*other);
  check.figure += scale;
  if (costs.idle_p99_us > kSmallCopyOverIdle * costs.idle_p50_us) {
    check.remedy = "small copies are as slow when nothing is copied: run it again when this machine is idle";
  } else if (other == usual) {
    check.remedy = "keep the default: no other one is better";
  } else {
    check.remedy =
        fmt::format("keep the default, or set copy_turn={} if {} more",
                    other->turn_bytes == 0 ? "0" : format_bytes(other->turn_bytes),
                    lets_pass(*usual) ? "the time until a state is staged matters" : "the latency of .item() matters");
  }
  return check;
}

Check copy_turns_check(const Settings& settings, cuda::CudaScratch& scratch, std::uint64_t most_bytes, double seconds) {
  auto run = std::make_unique<TurnsRun>(settings, scratch);
  const auto costs = run->measure(most_bytes, seconds);
  if (costs) return turns_check(scratch.name(), *costs);
  if (run->refused()) {
    return {.section = "interference",
            .name = scratch.name() + " copy turns",
            .verdict = Verdict::kSkip,
            .figure = "not measured: memory cannot be registered, see the line about that"};
  }
  if (costs.error().kind == ErrorKind::kTimeout) (void)run.release();  // its destructor would wait for what hangs
  Check check = turns_line(scratch.name());
  check.verdict = Verdict::kFail;
  check.figure = costs.error().to_string();
  check.remedy = "see nvidia-smi and dmesg for its state";
  return check;
}

Check no_copy_turns_check(std::string why) {
  Check check{.section = "interference", .name = "copy turns", .verdict = Verdict::kSkip, .figure = std::move(why)};
  return check;
}

}  // namespace slackwater::cli::doctor
