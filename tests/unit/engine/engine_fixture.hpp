// What the engine's tests share: a directory of one's own, states made of random bytes, and the bytes read back.
#pragma once

#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/engine.hpp"
#include "support/bytes.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {

// Tensors of random bytes that stay where they are; state() describes them.
class Model {
 public:
  explicit Model(unsigned seed = 1) : random_(seed) {}

  Bytes& add(const std::string& name, std::uint64_t size_bytes) {
    names_.push_back(name);
    Bytes& bytes = tensors_[name];
    bytes.resize(size_bytes);
    fill_pattern(bytes, random_());
    return bytes;
  }
  Bytes& operator[](const std::string& name) { return tensors_.at(name); }
  void update() {
    for (auto& [name, bytes] : tensors_) fill_pattern(bytes, random_());
  }
  [[nodiscard]] std::map<std::string, Bytes> copy() const { return tensors_; }

  [[nodiscard]] State state() const {
    State state;
    for (const std::string& name : names_) {
      const Bytes& bytes = tensors_.at(name);
      state.tensors.push_back(Tensor{
          .name = name, .dtype = DType::kU8, .shape = {static_cast<std::int64_t>(bytes.size())}, .data = bytes.data()});
    }
    state.tree = R"({"kind":"test"})";
    return state;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::string> names_;
  std::map<std::string, Bytes> tensors_;
};

// Answers a place for every tensor of the checkpoint.
class Reader {
 public:
  Engine::Plan plan() {
    return [this](const Checkpoint& checkpoint) -> Result<std::vector<Target>> {
      read.clear();
      std::vector<Target> targets;
      for (const TensorInfo& info : checkpoint.tensors()) {
        Bytes& bytes = read[info.name];
        bytes.resize(info.size_bytes);
        targets.push_back(Target{.name = info.name, .dtype = info.dtype, .shape = info.shape, .data = bytes.data()});
      }
      tree = checkpoint.tree();
      return targets;
    };
  }
  std::map<std::string, Bytes> read;
  std::string tree;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;
  static constexpr std::uint64_t kTries = 200;  // of what only a busy machine can keep from working

  Options options() {
    Options options;
    options.path = directory_.path() + "/run";
    options.slab_bytes = kMiB;
    options.pool_bytes = 2 * kMiB;
    options.log = [lines = lines_](LogLevel level, std::string_view message) {
      if (level == LogLevel::kInfo) return;
      std::lock_guard lock(lines->mutex);
      lines->text += std::string(message) + "\n";
    };
    return options;
  }
  std::string log() {
    std::lock_guard lock(lines_->mutex);
    return lines_->text;
  }
  static Engine open(Options options) {
    auto engine = Engine::open(std::move(options));
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  static Snapshot save(Engine& engine, std::uint64_t step, const Model& model) {
    auto snapshot = engine.save(step, model.state());
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    return std::move(**snapshot);
  }
  static void save_and_commit(Engine& engine, std::uint64_t step, const Model& model) {
    const Status status = save(engine, step, model).wait(Level::kCommitted);
    ASSERT_TRUE(status) << status.error().to_string();
  }
  // Makes the first commit of an engine with a short stall_timeout, and returns its step. The pool may not be ready
  // yet, which on a busy machine alone takes longer than the time-out. So the next step is tried as long as nothing
  // else is wrong. From then on a model of one slab waits for nothing, however busy the machine is.
  static std::uint64_t commit_first(Engine& engine, const Model& model) {
    for (std::uint64_t step = 1; step <= kTries; ++step) {
      const Status status = save(engine, step, model).wait(Level::kCommitted);
      if (status) return step;
      if (status.error().kind != ErrorKind::kTimeout) throw std::runtime_error(status.error().to_string());
      static_cast<void>(engine.wait(Level::kCommitted));  // it is cleared away, and not told again
    }
    throw std::runtime_error("every save stalled; either the engine is broken or this machine is far too busy");
  }
  // Opens a directory whose last engine ran out of time in close(): what it left behind ends first.
  static Engine open_when_free(const Options& options) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (;;) {
      auto engine = Engine::open(options);
      if (engine) return std::move(*engine);
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error(engine.error().to_string());
      std::this_thread::yield();
    }
  }
  // Restores into fresh memory. 0 when there was nothing.
  static std::uint64_t restore(Engine& engine, Reader& reader, std::optional<std::uint64_t> step = {}) {
    auto restored = engine.restore({.step = step}, reader.plan());
    if (!restored) throw std::runtime_error(restored.error().to_string());
    return *restored ? (*restored)->version.step : 0;
  }
  static std::vector<std::uint64_t> steps(const Engine& engine) {
    std::vector<std::uint64_t> steps;
    for (const VersionInfo& version : engine.versions()) steps.push_back(version.step);
    return steps;
  }

  struct Lines {
    std::mutex mutex;
    std::string text;
  };
  TempDir directory_;
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();  // engines that are left behind still write to it
};

}  // namespace slackwater::test
