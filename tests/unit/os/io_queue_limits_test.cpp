// What the queue does on a restricted machine: io_uring forbidden, locked memory limited.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "os/file_system.hpp"
#include "support/aligned_buffer.hpp"
#include "support/child_process.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

// Makes io_uring_setup return EPERM, as many containers do. Everything else is allowed.
bool forbid_io_uring() {
  std::array filter = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Becomes an ordinary user with the given limit, because root may lock any amount.
bool limit_locked_memory(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  constexpr uid_t kNobody = 65534;
  return ::geteuid() != 0 || ::setresuid(kNobody, kNobody, kNobody) == 0;
}

bool write_one(IoQueue& queue, File& file, test::AlignedBuffer& buffer, int index) {
  std::vector<IoCompletion> completions;
  if (!queue.submit({IoOp::kWrite, &file, buffer.data(), buffer.size(), 0, index, 1})) return false;
  while (completions.empty()) {
    if (!queue.wait(completions, std::nullopt)) return false;
  }
  return completions[0].size_bytes == buffer.size();
}

class IoQueueLimitsTest : public testing::Test {
 protected:
  test::TempDir dir_;
  test::AlignedBuffer buffer_{1u << 20};
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  std::unique_ptr<File> file_ = fs_->open(dir_ / "f", OpenMode::kCreateExclusive, true).value();
};

TEST_F(IoQueueLimitsTest, WhereIoUringIsForbiddenThreadsDoTheWorkAndSayWhy) {
  const int step = test::run_in_child([&] {
    if (!forbid_io_uring()) return 1;
    const auto queue = fs_->make_queue({.depth = 8, .buffer_slots = 1});
    if (!queue) return 2;
    if ((*queue)->backend() != "threads") return 3;
    if ((*queue)->fallback_reason().find("Operation not permitted") == std::string::npos) return 4;
    const Status registered = (*queue)->register_buffer(0, buffer_.bytes());
    if (registered || registered.error().kind != ErrorKind::kUnsupported) return 5;
    return write_one(**queue, *file_, buffer_, -1) ? 0 : 6;
  });
  if (step == 1) GTEST_SKIP() << "seccomp is not permitted here";
  EXPECT_EQ(step, 0);
}

TEST_F(IoQueueLimitsTest, ABufferThatMayNotBePinnedIsAnErrorAndWorksUnregistered) {
  const int step = test::run_in_child([&] {
    if (!limit_locked_memory(256 << 10)) return 1;
    const auto queue = fs_->make_queue({.depth = 8, .buffer_slots = 2});
    if (!queue) return 2;
    if ((*queue)->backend() != "io_uring") return 1;
    const Status registered = (*queue)->register_buffer(0, buffer_.bytes());
    if (registered) return 3;
    if (registered.error().kind != ErrorKind::kPermission || registered.error().sys_errno != ENOMEM) return 4;
    if (registered.error().message.find("ulimit -l") == std::string::npos) return 5;
    return write_one(**queue, *file_, buffer_, -1) ? 0 : 6;
  });
  if (step == 1) GTEST_SKIP() << "io_uring or setrlimit is not permitted here";
  EXPECT_EQ(step, 0);
}

TEST_F(IoQueueLimitsTest, ThreadsCanBeForced) {
  const auto queue = fs_->make_queue({.depth = 2, .force_threads = true}).value();
  EXPECT_EQ(queue->backend(), "threads");
  EXPECT_EQ(queue->fallback_reason(), "");
}

TEST_F(IoQueueLimitsTest, AQueueWithoutDepthIsMisuse) {
  EXPECT_EQ(fs_->make_queue({.depth = 0}).error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(IoQueueLimitsTest, ABufferNumberOutOfRangeIsMisuse) {
  const auto queue = fs_->make_queue({.depth = 2, .buffer_slots = 1}).value();
  if (queue->backend() != "io_uring") GTEST_SKIP() << queue->fallback_reason();
  EXPECT_EQ(queue->register_buffer(1, buffer_.bytes()).error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(queue->register_buffer(-1, buffer_.bytes()).error().kind, ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace slackwater
