// Packing strided host memory into contiguous bytes, and the way back. Pure functions on memory the caller owns; any
// thread.
// Any byte range [begin, begin + size) of the packed form may be asked for, also one that starts or ends inside an
// element.
// Stride 0 (an expanded dimension) is allowed; unpacking then keeps the last value written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.hpp"

namespace slackwater {

// `memory` must be strided; the range must lie within memory.size_bytes(). Best on simplify()ed memory.
void pack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, std::byte* packed);
void unpack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, const std::byte* packed);

// Address of element `index` (row major) of strided memory.
[[nodiscard]] const std::byte* element_address(const StridedMemory& memory, std::uint64_t index);

}  // namespace slackwater
