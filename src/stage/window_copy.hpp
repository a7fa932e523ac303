// WindowCopier: fills one slab with one window of a stream, or queues the copies that will, and runs the torn-capture guard
// over the tensors it completes.
// Owned by a copy thread and used by it alone; keeps its scratch memory between windows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "layout/stream_layout.hpp"
#include "slackwater/error.hpp"
#include "stage/stager.hpp"

namespace slackwater {

// Bytes copied so far of each source; all copy threads count here. Whoever adds the last bytes of a tensor checks it.
using CopiedBytes = std::unique_ptr<std::atomic<std::uint64_t>[]>;

struct CopiedWindow {
  std::uint64_t size_bytes = 0;
  std::vector<std::shared_ptr<Event>> events;  // the slab is full when all of them are over
  std::vector<std::uint32_t> looks;            // tensors on a device whose second look is to be judged then
};

// Tells whether a guarded tensor stood still: kTorn if not, with its name as the path. For tensors on a device: once the window's events
// are over.
[[nodiscard]] Status check_stood_still(const StageJob& job, std::uint32_t tensor);

// For a job that ended with kTorn, while its sources are still there: `first`, the tensor that it ended with, and every other
// one in host memory that has changed since save(). Whoever writes to one too early mostly writes to its neighbours, too.
[[nodiscard]] std::vector<std::string> changed_tensors(const StageJob& job, const std::string& first);

class WindowCopier {
 public:
  // Fills `slab` with window `index` of part `part`, and zeroes up to the next multiple of 4096. kTorn if a guarded tensor in host
  // memory whose last byte was copied here has changed since save(). After an error a device may still be writing to the slab.
  [[nodiscard]] Result<CopiedWindow> copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                          std::span<std::byte> slab, CopiedBytes& copied);

 private:
  [[nodiscard]] Status copy_pieces(const StageJob& job, std::span<std::byte> slab);
  [[nodiscard]] Status check_completed(const StageJob& job, CopiedBytes& copied,
                                       std::vector<std::uint32_t>& looks) const;
  [[nodiscard]] Result<std::vector<std::shared_ptr<Event>>> mark_passages(const StageJob& job) const;

  std::vector<WindowPiece> pieces_;
  std::vector<CopyPiece> batch_;
};

}  // namespace slackwater
