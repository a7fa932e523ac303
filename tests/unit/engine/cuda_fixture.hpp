// What the engine's tests on the simulated device share: a trainer with a stream and tensors on it, and an engine that
// finds the driver by its path.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "support/temp_dir.hpp"
#include "unit/device/cuda_trainer.hpp"
#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {

using cuda::DeviceTensor;
using cuda::must;

class EngineOnCuda : public cuda::SimulatedDriver {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;
  struct Entry {
    std::string name;
    int device;
    bool at_once;
    DeviceTensor tensor;
  };

  using SimulatedDriver::SimulatedDriver;
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SimulatedDriver::SetUp());
    driver_.reset();  // the engine loads it by itself
    use_device(0);
  }
  void TearDown() override {
    tensors_.clear();
    for (const auto& [device, stream] : streams_) {
      (void)cuda::cuCtxSetCurrent(contexts_.at(device));
      (void)cuda::cuStreamDestroy_v2(stream);
      (void)cuda::cuDevicePrimaryCtxRelease_v2(device);
    }
    (void)cuda::cuCtxSetCurrent(nullptr);
    SimulatedDriver::TearDown();
  }

  // Makes a device current for the trainer, with a stream of its own at the first call.
  void use_device(int device) {
    if (!contexts_.contains(device)) {
      must(cuda::cuDevicePrimaryCtxRetain(&contexts_[device], device));
      must(cuda::cuCtxSetCurrent(contexts_[device]));
      must(cuda::cuStreamCreateWithPriority(&streams_[device], cuda::kStreamDefault, 0));
    }
    must(cuda::cuCtxSetCurrent(contexts_[device]));
  }
  DeviceTensor& add(const std::string& name, std::uint64_t size_bytes, int device = 0, bool at_once = false) {
    use_device(device);
    tensors_.push_back({name, device, at_once, DeviceTensor::flat(size_bytes, tensors_.size() + 1)});
    return tensors_.back().tensor;
  }

  [[nodiscard]] std::vector<StreamRef> streams() const {
    std::vector<StreamRef> refs;
    for (const auto& [device, stream] : streams_) refs.push_back({device, reinterpret_cast<std::uintptr_t>(stream)});
    return refs;
  }
  static std::vector<std::int64_t> as_vector(const Dims& dims) { return {dims.begin(), dims.end()}; }
  [[nodiscard]] State state() const {
    State state;
    for (const Entry& entry : tensors_) {
      state.tensors.push_back({.name = entry.name,
                               .dtype = DType::kU8,
                               .shape = as_vector(entry.tensor.memory.shape),
                               .strides = as_vector(entry.tensor.memory.strides),
                               .data = entry.tensor.memory.data,
                               .device = entry.device,
                               .at_once = entry.at_once});
    }
    state.after = streams();
    return state;
  }
  // An update of everything, queued behind whatever the streams wait for; the twins know at once what it will give.
  void queue_update(std::uint64_t duration_ns = 0) {
    for (Entry& entry : tensors_) queue_update(entry, duration_ns);
  }
  void queue_update(Entry& entry, std::uint64_t duration_ns = 0) {
    use_device(entry.device);
    entry.tensor.update(streams_.at(entry.device), duration_ns);
    std::byte* const twin = entry.tensor.twin.data();
    const std::size_t size = entry.tensor.twin.size();
    for (std::size_t i = 0; i + 4 <= size; i += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, twin + i, 4);
      ++word;
      std::memcpy(twin + i, &word, 4);
    }
  }
  [[nodiscard]] std::map<std::string, Bytes> expected() const {
    std::map<std::string, Bytes> result;
    for (const Entry& entry : tensors_) result[entry.name] = entry.tensor.packed_twin();
    return result;
  }
  void synchronize() {
    for (const auto& [device, stream] : streams_) {
      use_device(device);
      must(cuda::cuStreamSynchronize(stream));
    }
  }

  Options options() {
    Options options;
    options.path = directory_.path() + "/run";
    options.slab_bytes = kMiB;
    options.pool_bytes = 4 * kMiB;
    options.cuda_driver = SW_SIM_CUDA_LIBRARY;
    options.keep = 0;
    options.log = [](LogLevel, std::string_view) {};
    return options;
  }
  static Engine open(Options options) {
    auto engine = Engine::open(std::move(options));
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  Snapshot save(Engine& engine, std::uint64_t step) {
    auto snapshot = engine.save(step, state());
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    return std::move(**snapshot);
  }
  std::map<std::string, Bytes> saved(std::uint64_t step) {
    auto checkpoint = Checkpoint::open(options().path, step);
    if (!checkpoint) throw std::runtime_error(checkpoint.error().to_string());
    Reader reader;
    auto targets = reader.plan()(*checkpoint);
    if (auto status = checkpoint->read(*targets); !status) throw std::runtime_error(status.error().to_string());
    return reader.read;
  }

  TempDir directory_;
  std::map<int, cuda::CUcontext> contexts_;
  std::map<int, cuda::CUstream> streams_;
  std::deque<Entry> tensors_;
};

}  // namespace slackwater::test
