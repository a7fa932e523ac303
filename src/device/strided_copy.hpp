// Packs strided host memory into contiguous bytes, and unpacks it. Any byte range [begin, begin + size) of the packed
// form may be copied, even one that starts or ends inside an element. Stride 0 (an expanded dimension) is allowed;
// unpacking then keeps the last value written. Pure functions on memory that the caller owns; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.hpp"

namespace slackwater {

// `memory` must be strided, and the range must lie within memory.size_bytes(). Fastest after simplify().
void pack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, std::byte* packed);
void unpack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, const std::byte* packed);

// Address of element `index`, in row-major order, of strided memory.
[[nodiscard]] const std::byte* element_address(const StridedMemory& memory, std::uint64_t index);

}  // namespace slackwater
