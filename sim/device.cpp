#include "sim/device.hpp"

#include <algorithm>

#include "sim/simulator.hpp"

namespace slackwater::sim {

Device::Device(Simulator& owner, int device_ordinal)
    : simulator(owner),
      ordinal(device_ordinal),
      config{.memory_bytes = std::uint64_t{16} << 30, .queue_limit = 1024},
      to_host(owner, *this, EngineKind::kDeviceToHost),
      to_device(owner, *this, EngineKind::kHostToDevice),
      compute(owner, *this) {}

void Device::fail(cuda::CUresult code) {
  if (!failed()) error = code;
  wake();
  simulator.schedule.notify_progress();
}

void Device::wake() {
  to_host.wake();
  to_device.wake();
  compute.wake();
}

cuda::CUresult Device::take_copy_fault() {
  cuda::CUresult code = cuda::CUresult::kSuccess;
  for (CopyFault& fault : copy_faults) {
    if (--fault.remaining == 0) code = fault.code;
  }
  std::erase_if(copy_faults, [](const CopyFault& fault) { return fault.remaining == 0; });
  return code;
}

void Device::take_memory(std::uint64_t leave_bytes) {
  taken_bytes = 0;
  const std::uint64_t free = simulator.free_bytes(*this);
  taken_bytes = free - std::min(free, leave_bytes);
}

void Device::set_stall(int mode) {
  stall = mode;
  if (mode == SWSIM_STALL_OFF) released_at = Clock::now();
  wake();
}

Duration transfer_time(std::uint64_t bytes, std::uint64_t bytes_per_s, std::uint64_t latency_ns) {
  double nanoseconds = static_cast<double>(latency_ns);
  if (bytes_per_s > 0) nanoseconds += static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s);
  return Duration(static_cast<Duration::rep>(nanoseconds));
}

}  // namespace slackwater::sim
