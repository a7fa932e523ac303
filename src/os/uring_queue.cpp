#include "os/uring_queue.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/result.hpp"
#include "os/posix_file.hpp"

namespace slackwater {
namespace {

constexpr unsigned kMaxDepth = 4096;
constexpr std::uint64_t kWakeData = ~std::uint64_t{0};  // user data of the wake poll; that of a request is its slot

constexpr std::uint64_t kNudgeData = kWakeData - 1;
constexpr unsigned kMaxNudges = 16;

// Errors of the call, not of a request. What was queued stays queued, and the next call submits it.
bool is_transient_errno(int sys_errno) {
  return sys_errno == EINTR || sys_errno == EAGAIN || sys_errno == EBUSY || sys_errno == ETIME;
}

__kernel_timespec to_timespec(Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace

UringQueue::UringQueue(const IoQueueOptions& options, Duration nudge_after)
    : depth_(std::min(options.depth, kMaxDepth)),
      buffer_slots_(options.buffer_slots),
      nudge_after_(nudge_after),
      guard_([this] {
        if (ring_made_) ::close(ring_.ring_fd);  // else the child keeps the ring and its pinned memory alive
        (void)wake_event_.close();
        disowned_ = true;
      }) {}

Result<std::unique_ptr<IoQueue>> UringQueue::create(const IoQueueOptions& options, Duration nudge_after) {
  std::unique_ptr<UringQueue> queue(new UringQueue(options, nudge_after));
  SW_TRY(queue->start());
  return queue;
}

Status UringQueue::start() {
  // One entry per request and nudge, and one for the wake poll. The completion queue has twice as many and cannot
  // overflow.
  const unsigned entries = std::bit_ceil(depth_ + kMaxNudges + 1);
  // Process completions when we enter the kernel anyway, instead of interrupting checksums (Linux 5.19).
  io_uring_params params{};
  params.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  int answer = io_uring_queue_init_params(entries, &ring_, &params);
  if (answer == -EINVAL) {
    params = {};
    answer = io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (answer < 0) return fail(error_from_errno(-answer, "cannot set up io_uring"));
  ring_made_ = true;
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    return fail(ErrorKind::kUnsupported, "this kernel's io_uring is too old; Linux 5.11 is needed");
  }
  answer = io_uring_ring_dontfork(&ring_);
  if (answer < 0) return fail(error_from_errno(-answer, "cannot keep io_uring from forked children"));
  wake_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event_) return fail(error_from_errno(errno, "cannot create an event descriptor"));

  // Kernels before Linux 5.19 have no sparse tables. Then plain descriptors and buffers are used.
  files_registered_ = io_uring_register_files_sparse(&ring_, static_cast<unsigned>(files_.size())) == 0;
  buffers_registered_ = buffer_slots_ > 0 && io_uring_register_buffers_sparse(&ring_, buffer_slots_) == 0;

  slots_.resize(depth_);
  free_.reserve(depth_);
  for (unsigned slot = depth_; slot > 0; --slot) free_.push_back(slot - 1);
  return {};
}

UringQueue::~UringQueue() {
  if (disowned_ || !ring_made_) return;
  if (!slots_.empty()) drain();
  io_uring_queue_exit(&ring_);
}

// Waits for every transfer, whatever has failed, because its memory is about to be reused. Does not continue pieces.
void UringQueue::drain() {
  for (const unsigned slot : unqueued_) free_.push_back(slot);
  unqueued_.clear();
  while (in_flight() > 0) {
    __kernel_timespec limit = to_timespec(nudge_after_);
    io_uring_cqe* cqe = nullptr;
    if (io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &limit, nullptr) == -ETIME) nudge();
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      if (cqe->user_data < depth_) free_.push_back(static_cast<unsigned>(cqe->user_data));
      if (cqe->user_data == kNudgeData) --nudges_;
      io_uring_cqe_seen(&ring_, cqe);
    }
  }
}

