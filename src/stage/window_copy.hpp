// WindowCopier: fills one slab with one window of a stream and runs the torn-capture guard over the tensors it
// completes.
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

class WindowCopier {
 public:
  // Fills `slab` with window `index` of part `part`, zeroes up to the next multiple of 4096, and returns the window's
  // exact size. kTorn if a guarded tensor whose last byte was copied here has changed since save().
  [[nodiscard]] Result<std::uint64_t> copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                           std::span<std::byte> slab, CopiedBytes& copied);

 private:
  [[nodiscard]] Status copy_pieces(const StageJob& job, std::span<std::byte> slab);
  [[nodiscard]] Status check_completed(const StageJob& job, CopiedBytes& copied) const;

  std::vector<WindowPiece> pieces_;
  std::vector<CopyPiece> batch_;
};

}  // namespace slackwater
