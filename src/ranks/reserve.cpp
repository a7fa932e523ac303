#include "ranks/reserve.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "os/durable.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::minutes kBetweenChecks{1};
constexpr std::uint64_t kReserveFromFree = 4;  // made only if this many times its size is free

// In a restore, a rank needs three or four messages and its part of the channels, a block each. It is rare that
// thousands of ranks share only a directory, and 16 MiB are enough for most of them. The rest is spelled in names.
std::uint64_t reserve_bytes(std::uint32_t world) {
  constexpr std::uint64_t kFirst = 1u << 20;
  constexpr std::uint64_t kEachRank = 32u << 10;
  constexpr std::uint64_t kMost = 16u << 20;
  return std::min(kFirst + kEachRank * world, kMost);
}

// Random bytes: a file system that compresses would reserve nothing for zeros.
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
    if (now < next_check_) return;
    next_check_ = now + kBetweenChecks;
  }
  const std::uint64_t size_bytes = reserve_bytes(world);
  if (lists_name(fs_, control_, kReserveName).value_or(true)) return;
  if (fs_.free_bytes(control_).value_or(0) < kReserveFromFree * size_bytes) return;
  // Written and synced, not only allocated: where space cannot be allocated (NFS before 4.2), the file would be a hole.
  (void)write_durably(fs_, fmt::format("{}/{}", control_, kReserveName), noise(size_bytes));
}

void Reserve::release() {
  // Listed first: over NFS, a host that has removed it before would not ask the server for a newer one.
  if (lists_name(fs_, control_, kReserveName).value_or(false))
    (void)fs_.unlink(fmt::format("{}/{}", control_, kReserveName));
}

}  // namespace slackwater
