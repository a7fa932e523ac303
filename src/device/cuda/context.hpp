// Context: retains the primary context of one device, which PyTorch uses, too.
// Scope: makes the context current on this thread, in a capture mode that does not disturb any capture. Every call into
// the driver happens inside a Scope.
// Owner: CudaDevice owns the Context. Thread rule: a Context is constant after construction; a Scope belongs to its
// thread.
// Lifetime: the Context outlives its scopes and everything created in it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "device/cuda/driver.hpp"
#include "slackwater/error.hpp"

namespace slackwater::cuda {

class Context {
 public:
  // kUnsupported if there is no such device.
  [[nodiscard]] static Result<std::unique_ptr<Context>> retain(std::shared_ptr<const Driver> driver, int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] std::string_view name() const { return name_; }  // "cuda:0"
  [[nodiscard]] int ordinal() const { return ordinal_; }
  // nullopt if the driver does not know the attribute.
  [[nodiscard]] std::optional<int> attribute(CUdevice_attribute attribute) const;
  [[nodiscard]] int numa_node() const;  // -1 if unknown
  // Page-locks host memory for every context of the process, and undoes that. Inside a Scope.
  [[nodiscard]] Status register_host(std::span<std::byte> memory) const;
  void unregister_host(std::byte* memory) const;
  // Whether a host address lies in memory that the driver has allocated or registered. Inside a Scope.
  [[nodiscard]] bool pinned(const void* address) const;
  [[nodiscard]] Status check(CUresult code, std::string_view call) const { return driver_->check(code, call, name_); }

 private:
  friend class Scope;
  Context(std::shared_ptr<const Driver> driver, CUdevice device, CUcontext context, int ordinal);

  const std::shared_ptr<const Driver> driver_;
  const CUdevice device_;
  CUcontext context_;
  const int ordinal_;
  const std::string name_;
};

class Scope {
 public:
  explicit Scope(const Context& context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // An error if the context cannot be made current.
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  bool relaxed_ = false;
  CUstreamCaptureMode mode_before_ = CUstreamCaptureMode::kRelaxed;
  Status status_;
};

// The NUMA node of a PCI device ("0000:3B:00.0"); -1 if the kernel names none. `devices` is where the kernel lists
// them.
[[nodiscard]] int numa_node_of_pci(std::string_view bus_id, const std::string& devices = "/sys/bus/pci/devices");

}  // namespace slackwater::cuda