Status UringQueue::register_buffer(int index, std::span<std::byte> memory) {
  if (disowned_) return closed_by_fork();
  if (index < 0 || std::cmp_greater_equal(index, buffer_slots_)) {
    return fail(ErrorKind::kInvalidArgument, "the index of the registered buffer is out of range");
  }
  if (!buffers_registered_)
    return fail(ErrorKind::kUnsupported, "this kernel has no sparse table of registered buffers");
  const iovec buffer{memory.data(), memory.size()};
  const __u64 no_tag = 0;
  const int answer = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &buffer, &no_tag, 1);
  if (answer == 1) return {};
  if (answer == -ENOMEM) {
    return fail(Error{.kind = ErrorKind::kPermission,
                      .message = "cannot pin an I/O buffer; raise the limit on locked memory (ulimit -l)",
                      .sys_errno = ENOMEM});
  }
  return fail(error_from_errno(answer < 0 ? -answer : EIO, "cannot register an I/O buffer"));
}

int UringQueue::register_file(File& file) {
  auto* posix_file = dynamic_cast<PosixFile*>(&file);
  if (!files_registered_ || posix_file == nullptr) return -1;
  FileSlot* chosen = nullptr;
  for (FileSlot& slot : files_) {
    if (slot.serial == posix_file->serial()) {
      slot.last_used = ++uses_;
      return static_cast<int>(&slot - files_.data());
    }
    const bool better = chosen == nullptr || slot.last_used < chosen->last_used;
    if (slot.in_flight == 0 && better) chosen = &slot;
  }
  if (chosen == nullptr) return -1;
  const auto number = static_cast<unsigned>(chosen - files_.data());
  const int descriptor = file.descriptor();
  *chosen = {};
  if (descriptor < 0 || io_uring_register_files_update(&ring_, number, &descriptor, 1) != 1) return -1;
  *chosen = {.serial = posix_file->serial(), .last_used = ++uses_, .in_flight = 0};
  return static_cast<int>(number);
}

void UringQueue::forget(File& file) {
  auto* posix_file = dynamic_cast<PosixFile*>(&file);
  if (disowned_ || posix_file == nullptr) return;
  for (FileSlot& slot : files_) {
    if (slot.serial != posix_file->serial() || slot.in_flight > 0) continue;
    const int nobody = -1;
    (void)io_uring_register_files_update(&ring_, static_cast<unsigned>(&slot - files_.data()), &nobody, 1);
    slot = {};
  }
}

io_uring_sqe* UringQueue::next_sqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) {
    io_uring_submit(&ring_);
    sqe = io_uring_get_sqe(&ring_);
  }
  return sqe;
}

// False if the submission queue is full right now.
bool UringQueue::queue_piece(unsigned number) {
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return false;
  Slot& slot = slots_[number];
  const IoRequest& request = slot.request;
  const int file = slot.file_slot >= 0 ? slot.file_slot : request.file->descriptor();
  std::byte* data = request.data + slot.transfer.piece_start();
  const auto size = static_cast<unsigned>(slot.transfer.piece_bytes());
  const std::uint64_t offset = request.offset + slot.transfer.piece_start();
  const bool fixed = request.buffer >= 0;
  switch (request.op) {
    case IoOp::kRead:
      if (fixed) {
        io_uring_prep_read_fixed(sqe, file, data, size, offset, request.buffer);
      } else {
        io_uring_prep_read(sqe, file, data, size, offset);
      }
      break;
    case IoOp::kWrite:
      if (fixed) {
        io_uring_prep_write_fixed(sqe, file, data, size, offset, request.buffer);
      } else {
        io_uring_prep_write(sqe, file, data, size, offset);
      }
      break;
  }
  if (slot.file_slot >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, number);
  return true;
}

Status UringQueue::submit(const IoRequest& request) {
  if (disowned_) return closed_by_fork();
  if (free_.empty()) return fail(ErrorKind::kInternal, "the I/O queue is full");
  if (in_flight() == 0) quiet_since_ = std::chrono::steady_clock::now();
  const unsigned number = free_.back();
  free_.pop_back();
  Slot& slot = slots_[number];
  slot = {request, Transfer(request.op, request.size_bytes, request.file->direct()), register_file(*request.file)};
  if (slot.file_slot >= 0) ++files_[static_cast<unsigned>(slot.file_slot)].in_flight;
  if (!queue_piece(number)) unqueued_.push_back(number);
  // Submit at once, so that the disk works while the caller checksums the next slab. wait() submits what is left over.
  io_uring_submit(&ring_);
  return {};
}

