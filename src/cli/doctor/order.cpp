#include "cli/doctor/order.hpp"

#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/doctor/fake_training.hpp"
#include "cli/text.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kArenaBytes = 8 * kMiB;
constexpr int kRounds = 200;
constexpr int kQuickRounds = 20;
constexpr double kRoundsSeconds = 15;  // a slow disk gets fewer rounds
constexpr std::uint64_t kUnfencedBytes = 48 * kMiB;
constexpr std::uint64_t kSmallTensors = 1'200;  // more than one batch takes, in one slab
constexpr std::uint64_t kLeftBytes = 8 * kMiB;
constexpr const char* kReport = "do not train with this; report it with slackwater doctor --json";

Check copies_line(const Scratch& scratch, const char* what) {
  return {.section = "copies", .name = fmt::format("{} {}", scratch.name(), what)};
}

Check failed(Check check, std::string figure, const char* remedy = kReport) {
  check.verdict = Verdict::kFail;
  check.figure = std::move(figure);
  check.remedy = remedy;
  return check;
}

// Cuts the arena into tensors of 1 byte to 1 MiB, some of them strided, some volatile, some bytes left out.
std::vector<Slice> random_slices(std::mt19937_64& random, std::uint64_t arena_bytes) {
  std::vector<Slice> slices;
  for (std::uint64_t at = random() % 512; slices.size() < 24;) {
    Slice slice{
        .offset = at, .width = 1 + random() % (std::uint64_t{1} << (random() % 21)), .at_once = random() % 4 == 0};
    if (random() % 4 == 0) {
      slice.width = 1 + random() % 4096;
      slice.rows = 2 + random() % 30;
      slice.pitch = slice.width + random() % 1024;
    }
    at += slice.rows > 1 ? slice.rows * slice.pitch : slice.width;
    if (at > arena_bytes) break;
    slices.push_back(slice);
    at += random() % 512;
  }
  return slices;
}

// The guard's own message tells users to call fence(). Here it was called.
std::string reason(const Error& error) {
  if (error.kind != ErrorKind::kTorn) return error.to_string();
  return fmt::format("an update behind the fence reached the snapshot, or copies return wrong bytes ({} is torn)",
                     error.tensor.empty() ? "a tensor" : error.tensor);
}

// Why it went wrong; nullopt if all is well.
using Trouble = std::optional<std::string>;

// One round: the content of the state is known before save(), and an update is queued right behind the fence.
Result<Trouble> training_round(FakeTraining& training, Engine& engine, std::uint64_t step, std::mt19937_64& random,
                               const Settings& settings) {
  const std::vector<Slice> slices = random_slices(random, training.expected().size());
  const std::vector<std::byte> expected(training.expected().begin(), training.expected().end());
  SW_TRY(training.upload_next(step));
  SW_ASSIGN(auto snapshot, engine.save(step, training.state(slices)));
  const Status fenced = random() % 4 == 0 ? snapshot->fence() : snapshot->fence(training.streams());
  SW_TRY(training.update());
  if (!fenced) return Trouble(reason(fenced.error()));
  if (const Status committed = snapshot->wait(Level::kCommitted, settings.time_limit()); !committed)
    return Trouble(reason(committed.error()));
  return training.differs(engine, step, slices, expected);
}

}  // namespace

Check rounds_check(const Settings& settings, Scratch& scratch) {
  Check check = copies_line(scratch, "order");
  const int rounds = settings.quick ? kQuickRounds : kRounds;
  check.threshold = "every byte as at save()";
  Options options = settings.engine_options("order");
  options.slab_bytes = kMiB;
  options.pool_bytes = 4 * kMiB;  // smaller than most states: some fences wait for the disk
  auto training = FakeTraining::begin(scratch, settings, kArenaBytes);
  if (!training) return failed(std::move(check), training.error().to_string());
  auto engine = EngineRun::open(settings, std::move(options));
  if (!engine) return failed(std::move(check), engine.error().to_string());

  std::mt19937_64 random(15);  // the same states in every run
  const Stopwatch watch;
  int done = 0;
  while (done < rounds && (done < kQuickRounds || watch.seconds() < kRoundsSeconds)) {
    const auto trouble = training_round(*training, **engine, static_cast<std::uint64_t>(done), random, settings);
    if (!trouble || *trouble)
      return failed(std::move(check),
                    fmt::format("round {}: {}", done + 1, trouble ? **trouble : reason(trouble.error())));
    ++done;
  }
  check.figure = fmt::format("{} random rounds equal{}", done,
                             done < rounds ? fmt::format(", no more of {} in {:.0f} s", rounds, kRoundsSeconds) : "");
  if (const Status closed = (*engine).close(); !closed) return failed(std::move(check), closed.error().to_string());
  return check;
}

