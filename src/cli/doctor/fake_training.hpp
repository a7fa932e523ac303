// FakeTraining: a small training run on one device, whose state lies in an arena. Doctor's checks save it, update it
// and compare what comes back. There are three arenas of equal size: the state, what the next update writes, and what
// was restored.
// Owner: one check. Thread rule: one thread. Lifetime: the Scratch outlives it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/doctor/aligned_buffer.hpp"
#include "cli/doctor/settings.hpp"
#include "device/scratch.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::cli::doctor {

// An engine in a directory of its own, which is removed with it. Where a device or a disk hangs, closing would hang
// too. Then the engine is left behind, with its threads: the process that runs the checks ends soon.
class EngineRun {
 public:
  // `options` from Settings::engine_options().
  [[nodiscard]] static Result<EngineRun> open(const Settings& settings, Options options);
  EngineRun(EngineRun&&) noexcept = default;
  EngineRun& operator=(EngineRun&&) = delete;
  ~EngineRun();

  [[nodiscard]] Engine& operator*() const { return *engine_; }
  [[nodiscard]] Engine* operator->() const { return engine_.get(); }
  Status close();  // within Settings::time_limit()

 private:
  EngineRun(Engine engine, std::string path, std::chrono::milliseconds time_limit)
      : engine_(std::make_unique<Engine>(std::move(engine))), path_(std::move(path)), time_limit_(time_limit) {}

  std::unique_ptr<Engine> engine_;
  std::string path_;
  std::chrono::milliseconds time_limit_;
};

// A tensor in the arena: `rows` rows of `width` bytes, `pitch` apart.
struct Slice {
  std::uint64_t offset = 0;
  std::uint64_t width = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
  bool at_once = false;
};

class FakeTraining {
 public:
  [[nodiscard]] static Result<FakeTraining> begin(Scratch& scratch, const Settings& settings,
                                                  std::uint64_t arena_bytes);

  // Brings the next content, made from `seed`, to the device. Queued.
  [[nodiscard]] Status upload_next(std::uint64_t seed);
  // Writes the next content over the whole state. Queued, so it runs after what the stream waits for.
  [[nodiscard]] Status update();
  // What the state holds once everything queued has run.
  [[nodiscard]] std::span<const std::byte> expected() const { return expected_.bytes(); }

  [[nodiscard]] State state(std::span<const Slice> slices) const;
  // Restores a step into the third arena and fetches it. nullopt: all bytes are equal to `expected`; else what differs.
  [[nodiscard]] Result<std::optional<std::string>> differs(Engine& engine, std::uint64_t step,
                                                           std::span<const Slice> slices,
                                                           std::span<const std::byte> expected);
  [[nodiscard]] Status wait() { return scratch_->wait(settings_->time_limit()); }
  [[nodiscard]] std::vector<StreamRef> streams() const { return scratch_->streams(); }

 private:
  FakeTraining(Scratch& scratch, const Settings& settings, std::uint64_t arena_bytes);

  Scratch* scratch_;
  const Settings* settings_;
  std::uint64_t arena_bytes_;
  std::byte* state_ = nullptr;
  std::byte* next_ = nullptr;
  std::byte* restored_ = nullptr;
  std::byte* to_device_ = nullptr;    // pinned
  std::byte* from_device_ = nullptr;  // pinned
  AlignedBuffer expected_;
};

}  // namespace slackwater::cli::doctor
