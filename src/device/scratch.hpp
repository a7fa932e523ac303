// Scratch: memory and one stream of a device, as a trainer owns them. `slackwater doctor` plays a trainer with it.
// Work is queued on the stream and runs in order. On the host it runs at once.
// Owner: whoever opened it. Thread rule: one thread. Lifetime: memory lives as long as the Scratch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

class Scratch {
 public:
  virtual ~Scratch() = default;
  [[nodiscard]] virtual std::string name() const = 0;                // "host memory", "cuda:0"
  [[nodiscard]] virtual int device() const = 0;                      // as in Tensor::device
  [[nodiscard]] virtual std::vector<StreamRef> streams() const = 0;  // empty for the host
  [[nodiscard]] virtual Result<std::byte*> allocate(std::uint64_t size_bytes) = 0;
  // Host memory that copies to and from the device run at full speed with.
  [[nodiscard]] virtual Result<std::byte*> allocate_pinned(std::uint64_t size_bytes) = 0;
  virtual void free_all() = 0;  // both kinds; nothing may be queued any more

  // Queue copies: host to device, device to device (an update), device to host.
  [[nodiscard]] virtual Status upload(std::byte* to, const std::byte* from, std::uint64_t size_bytes) = 0;
  [[nodiscard]] virtual Status update(std::byte* to, const std::byte* from, std::uint64_t size_bytes) = 0;
  [[nodiscard]] virtual Status download(std::byte* to, const std::byte* from, std::uint64_t size_bytes) = 0;
  // Waits until everything queued is done; kTimeout if the device does not get there.
  [[nodiscard]] virtual Status wait(std::chrono::milliseconds timeout) = 0;
};

[[nodiscard]] std::unique_ptr<Scratch> make_host_scratch();

}  // namespace slackwater
