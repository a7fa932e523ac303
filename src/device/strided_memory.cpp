#include <cstddef>
#include <utility>

#include "device/device.hpp"

namespace slackwater {

std::uint64_t StridedMemory::size_bytes() const {
  std::uint64_t size = item_bytes;
  for (const std::int64_t extent : shape) size *= static_cast<std::uint64_t>(extent);
  return size;
}

StridedMemory simplify(StridedMemory memory) {
  if (memory.size_bytes() == 0) {
    memory.shape.assign(1, 0);
    memory.strides.clear();
    return memory;
  }
  if (memory.contiguous()) {
    std::int64_t count = 1;
    for (const std::int64_t extent : memory.shape) count *= extent;
    memory.shape.assign(1, count);
    return memory;
  }
  // In place: the first `kept` dimensions are done, except that the last of them may still merge with its inner
  // neighbour.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < memory.shape.size(); ++i) {
    if (memory.shape[i] == 1) continue;
    if (kept > 0 && memory.strides[kept - 1] == memory.shape[i] * memory.strides[i]) {
      memory.shape[kept - 1] *= memory.shape[i];
      memory.strides[kept - 1] = memory.strides[i];
    } else {
      memory.shape[kept] = memory.shape[i];
      memory.strides[kept] = memory.strides[i];
      ++kept;
    }
  }
  memory.shape.resize(kept);
  memory.strides.resize(kept);
  if (kept == 0) memory.shape.assign(1, 1);
  if (kept == 0 || (kept == 1 && memory.strides[0] == 1)) memory.strides.clear();
  return memory;
}

}  // namespace slackwater
