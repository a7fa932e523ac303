#include "reference_io.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <liburing.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "harness.hpp"

namespace slackwater::bench {

namespace {

constexpr std::uint64_t kAlignment = 4096;

enum class Direction : std::uint8_t { kRead, kWrite };

}  // namespace

class RawIo::Impl {
 public:
  Impl(std::span<std::byte> image, const RawOptions& options) : image_(image), options_(options) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (ring_ready_) io_uring_queue_exit(&ring_);
  }

  Status set_up() {
    if (const int result = io_uring_queue_init(options_.depth, &ring_, 0); result < 0)
      return fail(error_from_errno(
          -result, "cannot set up io_uring for the reference; run the benchmarks where the kernel permits it"));
    ring_ready_ = true;
    std::vector<iovec> buffers;
    for (std::uint64_t at = 0; at < image_.size(); at += options_.request_bytes)
      buffers.push_back({image_.data() + at, std::min<std::uint64_t>(options_.request_bytes, image_.size() - at)});
    registered_ = io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size())) == 0;
    return {};
  }

  // Moves [0, size_bytes) between file and image with up to `depth` requests in flight.
  Status transfer(int fd, Direction direction, std::uint64_t size_bytes, const std::string& path) {
    struct Request {
      std::uint64_t at = 0;
      std::uint64_t end = 0;
    };
    std::vector<Request> requests;
    for (std::uint64_t at = 0; at < size_bytes; at += options_.request_bytes)
      requests.push_back({at, std::min(at + options_.request_bytes, round_up(size_bytes, kAlignment))});

    std::size_t next = 0;
    std::size_t finished = 0;
    unsigned in_flight = 0;
    const auto queue = [&](std::size_t index) {
      const Request& request = requests[index];
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      std::byte* data = image_.data() + request.at;
      const auto bytes = static_cast<unsigned>(request.end - request.at);
      const auto buffer = static_cast<int>(request.at / options_.request_bytes);
      if (direction == Direction::kWrite) {
        registered_ ? io_uring_prep_write_fixed(entry, fd, data, bytes, request.at, buffer)
                    : io_uring_prep_write(entry, fd, data, bytes, request.at);
      } else {
        registered_ ? io_uring_prep_read_fixed(entry, fd, data, bytes, request.at, buffer)
                    : io_uring_prep_read(entry, fd, data, bytes, request.at);
      }
      io_uring_sqe_set_data64(entry, index);
      ++in_flight;
    };

    Status status;
    while (finished < requests.size()) {
      while (status && next < requests.size() && in_flight < options_.depth) queue(next++);
      if (in_flight == 0) return status;
      if (const int result = io_uring_submit_and_wait(&ring_, 1); result < 0 && result != -EINTR && result != -EAGAIN)
        return fail(error_from_errno(-result, "the reference cannot submit to io_uring", path));
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        const auto index = static_cast<std::size_t>(io_uring_cqe_get_data64(completion));
        const int result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        --in_flight;
        Request& request = requests[index];
        if (result > 0) request.at += static_cast<std::uint64_t>(result);
        const bool complete =
            request.at >= (direction == Direction::kRead ? std::min(request.end, size_bytes) : request.end);
        if (complete) {
          ++finished;
        } else if (result > 0 || result == -EINTR || result == -EAGAIN) {
          if (status) queue(index);
        } else if (status) {
          status = fail(error_from_errno(result == 0 ? EIO : -result, "the reference cannot move a block", path));
        }
      }
    }
    return status;
  }

  std::span<std::byte> image_;
  RawOptions options_;
  io_uring ring_{};
  bool ring_ready_ = false;
  bool registered_ = false;
};

Result<RawIo> RawIo::create(std::span<std::byte> image, const RawOptions& options) {
  auto impl = std::make_unique<Impl>(image, options);
  SW_TRY(impl->set_up());
  return RawIo(std::move(impl));
}

RawIo::RawIo(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RawIo::RawIo(RawIo&&) noexcept = default;
RawIo& RawIo::operator=(RawIo&&) noexcept = default;
RawIo::~RawIo() = default;

bool RawIo::registered() const { return impl_->registered_; }

Result<double> RawIo::write_file(const std::string& path, std::uint64_t size_bytes) {
  const auto rounded = static_cast<off_t>(round_up(size_bytes, kAlignment));
  const Stopwatch watch;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0644));
  if (!file) return fail(error_from_errno(errno, "the reference cannot create its file", path));
  if (::fallocate(file.get(), 0, 0, rounded) != 0)
    return fail(error_from_errno(errno, "the reference cannot allocate its file", path));
  SW_TRY(impl_->transfer(file.get(), Direction::kWrite, size_bytes, path));
  if (::ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0)
    return fail(error_from_errno(errno, "the reference cannot truncate its file", path));
  if (::fdatasync(file.get()) != 0) return fail(error_from_errno(errno, "the reference cannot sync its file", path));
  if (const int sys_errno = file.close(); sys_errno != 0)
    return fail(error_from_errno(sys_errno, "the reference cannot close its file", path));
  return watch.seconds();
}

Result<double> RawIo::read_file(const std::string& path, std::uint64_t size_bytes) {
  const Stopwatch watch;
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!file) return fail(error_from_errno(errno, "the reference cannot open the file", path));
  SW_TRY(impl_->transfer(file.get(), Direction::kRead, size_bytes, path));
  if (const int sys_errno = file.close(); sys_errno != 0)
    return fail(error_from_errno(sys_errno, "the reference cannot close the file", path));
  return watch.seconds();
}

}  // namespace slackwater::bench
