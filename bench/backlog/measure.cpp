#include "bench/backlog/measure.hpp"

#include <filesystem>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "bench/backlog/small_copies.hpp"
#include "bench/lazy/trainer.hpp"
#include "bench/statistics.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::bench {
namespace {

// The goals of issue 15.
constexpr double kOfIdle = 3;
constexpr double kOfReference = 1.03;

class BacklogMeasuring {
 public:
  BacklogMeasuring(const SimulatedGpu& gpu, std::string directory, const BacklogPlan& plan,
                   const std::function<void(const std::string&)>& on_run)
      : gpu_(gpu), directory_(std::move(directory)), on_run_(on_run), waits_s_(plan.settings.size()) {
    figures_.plan = plan;
    for (const BacklogSetting& setting : plan.settings) figures_.rows.push_back({.setting = setting});
  }

  Result<BacklogFigures> run() {
    const cuda::Scope scope(gpu_.context());
    SW_TRY(scope.status());
    const BacklogPlan& plan = figures_.plan;
    SW_TRY(gpu_.set_copy_speed(plan.bytes_per_s / plan.scale / plan.slow,
                               std::chrono::duration_cast<std::chrono::nanoseconds>(plan.engine_time * plan.slow)));
    SW_ASSIGN(trainer_, Trainer::create(gpu_, plan.scaled(plan.state_bytes)));
    SW_ASSIGN(small_copies_, SmallCopies::create(gpu_));
    figures_.state_bytes = trainer_->state_bytes();
    for (unsigned repeat = 0; repeat < plan.repeats; ++repeat) {
      on_run_(fmt::format("repeat {} of {}: idle", repeat + 1, plan.repeats));
      for (std::size_t copied = 0; copied < plan.idle_copies; ++copied) {
        SW_ASSIGN(const std::optional<double> on_device_s, small_copies_->copy_when_idle());
        add(on_device_s, idle_s_);
      }
      // Forwards and backwards in turn, so that a machine that gets busier favours none.
      for (std::size_t i = 0; i < figures_.rows.size(); ++i) {
        const std::size_t index = repeat % 2 == 0 ? i : figures_.rows.size() - 1 - i;
        on_run_(fmt::format("repeat {} of {}: {}", repeat + 1, plan.repeats, setting_text(plan.settings[index])));
        SW_TRY(measure(index));
      }
    }
    SW_TRY(summarize());
    judge();
    return std::move(figures_);
  }

 private:
  Status measure(std::size_t index) {
    const std::string directory = directory_ + "/backlog";
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    Status status = measure_in(index, directory);
    std::filesystem::remove_all(directory, ignored);
    return status;
  }

  Status measure_in(std::size_t index, const std::string& directory) {
    const BacklogPlan& plan = figures_.plan;
    BacklogRow& row = figures_.rows[index];
    const std::uint64_t slab_bytes = plan.scaled(static_cast<double>(plan.slab_bytes));
    // The pool holds the state: the disk is not what is measured.
    Options options{.path = directory,
                    .pool_bytes = (trainer_->state_bytes() / slab_bytes + 4) * slab_bytes,
                    .slab_bytes = slab_bytes,
                    .keep = 1,
                    .cuda_driver = gpu_.path(),
                    .copies_ahead_bytes = plan.scaled(static_cast<double>(row.setting.copies_ahead_bytes)),
                    .copy_turn_bytes = plan.scaled(static_cast<double>(row.setting.copy_turn_bytes)),
                    .run_name = "bench backlog"};
    SW_ASSIGN(Engine engine, Engine::open(std::move(options)));
    std::vector<double> staged_s;
    for (std::uint64_t step = 0; step <= plan.saves; ++step) {
      SW_ASSIGN(auto snapshot, engine.save(step, trainer_->state()));
      if (step > 0) SW_TRY(train_until_staged(*snapshot, waits_s_[index]));  // the first one makes threads and pool
      SW_TRY(engine.wait(Level::kCommitted));
      if (step > 0) staged_s.push_back(snapshot->stats().staged_seconds / plan.slow);
    }
    row.staged_s.push_back(median(staged_s));
    SW_TRY(engine.close());
    SW_TRY(trainer_->compare_checkpoint(directory, plan.saves, trainer_->version()));
    ++figures_.compared;
    return {};
  }

