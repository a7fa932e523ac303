// What `slackwater doctor` asks about the CUDA driver and its devices, without names of CUDA.
// Owner: the caller. Thread rule: inspect_driver() any thread; a CudaScratch one thread. Lifetime: as scratch.hpp says.
// A CudaScratch retains the primary context of its device. Its destructor waits for the device: a process whose device
// hangs should end without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/scratch.hpp"

namespace slackwater::cuda {

struct MissingFunction {
  std::string symbol;
  std::string consequence;  // "small tensors are copied one by one"
};

struct DriverFacts {
  std::string path;     // of the library that was loaded
  std::string version;  // of CUDA, as the driver tells: "12.8"
  int device_count = 0;
  std::vector<MissingFunction> missing;  // optional ones
};

// kUnsupported if there is no such library, if it lacks a function that Slackwater needs, or if it finds no device.
[[nodiscard]] Result<DriverFacts> inspect_driver(const std::string& library);

struct DeviceFacts {
  std::string model;  // "NVIDIA H100 80GB HBM3"
  std::string compute_capability;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  int copy_engines = 0;
  int numa_node = -1;
};

class CudaScratch : public Scratch {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaScratch>> open(const std::string& library, int ordinal);
  [[nodiscard]] virtual Result<DeviceFacts> facts() const = 0;
  // Allocates until at most `leave_bytes` are free. Returns how much is free then.
  [[nodiscard]] virtual Result<std::uint64_t> take_all_but(std::uint64_t leave_bytes) = 0;
  [[nodiscard]] virtual Status register_host(std::span<std::byte> memory) = 0;
  virtual void unregister_host(std::byte* memory) = 0;
};

}  // namespace slackwater::cuda
