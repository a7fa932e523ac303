// The control interface (sim_cuda.h): kernels.
#include <cstring>
#include <functional>
#include <utility>

#include "sim/sim_cuda.h"
#include "sim/simulator.hpp"

using namespace slackwater::sim;
using slackwater::cuda::CUstream;

namespace {

// Calls a function when the kernel's time is over, or at its start and its end. It locks the device's memory meanwhile.
// So an unordered copy may get a mix of bytes from before and after, but never half a word.
class KernelWork final : public Work {
 public:
  using Body = std::function<CUresult(int phase)>;
  KernelWork(Body body, bool both_phases, std::mutex& memory)
      : body_(std::move(body)), both_(both_phases), memory_(memory) {}

  [[nodiscard]] CUresult begin() override {
    if (!both_) return CUresult::kSuccess;
    const std::lock_guard lock(memory_);
    return body_(SWSIM_AT_START);
  }
  [[nodiscard]] CUresult finish() override {
    const std::lock_guard lock(memory_);
    return body_(SWSIM_AT_END);
  }

 private:
  const Body body_;
  const bool both_;
  std::mutex& memory_;
};

struct Kernel {
  KernelWork::Body body;
  std::vector<std::shared_ptr<const void>> held{};
};

int launch(const char* symbol, void* handle, std::uint64_t duration_ns, bool both_phases,
           const std::function<Kernel(Simulator&)>& make_kernel) {
  const CUresult result = enter(symbol, kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr stream = sim.stream_of(call, static_cast<CUstream>(handle));
    if (stream == nullptr || stream->device != call.device) return CUresult::kInvalidHandle;
    Kernel kernel = make_kernel(sim);
    std::vector<Task> tasks;
    tasks.push_back(
        {.engine = EngineKind::kCompute,
         .work = std::make_shared<KernelWork>(std::move(kernel.body), both_phases, stream->device->memory_mutex),
         .held = std::move(kernel.held),
         .duration = Duration(duration_ns)});
    return sim.schedule.enqueue(call, stream, std::move(tasks));
  });
  return static_cast<int>(result);
}

// A kernel on a range of device memory. If the range is invalid, the kernel fails when it runs, as on a real device.
int launch_on(const char* symbol, void* stream, std::uint64_t address, std::size_t size_bytes,
              std::uint64_t duration_ns, const std::function<void(std::byte*)>& kernel) {
  return launch(symbol, stream, duration_ns, false, [=](const Simulator& sim) {
    const AllocationPtr found = sim.memory.find(address, size_bytes);
    const auto body = [kernel, address, weak = std::weak_ptr(found)](int) {
      const AllocationPtr memory = weak.lock();
      if (memory == nullptr || !memory->mapped) return CUresult::kIllegalAddress;
      kernel(memory->at(address));
      return CUresult::kSuccess;
    };
    return Kernel{.body = body, .held = {found}};
  });
}

}  // namespace

int swsim_launch(void* stream, uint64_t duration_ns, swsim_kernel kernel, void* user, int both_phases) {
  return launch("swsim_launch", stream, duration_ns, both_phases != 0, [=](Simulator&) {
    return Kernel{.body = [kernel, user](int phase) {
      kernel(user, phase);
      return CUresult::kSuccess;
    }};
  });
}

int swsim_launch_delay(void* stream, uint64_t duration_ns) {
  return launch("swsim_launch_delay", stream, duration_ns, false,
                [](Simulator&) { return Kernel{.body = [](int) { return CUresult::kSuccess; }}; });
}

int swsim_launch_fill(void* stream, uint64_t address, size_t size_bytes, uint8_t value, uint64_t duration_ns) {
  return launch_on("swsim_launch_fill", stream, address, size_bytes, duration_ns,
                   [=](std::byte* bytes) { std::memset(bytes, value, size_bytes); });
}

int swsim_launch_add_u32(void* stream, uint64_t address, size_t count, uint32_t delta, uint64_t duration_ns) {
  return launch_on("swsim_launch_add_u32", stream, address, count * sizeof delta, duration_ns, [=](std::byte* bytes) {
    for (std::size_t index = 0; index < count; ++index) {
      std::uint32_t word = 0;  // the address need not be aligned
      std::memcpy(&word, bytes + index * sizeof word, sizeof word);
      word += delta;
      std::memcpy(bytes + index * sizeof word, &word, sizeof word);
    }
  });
}
