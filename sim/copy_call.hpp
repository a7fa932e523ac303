// Turns the arguments of a copy call into tasks on a stream: checks the addresses, and finds out the direction and
// whether the host memory is pinned.
// Thread rule: with Simulator::mutex held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/simulator.hpp"

namespace slackwater::sim {

enum class Place : std::uint8_t { kHost, kDevice, kEither };  // kEither: decided by the address

// Rows of bytes, as the caller described them. `from` and `to` are addresses of the first byte.
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

// Queues the copies after everything on the stream, without order among themselves. On return, pageable sources have
// been read and pageable destinations have been written. All or nothing: `failed`, if given, gets the index of the
// first copy that is refused. `batch`: the call was one for batches, which may be broken (swsim_break).
[[nodiscard]] CUresult queue_copies(Simulator& sim, Call& call, cuda::CUstream stream,
                                    const std::vector<CopyRequest>& requests, std::size_t* failed = nullptr,
                                    bool batch = false);

}  // namespace slackwater::sim
