#include "commit/reserve.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "commit/names.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::minutes kBetweenReserveLooks{1};
constexpr std::uint64_t kReserveFromFree = 4;  // as many times its size must be free

// A restore costs a rank three or four messages and its part of the boxes, a block each. Thousands of ranks that share a
// directory and nothing else are rare, and 16 MiB carry them a long way; what does not fit is spelled in names.
std::uint64_t reserve_bytes(std::uint32_t world) {
  constexpr std::uint64_t kFirst = 1u << 20;
  constexpr std::uint64_t kEachRank = 32u << 10;
  constexpr std::uint64_t kMost = 16u << 20;
  return std::min(kFirst + kEachRank * world, kMost);
}

// Noise: a file system that compresses would keep nothing back for zeros.
std::string noise(std::uint64_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): always the same is good enough
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace

Reserve::Reserve(FileSystem& fs, const Clock& clock, std::string control)
    : fs_(fs), clock_(clock), control_(std::move(control)) {}

void Reserve::keep(std::uint32_t world) {
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.now();
    if (now < next_look_) return;
    next_look_ = now + kBetweenReserveLooks;
  }
  const std::uint64_t size_bytes = reserve_bytes(world);
  if (lists_name(fs_, control_, kReserveName).value_or(true)) return;
  if (fs_.free_bytes(control_).value_or(0) < kReserveFromFree * size_bytes) return;
  // Written and synced, not only set aside: where space cannot be set aside (NFS before 4.2) the file would be a hole.
  (void)write_durably(fs_, fmt::format("{}/{}", control_, kReserveName), noise(size_bytes));
}

void Reserve::release() {
  // Listed first: over NFS a host that removed it before would not ask the server for the one that was made since.
  if (lists_name(fs_, control_, kReserveName).value_or(false))
    (void)fs_.unlink(fmt::format("{}/{}", control_, kReserveName));
}

}  // namespace slackwater
