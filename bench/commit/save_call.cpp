// What save() costs the trainer's thread: an engine alone, and the same as rank 0 of many, whose others are light.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "bench/commit/light_ranks.hpp"
#include "bench/statistics.hpp"
#include "os/durable.hpp"
#include "ranks/key_value_transport.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::bench {
namespace {

constexpr std::size_t kTensors = 64;
constexpr std::size_t kTensorBytes = 256u << 10;
constexpr std::chrono::minutes kEngineTimeLimit{2};

// Ranks 1 and up.
class LightOthers {
 public:
  LightOthers(FileSystem& fs, const Clock& clock, std::string directory, std::uint32_t ranks)
      : fs_(fs), clock_(clock), directory_(std::move(directory)), ranks_(ranks), transport_(fs, clock, directory_) {}

  // Rank 0 has begun to save its first step.
  Status join() {
    SW_TRY(until([&] { return has_session(); }));
    std::vector<std::string> ids;
    for (std::uint32_t rank = 1; rank < ranks_; ++rank) {
      KeyValueTransport own(fs_, clock_, directory_);
      ids.push_back(random_id());
      KeyValueTransport& transport = rank == 1 ? transport_ : own;
      static_cast<void>(transport.rendezvous({rank, ranks_, ids.back(), ranks_}, {clock_.now(), {}}));
    }
    SW_TRY(transport_.rendezvous({1, ranks_, ids.front(), ranks_}, {clock_.now() + kEngineTimeLimit, {}}));
    SW_TRY(until([&] { return newest_attempt_number(fs_, directory_).value_or(0) > 0; }));
    SW_ASSIGN(attempt_, read_attempt(fs_, directory_, 1));
    return {};
  }

  Status vote(std::uint64_t step) {
    const VersionName version{step, attempt_.number};
    const std::string path = fmt::format("{}/{}", directory_, version_directory(version));
    SW_TRY(ensure_directory(fs_, path));
    for (std::uint32_t rank = 1; rank < ranks_; ++rank) {
      const Record record = light_record(attempt_, step, rank);
      SW_TRY(write_light_record(fs_, path, record));
      CommitProtocol protocol({.rank = rank, .world = ranks_, .fan_in = ranks_, .timeout = kEngineTimeLimit},
                              transport_, fs_, clock_);
      IndexCache index_cache;  // forgets: its votes are whole, always
      SW_TRY(protocol.vote(version, path, light_vote(record, no_tensors(rank)), index_cache, {}));
    }
    return {};
  }

 private:
  static IndexPart no_tensors(std::uint32_t rank) {
    std::string text = serialize_index({});
    const Digest128 digest = digest128(text);
    return {rank, 1, digest, std::move(text)};
  }
  template <class Condition>
  Status until(const Condition& condition) {
    for (const TimePoint deadline = clock_.now() + kEngineTimeLimit; !condition();) {
      if (clock_.now() > deadline) return fail(ErrorKind::kTimeout, "the engine did not begin to save", directory_);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
  bool has_session() {
    const auto entries = fs_.list(fmt::format("{}/{}", directory_, kControlDirectory));
    return entries &&
           std::ranges::any_of(*entries, [](const auto& entry) { return entry.name.starts_with("session-"); });
  }

  FileSystem& fs_;
  const Clock& clock_;
  const std::string directory_;
  const std::uint32_t ranks_;
  KeyValueTransport transport_;
  Attempt attempt_;
};

}  // namespace

Result<SaveRow> measure_saves(const std::string& directory, const CommitPlan& plan, std::uint32_t ranks) {
  const auto fs = make_posix_file_system();
  const SystemClock clock;
  SW_ASSIGN(
      Engine engine,
      Engine::open(
          {.path = directory, .world = ranks, .commit_timeout = kEngineTimeLimit, .fan_in = std::max(ranks, 2u)}));
  LightOthers others(*fs, clock, directory, ranks);
  const std::vector<std::byte> memory(kTensors * kTensorBytes);
  std::vector<double> wall_s;
  std::vector<double> cpu_s;
  for (std::uint64_t step = 1; step <= plan.saves; ++step) {
    State state;
    for (std::size_t i = 0; i < kTensors; ++i) {
      state.tensors.push_back({.name = fmt::format("layer.{}.weight", i),
                               .dtype = DType::kU8,
                               .shape = {static_cast<std::int64_t>(kTensorBytes)},
                               .data = memory.data() + i * kTensorBytes});
    }
    const auto began = std::chrono::steady_clock::now();
    const double cpu = thread_cpu_seconds();
    SW_TRY(engine.save(step, std::move(state)));
    if (step > 1) {  // the first makes pool and threads
      cpu_s.push_back(thread_cpu_seconds() - cpu);
      wall_s.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    }
    if (ranks > 1 && step == 1) SW_TRY(others.join());
    if (ranks > 1) SW_TRY(others.vote(step));
    SW_TRY(engine.wait(Level::kCommitted));  // so that nothing else runs while the next one is timed
  }
  SW_TRY(engine.close());
  return SaveRow{ranks, median(std::move(wall_s)), median(std::move(cpu_s))};
}

}  // namespace slackwater::bench
