#include "bench/lazy/simulated_gpu.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::bench {
namespace {

constexpr const char* kInBuildTree = "../sim/libslackwater_sim_cuda.so";  // from the folder of this program

std::string beside_this_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  return (program.parent_path() / kInBuildTree).lexically_normal().string();
}

}  // namespace

Result<SimulatedGpu::Controls> SimulatedGpu::find_controls(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorKind::kUnsupported, fmt::format("cannot load the simulated CUDA driver: {}", dlerror()), path);
  }
  Controls controls;
  bool complete = true;
  const auto find = [&]<class Function>(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    complete &= function != nullptr;
  };
  find(controls.configure, "swsim_configure");
  find(controls.get_config, "swsim_get_config");
  find(controls.set_config, "swsim_set_config");
  find(controls.stall_copies, "swsim_stall_copies");
  find(controls.launch_delay, "swsim_launch_delay");
  find(controls.launch, "swsim_launch");
  find(controls.alias, "swsim_device_to_host_alias");
  find(controls.event_time_ns, "swsim_event_time_ns");
  find(controls.now_ns, "swsim_now_ns");
  find(controls.counters, "swsim_counters");
  if (complete) return controls;
  return fail(ErrorKind::kUnsupported,
              "this library is not the simulated CUDA driver of this version; name libslackwater_sim_cuda.so with "
              "--simulator",
              path);
}

Result<std::vector<std::unique_ptr<SimulatedGpu>>> SimulatedGpu::load(std::string path, int count) {
  if (path.empty()) path = beside_this_program();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return fail(ErrorKind::kNotFound,
                "the simulated CUDA driver was not found; build it (make bench-lazy does), or name it with --simulator",
                path);
  }
  SW_ASSIGN(const Controls controls, find_controls(path));
  if (controls.configure(count) != 0)
    return fail(ErrorKind::kInternal, "the simulated CUDA driver is already in use", path);
  SW_ASSIGN(const auto driver, cuda::Driver::load(path));
  std::vector<std::unique_ptr<SimulatedGpu>> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    SW_ASSIGN(auto context, cuda::Context::retain(driver, ordinal));
    gpus.emplace_back(new SimulatedGpu(path, controls, std::move(context)));
  }
  return gpus;
}

Status SimulatedGpu::set_copy_speed(double bytes_per_s, std::chrono::nanoseconds latency) const {
  swsim_device_config config{};
  SW_TRY(check(static_cast<cuda::CUresult>(controls_.get_config(ordinal(), &config)), "swsim_get_config"));
  config.d2h_bytes_per_s = static_cast<std::uint64_t>(bytes_per_s);
  config.copy_latency_ns = static_cast<std::uint64_t>(latency.count());
  return check(static_cast<cuda::CUresult>(controls_.set_config(ordinal(), &config)), "swsim_set_config");
}

Status SimulatedGpu::stall_copies(bool stalled) const {
  const int mode = stalled ? SWSIM_STALL_ON : SWSIM_STALL_OFF;
  return check(static_cast<cuda::CUresult>(controls_.stall_copies(ordinal(), mode)), "swsim_stall_copies");
}

Status SimulatedGpu::launch_delay(cuda::CUstream stream, std::chrono::nanoseconds duration) const {
  const int code = controls_.launch_delay(stream, static_cast<std::uint64_t>(duration.count()));
  return check(static_cast<cuda::CUresult>(code), "swsim_launch_delay");
}

Status SimulatedGpu::launch(cuda::CUstream stream, std::chrono::nanoseconds duration, swsim_kernel kernel,
                            void* user) const {
  const int code = controls_.launch(stream, static_cast<std::uint64_t>(duration.count()), kernel, user, 0);
  return check(static_cast<cuda::CUresult>(code), "swsim_launch");
}

std::byte* SimulatedGpu::alias(cuda::CUdeviceptr address) const {
  return static_cast<std::byte*>(controls_.alias(address));
}

double SimulatedGpu::event_seconds(cuda::CUevent event) const {
  return static_cast<double>(controls_.event_time_ns(event)) / 1e9;
}

double SimulatedGpu::now_seconds() const { return static_cast<double>(controls_.now_ns()) / 1e9; }

std::uint64_t SimulatedGpu::spinning_waits() const {
  swsim_counts counts{};
  controls_.counters(&counts);
  return counts.spinning_waits;
}

}  // namespace slackwater::bench