void UringQueue::finish(unsigned number, Result<std::uint64_t> result, std::vector<IoCompletion>& completions) {
  const Slot& slot = slots_[number];
  if (slot.file_slot >= 0) --files_[static_cast<unsigned>(slot.file_slot)].in_flight;
  completions.push_back({slot.request.tag, std::move(result)});
  free_.push_back(number);
}

// Takes the completions; true if wake() was called.
bool UringQueue::reap(std::vector<IoCompletion>& completions) {
  bool woken = false;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const std::uint64_t data = cqe->user_data;
    const int answer = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (data == kWakeData) {
      // The poll may also have been cancelled because the thread that armed it has ended.
      wake_armed_ = false;
      woken = consume_wake() || woken;
      continue;
    }
    if (data == kNudgeData) {
      --nudges_;
      continue;
    }
    quiet_since_ = std::chrono::steady_clock::now();
    const auto number = static_cast<unsigned>(data);
    Slot& slot = slots_[number];
    if (slot.transfer.advance(answer)) {
      finish(number, slot.transfer.result(slot.request.file->path()), completions);
    } else if (!queue_piece(number)) {
      unqueued_.push_back(number);
    }
  }
  return woken;
}

// Queues the remaining pieces, submits, and waits for a completion or the timeout.
Status UringQueue::enter(std::optional<Duration> timeout) {
  if (!wake_armed_) arm_wake();
  std::erase_if(unqueued_, [this](unsigned number) { return queue_piece(number); });
  int answer = 0;
  if (timeout) {
    __kernel_timespec limit = to_timespec(*timeout);
    io_uring_cqe* cqe = nullptr;
    answer = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &limit, nullptr);
  } else {
    answer = io_uring_submit_and_wait(&ring_, 1);
  }
  if (answer < 0 && !is_transient_errno(-answer))
    return fail(error_from_errno(-answer, "io_uring failed while waiting for I/O"));
  return {};
}

Status UringQueue::wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) {
  if (disowned_) return closed_by_fork();
  // A longer timeout would overflow when added to the current time.
  constexpr Duration kLongest = std::chrono::hours(24 * 365);
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout.value_or(kLongest), kLongest);
  const std::size_t before = completions.size();
  bool woken = wake_asked_.load(std::memory_order_relaxed) && consume_wake();
  bool entered = false;
  for (;;) {
    woken = reap(completions) || woken;
    if (woken || completions.size() > before) {
      if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);  // next pieces of short transfers
      return {};
    }
    // Completions may become visible only when we enter the kernel, so enter it once before giving up.
    const Duration left = std::max(Duration::zero(), Duration(deadline - std::chrono::steady_clock::now()));
    if (timeout && left == Duration::zero() && entered) return {};
    const bool transfers = in_flight() > 0;
    std::optional<Duration> limit = timeout ? std::optional(left) : std::nullopt;
    if (transfers) limit = std::min(limit.value_or(kLongest), nudge_after_);
    SW_TRY(enter(limit));
    entered = true;
    if (transfers && std::chrono::steady_clock::now() - quiet_since_ >= nudge_after_) nudge();
  }
}

// Transfers that would block are done by worker threads, which the kernel makes when they are needed. If it fails to
// make one (seen on Linux 6.18, on a machine that was short of processors), the transfer waits until another one needs
// a worker, and for ever if none does. So if nothing has ended for a while, queue an operation that needs a worker and
// does nothing. If the disk is only slow, this costs nothing.
void UringQueue::nudge() {
  quiet_since_ = std::chrono::steady_clock::now();
  if (nudges_ == kMaxNudges) return;
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return;
  io_uring_prep_nop(sqe);
  io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
  io_uring_sqe_set_data64(sqe, kNudgeData);
  ++nudges_;  // the next call that enters the kernel submits it
}

// The poll fires once; the next wait() arms it again. If the queue is full, that is left to the next round.
void UringQueue::arm_wake() {
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, wake_event_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeData);
  wake_armed_ = true;
}

// Reads the event first and clears the flag second. A wake() in between finds the flag set and need not write, because
// this wait() has yet to return. A wake() afterwards writes again.
bool UringQueue::consume_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(wake_event_.get(), &count, sizeof count);
  return wake_asked_.exchange(false, std::memory_order_acq_rel);
}

void UringQueue::wake() {
  if (disowned_ || wake_asked_.exchange(true, std::memory_order_acq_rel)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(wake_event_.get(), &one, sizeof one);
}

}  // namespace slackwater
