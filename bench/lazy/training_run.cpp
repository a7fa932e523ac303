#include "bench/lazy/training_run.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"

namespace slackwater::bench {
namespace {

constexpr std::chrono::milliseconds kProbeTime{500};

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Wall and CPU time of calls made by this thread.
class CallTimer {
 public:
  template <class Call>
  Status time(Call call) {
    const double wall = seconds_of(CLOCK_MONOTONIC);
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    Status status = call();
    last_s = seconds_of(CLOCK_MONOTONIC) - wall;
    wall_s += last_s;
    cpu_s += seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    return status;
  }
  double last_s = 0;
  double wall_s = 0;
  double cpu_s = 0;
};

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const SimulatedGpu& gpu, const std::string& parent) {
  std::string directory = parent + "/slackwater-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr)
    return fail(error_from_errno(errno, "cannot make a directory for the benchmark; name another with --dir", parent));
  std::unique_ptr<Runner> runner(new Runner(gpu, std::move(directory)));
  runner->descriptor_ = UniqueFd(::open(runner->directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!runner->descriptor_) return fail(error_from_errno(errno, "cannot open the directory", runner->directory_));
  return runner;
}

Runner::~Runner() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

// Empty, and nothing of an earlier run is still on its way to the disk.
Result<std::string> Runner::fresh_directory() {
  std::error_code error;
  for (const auto& old : std::filesystem::directory_iterator(directory_, error))
    std::filesystem::remove_all(old.path(), error);
  std::string made = fmt::format("{}/{}", directory_, ++runs_);
  if (!error) std::filesystem::create_directory(made, error);
  if (error) return fail(error_from_errno(error.value(), "cannot prepare the benchmark's directory", directory_));
  if (::syncfs(descriptor_.get()) != 0)
    return fail(error_from_errno(errno, "cannot sync the benchmark's directory", directory_));
  return made;
}

Result<RunResult> Runner::run(const RunSpec& spec) {
  const cuda::Scope scope(gpu_.context());
  SW_TRY(scope.status());
  SW_TRY(gpu_.set_copy_speed(spec.scale.bandwidth(kPaperCopyBytesPerS)));
  SW_ASSIGN(auto trainer, Trainer::create(gpu_, spec.scale.size(spec.model->state_bytes())));
  StrategyOptions options{.way = spec.way,
                          .write_bytes_per_s = spec.scale.bandwidth(spec.flush_bytes_per_s),
                          .pool_bytes = spec.scale.size(spec.pool_bytes),
                          .keep = spec.keep};
  SW_ASSIGN(options.directory, fresh_directory());
  SW_ASSIGN(auto strategy, make_strategy(gpu_, *trainer, options));
  RunResult result{.state_bytes = trainer->state_bytes()};
  SW_TRY(train(spec, *trainer, *strategy, result));
  result.engine = strategy->facts();
  SW_ASSIGN(result.compared, strategy->check());
  return result;
}

// The host waits for each update, as training loops do that read the loss. So save() finds the device idle, and all of
// its time is blocked time.
Status Runner::train(const RunSpec& spec, Trainer& trainer, Strategy& strategy, RunResult& result) const {
  const auto compute = spec.scale.duration(spec.model->compute_s());
  const auto update = spec.scale.duration(spec.model->update_s);
  std::uint64_t step = 1;
  if (spec.way != Way::kNone) {
    SW_TRY(strategy.save(step));
    SW_TRY(strategy.fence());
    SW_TRY(strategy.finish());
  }
  const double began = gpu_.now_seconds();
  for (unsigned i = 0; i < spec.iterations; ++i) {
    const bool saving = spec.way != Way::kNone && i % spec.every == 0;
    CallTimer calls;
    double blocked_s = 0;
    if (saving) {
      SW_TRY(calls.time([&] { return strategy.save(++step); }));
      blocked_s = calls.last_s;
    }
    SW_TRY(trainer.queue_compute(compute));
    if (saving) SW_TRY(calls.time([&] { return strategy.fence(); }));
    SW_TRY(trainer.queue_update(update));
    SW_TRY(trainer.wait_for_update());
    result.late_s += gpu_.now_seconds() - trainer.update_ended_seconds();
    if (!saving) continue;
    result.blocked_s.push_back(blocked_s + trainer.update_held_seconds());
    result.calls_s.push_back(calls.wall_s);
    result.cpu_s.push_back(calls.cpu_s);
  }
  result.train_s = trainer.update_ended_seconds() - began;
  SW_TRY(strategy.finish());
  result.complete_s = std::max(result.train_s, gpu_.now_seconds() - began);
  return {};
}

Result<SpinProbe> Runner::probe_spinning(const Scale& scale) {
  const cuda::Scope scope(gpu_.context());
  SW_TRY(scope.status());
  SW_TRY(gpu_.set_copy_speed(scale.bandwidth(kPaperCopyBytesPerS)));
  SW_ASSIGN(auto trainer, Trainer::create(gpu_, scale.size(paper_model("7B").state_bytes())));
  StrategyOptions options{.way = Way::kLazyHostFence, .pool_bytes = scale.size(kPaperPoolBytes)};
  SW_ASSIGN(options.directory, fresh_directory());
  SW_ASSIGN(auto strategy, make_strategy(gpu_, *trainer, options));
  SW_TRY(strategy->save(1));
  SW_TRY(strategy->finish());

  SpinProbe probe;
  SW_TRY(gpu_.stall_copies(true));
  Status fenced;
  const Status saved = strategy->save(2);
  std::jthread waiting;
  if (saved) waiting = start_thread("bench-fence", [&](const std::stop_token&) { fenced = strategy->fence(); });
  const double wall = seconds_of(CLOCK_MONOTONIC);
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(kProbeTime);
  probe.cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  probe.waited_s = seconds_of(CLOCK_MONOTONIC) - wall;
  const Status released = gpu_.stall_copies(false);  // even after an error: otherwise nothing could end
  if (waiting.joinable()) waiting.join();
  for (const Status& status : {saved, released, fenced}) SW_TRY(status);
  SW_TRY(strategy->finish());
  SW_TRY(strategy->check());
  probe.spinning_waits = gpu_.spinning_waits();
  return probe;
}

}  // namespace slackwater::bench
