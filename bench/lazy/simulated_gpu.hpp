// SimulatedGpu: one device of the simulated CUDA driver (sim/), which is found by dlopen, as the engine finds a real
// one. slackwater_bench links to none of it, and an installed package does not carry it.
// Thread rule: constant after load(), thread-safe as the driver is. Lifetime: the library stays loaded until the
// process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "sim/sim_cuda.h"
#include "slackwater/error.hpp"

namespace slackwater::bench {

class SimulatedGpu {
 public:
  // All of them; once in a process. `path` empty: where the build tree has it, in sim/ beside this program's folder.
  [[nodiscard]] static Result<std::vector<std::unique_ptr<SimulatedGpu>>> load(std::string path, int count);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int ordinal() const { return context_->ordinal(); }
  [[nodiscard]] const cuda::Context& context() const { return *context_; }
  [[nodiscard]] const cuda::Driver& driver() const { return context_->driver(); }
  [[nodiscard]] Status check(cuda::CUresult code, std::string_view call) const { return context_->check(code, call); }

  // `latency`: what each copy to the host takes besides its bytes.
  [[nodiscard]] Status set_copy_speed(double bytes_per_s, std::chrono::nanoseconds latency = {}) const;
  [[nodiscard]] Status stall_copies(bool stalled) const;
  [[nodiscard]] Status launch_delay(cuda::CUstream stream, std::chrono::nanoseconds duration) const;
  [[nodiscard]] Status launch(cuda::CUstream stream, std::chrono::nanoseconds duration, swsim_kernel kernel,
                              void* user) const;
  [[nodiscard]] std::byte* alias(cuda::CUdeviceptr address) const;  // where a kernel reaches it
  [[nodiscard]] double event_seconds(cuda::CUevent event) const;  // when it was reached, on the clock of now_seconds()
  [[nodiscard]] double now_seconds() const;
  [[nodiscard]] std::uint64_t spinning_waits() const;

 private:
  struct Controls {
    decltype(&swsim_configure) configure = nullptr;
    decltype(&swsim_get_config) get_config = nullptr;
    decltype(&swsim_set_config) set_config = nullptr;
    decltype(&swsim_stall_copies) stall_copies = nullptr;
    decltype(&swsim_launch_delay) launch_delay = nullptr;
    decltype(&swsim_launch) launch = nullptr;
    decltype(&swsim_device_to_host_alias) alias = nullptr;
    decltype(&swsim_event_time_ns) event_time_ns = nullptr;
    decltype(&swsim_now_ns) now_ns = nullptr;
    decltype(&swsim_counters) counters = nullptr;
  };

  SimulatedGpu(std::string path, const Controls& controls, std::unique_ptr<cuda::Context> context)
      : path_(std::move(path)), controls_(controls), context_(std::move(context)) {}
  [[nodiscard]] static Result<Controls> find_controls(const std::string& path);

  const std::string path_;
  const Controls controls_;
  const std::unique_ptr<cuda::Context> context_;
};

}  // namespace slackwater::bench