  // A small copy every few milliseconds, as by a training loop that reads a loss. There is no fence, because the
  // trainer must be able to pass only until it is called.
  Status train_until_staged(const Snapshot& snapshot, std::vector<double>& waits_s) {
    std::uniform_int_distribution<int> pause_us(500, 2'500);
    while (snapshot.progress().level < Level::kStaged && !snapshot.progress().failed) {
      SW_ASSIGN(const std::optional<double> on_device_s, small_copies_->copy());
      add(on_device_s, waits_s);
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us(random_)));
    }
    return {};
  }

  void add(const std::optional<double>& on_device_s, std::vector<double>& waits_s) {
    if (on_device_s) {
      waits_s.push_back(*on_device_s / figures_.plan.slow +
                        std::chrono::duration<double>(figures_.plan.call_time).count());
    } else {
      ++figures_.held_up;
    }
  }

  Status summarize() {
    const std::optional<Waits> idle = Waits::of(idle_s_);
    if (!idle) return fail(ErrorKind::kTimeout, "the machine is too busy to time a single copy; run it again later");
    figures_.idle = *idle;
    const std::vector<double>& reference_s = figures_.rows.front().staged_s;
    for (std::size_t i = 0; i < figures_.rows.size(); ++i) {
      BacklogRow& row = figures_.rows[i];
      row.waits = Waits::of(waits_s_[i]);
      row.median_staged_s = median(row.staged_s);
      std::vector<double> ratios;
      for (std::size_t repeat = 0; repeat < row.staged_s.size(); ++repeat)
        ratios.push_back(row.staged_s[repeat] / reference_s[repeat]);
      row.median_of_reference = median(ratios);
    }
    return {};
  }

  void judge() {
    for (const BacklogRow& row : figures_.rows) {
      if (row.setting != default_setting() || !row.waits) continue;
      figures_.verdicts.push_back(
          {"small copy while the state leaves, p99 / idle", row.waits->p99_s / figures_.idle.p50_s, kOfIdle});
      figures_.verdicts.push_back({"time until staged / all at once", row.median_of_reference, kOfReference});
    }
  }

  const SimulatedGpu& gpu_;
  const std::string directory_;
  const std::function<void(const std::string&)>& on_run_;
  BacklogFigures figures_;
  std::vector<double> idle_s_;
  std::vector<std::vector<double>> waits_s_;  // by setting
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<SmallCopies> small_copies_;
  std::mt19937_64 random_{15};
};

}  // namespace

std::string setting_text(const BacklogSetting& setting) {
  if (setting.copies_ahead_bytes == 0) return "all at once";
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  if (setting.copy_turn_bytes == 0) return fmt::format("{:g} MiB ahead, one stream", mib(setting.copies_ahead_bytes));
  return fmt::format("{:g} MiB ahead, turns of {:g} MiB", mib(setting.copies_ahead_bytes),
                     mib(setting.copy_turn_bytes));
}

BacklogSetting default_setting() {
  const Options defaults;
  return {defaults.copies_ahead_bytes, defaults.copy_turn_bytes};
}

std::optional<Waits> Waits::of(const std::vector<double>& samples_s) {
  if (samples_s.empty()) return std::nullopt;
  return Waits{samples_s.size(), median(samples_s), quantile(samples_s, 0.99), quantile(samples_s, 1)};
}

BacklogPlan BacklogPlan::full() {
  const BacklogSetting usual = default_setting();
  BacklogPlan plan;
  plan.settings = {{}};
  for (const std::uint64_t turn : {std::uint64_t{0}, usual.copy_turn_bytes})
    for (const std::uint64_t ahead : {128, 64, 32, 16, 8, 4}) plan.settings.push_back({ahead * kMiB, turn});
  for (const std::uint64_t turn : {8 * kMiB, 4 * kMiB, kMiB, kMiB / 2})
    plan.settings.push_back({usual.copies_ahead_bytes, turn});
  return plan;
}

BacklogPlan BacklogPlan::quick() {
  BacklogPlan plan;
  plan.state_bytes = 5e8;
  plan.settings = {{}, {64 * kMiB, 0}, default_setting()};
  plan.repeats = 1;
  plan.idle_copies = 100;
  return plan;
}

Result<BacklogFigures> measure_backlog(const SimulatedGpu& gpu, const std::string& directory, const BacklogPlan& plan,
                                       const std::function<void(const std::string&)>& on_run) {
  return BacklogMeasuring(gpu, directory, plan, on_run).run();
}

}  // namespace slackwater::bench
