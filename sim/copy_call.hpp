// From the arguments of a copy call to tasks on a stream: which way the bytes go, whether the host memory is pinned,
// whether the addresses are valid. Thread rule: with Simulator::mutex held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/simulator.hpp"

namespace slackwater::sim {

enum class Place : std::uint8_t { kHost, kDevice, kEither };  // kEither: the address tells

// Rows of bytes as the caller described them. The addresses are of the first byte.
struct CopyRequest {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  Place from_place = Place::kEither;
  Place to_place = Place::kEither;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t from_pitch = 0;
  std::size_t to_pitch = 0;
};

// Queues the copies behind everything on the stream, unordered among themselves; on return from pageable memory has
// been read, and pageable memory has been written. All or nothing: `failed` (if given) gets the index of the first
// that is refused.
[[nodiscard]] CUresult queue_copies(Simulator& sim, Call& call, cuda::CUstream stream,
                                    const std::vector<CopyRequest>& requests, std::size_t* failed = nullptr);

}  // namespace slackwater::sim