Check missing_fence_check(const Settings& settings, Scratch& scratch) {
  Check check = copies_line(scratch, "missing fence");
  check.threshold = "caught";
  auto training = FakeTraining::begin(scratch, settings, kUnfencedBytes);
  if (!training) return failed(std::move(check), training.error().to_string());
  const std::vector<Slice> whole{{.offset = 0, .width = kUnfencedBytes}};
  // The pool is small, so the disk sets the pace: the update comes after the first samples and long before the last
  // copy. If it was too early or too late on a busy machine, the saved bytes tell, and it is tried again.
  for (std::uint64_t attempt = 0; attempt < 5; ++attempt) {
    Options options = settings.engine_options("unfenced");
    options.slab_bytes = kMiB;
    options.pool_bytes = 4 * kMiB;
    options.copies_ahead_bytes = kMiB;
    auto engine = EngineRun::open(settings, std::move(options));
    if (!engine) return failed(std::move(check), engine.error().to_string());
    const std::vector<std::byte> before(training->expected().begin(), training->expected().end());
    if (const Status uploaded = training->upload_next(attempt + 1); !uploaded)
      return failed(std::move(check), uploaded.error().to_string());
    const auto saved = (*engine)->save(attempt, training->state(whole));
    if (!saved) return failed(std::move(check), saved.error().to_string());
    Snapshot snapshot = **saved;
    const Stopwatch watch;
    while (snapshot.progress().staged_bytes == 0 && !snapshot.progress().failed &&
           watch.seconds() * 1e3 < static_cast<double>(settings.time_limit().count()))
      std::this_thread::yield();
    if (const Status updated = training->update(); !updated)
      return failed(std::move(check), updated.error().to_string());
    const Status committed = snapshot.wait(Level::kCommitted, settings.time_limit());
    if (!committed && committed.error().kind == ErrorKind::kTorn) {
      check.figure = "an update without a fence was caught, and its checkpoint failed";
      return check;
    }
    if (!committed) return failed(std::move(check), committed.error().to_string());
    const auto not_before = training->differs(**engine, attempt, whole, before);
    const auto not_after = training->differs(**engine, attempt, whole, training->expected());
    if (!not_before || !not_after)
      return failed(std::move(check), (not_before ? not_after : not_before).error().to_string());
    if (*not_before && *not_after)
      return failed(std::move(check), "an update without a fence went unnoticed: the checkpoint is torn");
  }
  check.verdict = Verdict::kWarn;
  check.figure = "no update met a copy in 5 tries, so nothing was shown";
  check.remedy = "run it again when the machine is idle";
  return check;
}

Check batches_check(const Settings& settings, Scratch& scratch) {
  Check check = copies_line(scratch, "batched copies");
  check.threshold = "equal to single copies";
  auto training = FakeTraining::begin(scratch, settings, kArenaBytes);
  if (!training) return failed(std::move(check), training.error().to_string());
  std::mt19937_64 random(16);
  std::vector<Slice> slices;
  for (std::uint64_t at = 0; slices.size() < kSmallTensors;) {
    slices.push_back({.offset = at, .width = 1 + random() % 1024});
    at += slices.back().width + random() % 64;
  }
  for (const bool batched : {false, true}) {
    Options options = settings.engine_options("batches");
    options.slab_bytes = kMiB;
    options.pool_bytes = 16 * kMiB;
    options.batched_copies = batched;
    const auto run = [&]() -> Result<Trouble> {
      SW_ASSIGN(EngineRun engine, EngineRun::open(settings, std::move(options)));
      SW_ASSIGN(auto snapshot, engine->save(1, training->state(slices)));
      SW_TRY(snapshot->fence(training->streams()));
      SW_TRY(snapshot->wait(Level::kCommitted, settings.time_limit()));
      SW_ASSIGN(Trouble trouble, training->differs(*engine, 1, slices, training->expected()));
      SW_TRY(engine.close());
      return trouble;
    };
    const auto trouble = run();
    if (!trouble || *trouble)
      return failed(
          std::move(check),
          fmt::format("{} copies: {}", batched ? "batched" : "single", trouble ? **trouble : reason(trouble.error())),
          batched ? "set batched_copies=False, update the driver, and report it" : kReport);
  }
  check.figure = fmt::format("{} equal", plural(kSmallTensors, "tensor"));
  return check;
}

Check full_device_check(const Settings& settings, cuda::CudaScratch& scratch) {
  Check check = copies_line(scratch, "full GPU");
  check.threshold = "saves and restores";
  auto training = FakeTraining::begin(scratch, settings, kArenaBytes);
  if (!training) return failed(std::move(check), training.error().to_string());
  std::mt19937_64 random(17);
  const auto run = [&]() -> Result<Trouble> {
    SW_ASSIGN(const std::uint64_t left, scratch.take_all_but(kLeftBytes));
    Options options = settings.engine_options("full");
    options.slab_bytes = kMiB;
    options.pool_bytes = 16 * kMiB;
    SW_ASSIGN(EngineRun engine, EngineRun::open(settings, std::move(options)));
    SW_ASSIGN(Trouble trouble, training_round(*training, *engine, 1, random, settings));
    SW_TRY(engine.close());
    check.figure = fmt::format("save, restore and compare worked with {} free", format_bytes(left));
    return trouble;
  };
  const auto trouble = run();
  if (!trouble || *trouble) return failed(std::move(check), trouble ? **trouble : reason(trouble.error()));
  return check;
}

}  // namespace slackwater::cli::doctor
