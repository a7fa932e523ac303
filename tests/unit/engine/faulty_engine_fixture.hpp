// An engine on a disk that fails, hangs or is slow when told to.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {

class FaultyEngineTest : public EngineTest {
 protected:
  Engine open_faulty(Options options) {
    static FileSystem* const real = make_posix_file_system().release();  // outlives engines that are left behind
    auto faulty = std::make_unique<FaultFileSystem>(*real);
    fs_ = faulty.get();
    auto engine = open_engine(std::move(options), {.fs = std::move(faulty), .clock = nullptr});
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  struct Hung {
    std::uint64_t step;
    std::chrono::steady_clock::time_point began;  // before the save
    Snapshot snapshot;
  };
  // From now on the disk accepts no writes. A write of this snapshot waits, so it is in flight until release_writes().
  // With a short stall_timeout, a busy machine may give up a snapshot before its first write. It then tries the
  // next step.
  Hung save_hung(Engine& engine, std::uint64_t step, const Model& model) {
    for (const std::uint64_t last = step + kTries; step < last; ++step) {
      const std::uint64_t before = fs_->held_writes();
      const auto began = std::chrono::steady_clock::now();
      fs_->hold_writes();
      Snapshot snapshot = save(engine, step, model);
      while (fs_->held_writes() == before && !snapshot.error()) std::this_thread::yield();
      if (fs_->held_writes() > before) return {step, began, std::move(snapshot)};
      fs_->release_writes();
      static_cast<void>(engine.wait(Level::kCommitted));  // it is cleared away, and not told again
    }
    throw std::runtime_error("no write of any snapshot was held back");
  }
  // After a fence that gave up. It opens when nobody reads the tensors any more. Only if that takes another whole
  // stall_timeout, as on a busy machine, it does not wait for it.
  static void expect_opened(const Hung& hung, std::chrono::milliseconds stall_timeout) {
    EXPECT_TRUE(hung.snapshot.released() || std::chrono::steady_clock::now() - hung.began >= 2 * stall_timeout)
        << "it opened while the tensors were still read";
    EXPECT_TRUE(hung.snapshot.wait_released(std::chrono::minutes(1)));
  }
  FaultFileSystem* fs_ = nullptr;
};

}  // namespace slackwater::test
