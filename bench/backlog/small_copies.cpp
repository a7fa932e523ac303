#include "bench/backlog/small_copies.hpp"

#include <cstddef>

#include "base/result.hpp"

namespace slackwater::bench {
namespace {

constexpr std::size_t kWordBytes = sizeof(float);
constexpr double kHeldUpSeconds = 20e-6;

}  // namespace

Result<std::unique_ptr<SmallCopies>> SmallCopies::create(const SimulatedGpu& gpu) {
  std::unique_ptr<SmallCopies> copies(new SmallCopies(gpu));
  SW_TRY(copies->open());
  return copies;
}

Status SmallCopies::open() {
  const cuda::Driver& driver = gpu_.driver();
  SW_TRY(gpu_.check(driver.cuMemAlloc_v2(&word_, kWordBytes), "cuMemAlloc"));
  SW_TRY(gpu_.check(driver.cuMemHostAlloc(&host_, kWordBytes, 0), "cuMemHostAlloc"));
  SW_TRY(gpu_.check(driver.cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
                    "cuStreamCreateWithPriority"));
  return gpu_.check(driver.cuEventCreate(&over_, cuda::kEventBlockingSync), "cuEventCreate");
}

SmallCopies::~SmallCopies() {
  const cuda::Driver& driver = gpu_.driver();
  if (over_ != nullptr) static_cast<void>(driver.cuEventDestroy_v2(over_));
  if (stream_ != nullptr) static_cast<void>(driver.cuStreamDestroy_v2(stream_));
  if (host_ != nullptr) static_cast<void>(driver.cuMemFreeHost(host_));
  if (word_ != 0) static_cast<void>(driver.cuMemFree_v2(word_));
}

Result<std::optional<double>> SmallCopies::copy() {
  const cuda::Driver& driver = gpu_.driver();
  const double before = gpu_.now_seconds();
  SW_TRY(gpu_.check(driver.cuMemcpyDtoHAsync_v2(host_, word_, kWordBytes, stream_), "cuMemcpyDtoHAsync"));
  const double called = gpu_.now_seconds();
  SW_TRY(gpu_.check(driver.cuEventRecord(over_, stream_), "cuEventRecord"));
  const double recorded = gpu_.now_seconds();
  SW_TRY(gpu_.check(driver.cuEventSynchronize(over_), "cuEventSynchronize"));
  // An event that was recorded after the copy was over has the time of its own call.
  const double over = gpu_.event_seconds(over_);
  if (called - before > kHeldUpSeconds || recorded > over) return std::nullopt;
  return over - before;
}

Result<std::optional<double>> SmallCopies::copy_when_idle() {
  const cuda::Driver& driver = gpu_.driver();
  SW_TRY(gpu_.stall_copies(true));
  Status queued = gpu_.check(driver.cuMemcpyDtoHAsync_v2(host_, word_, kWordBytes, stream_), "cuMemcpyDtoHAsync");
  if (queued) queued = gpu_.check(driver.cuEventRecord(over_, stream_), "cuEventRecord");
  const double before = gpu_.now_seconds();
  SW_TRY(gpu_.stall_copies(false));  // even after an error: otherwise nothing could end
  const double released = gpu_.now_seconds();
  SW_TRY(queued);
  SW_TRY(gpu_.check(driver.cuEventSynchronize(over_), "cuEventSynchronize"));
  if (released - before > kHeldUpSeconds) return std::nullopt;
  return gpu_.event_seconds(over_) - before;
}

}  // namespace slackwater::bench
