// Pool and CUDA devices: what the pool costs to make, whether the driver can be used, and what each GPU is like.
// The judges are pure functions; any thread. The rest: one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/doctor/check.hpp"
#include "cli/doctor/machine.hpp"
#include "cli/doctor/settings.hpp"
#include "device/cuda/inspection.hpp"

namespace slackwater::cli::doctor {

// GPUs that the kernel shows, whether or not a driver can use them.
struct VisibleGpus {
  int nvidia = 0;  // on the PCI bus, or as /dev/nvidia0
  int amd = 0;     // those for computing
};
[[nodiscard]] VisibleGpus visible_gpus(const std::string& sys, const std::string& dev);

[[nodiscard]] Check driver_check(const Result<cuda::DriverFacts>& driver, const VisibleGpus& gpus, bool named_by_user);
// The variables as the environment has them; null if unset.
[[nodiscard]] Check connections_check(const char* value);
[[nodiscard]] Check allocator_check(const char* alloc_conf, const char* cuda_alloc_conf);
[[nodiscard]] Check gpu_check(const std::string& name, const cuda::DeviceFacts& facts);
[[nodiscard]] Check copy_engines_check(const std::string& name, int copy_engines);
[[nodiscard]] Check free_memory_check(const std::string& name, const cuda::DeviceFacts& facts);

// How fast fresh memory is touched.
[[nodiscard]] Check touch_check(const Settings& settings, std::uint64_t usable_bytes);
// The driver and the environment. Returns the number of GPUs to look at.
[[nodiscard]] int driver_checks(const Settings& settings, const MachineFiles& files, const Emit& emit);
// Everything about one GPU. Stops after a check that its device did not survive.
void gpu_checks(const Settings& settings, int ordinal, std::uint64_t usable_host_bytes, const Emit& emit);

}  // namespace slackwater::cli::doctor
