// The contract of IoQueue, tested on both backends.
#include "os/io_queue.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/thread.hpp"
#include "os/file_system.hpp"
#include "os/uring_queue.hpp"
#include "support/aligned_buffer.hpp"
#include "support/child_process.hpp"
#include "support/fault_file_system.hpp"
#include "support/small_mount.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPiece = 16384;
constexpr unsigned kDepth = 4;

struct Kind {
  const char* name;
  bool threads;
  bool direct;
  bool registered;
  bool nudged = false;  // whenever nothing has ended yet
};

class IoQueueTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    queue_ = make_queue();
    if (queue_->backend() != (GetParam().threads ? "threads" : "io_uring")) {
      GTEST_SKIP() << "io_uring is not to be had here: " << queue_->fallback_reason();
    }
    if (GetParam().registered) {
      for (int index = 0; index < static_cast<int>(kDepth); ++index) {
        if (Status registered = queue_->register_buffer(index, piece(index)); !registered) {
          GTEST_SKIP() << registered.error().to_string();
        }
      }
    }
  }

  [[nodiscard]] std::unique_ptr<IoQueue> make_queue() {
    const IoQueueOptions options{.depth = kDepth, .buffer_slots = kDepth, .force_threads = GetParam().threads};
    if (GetParam().nudged) {
      if (auto queue = UringQueue::create(options, 0ms)) return std::move(*queue);
    }
    return fs_->make_queue(options).value();
  }
  [[nodiscard]] std::unique_ptr<File> create(const std::string& name) {
    return fs_->open(dir_ / name, OpenMode::kCreateExclusive, GetParam().direct).value();
  }
  [[nodiscard]] std::unique_ptr<File> open(const std::string& name) {
    return fs_->open(dir_ / name, OpenMode::kRead, GetParam().direct).value();
  }
  [[nodiscard]] std::span<std::byte> piece(int index) {
    return memory_.bytes().subspan(static_cast<std::size_t>(index) * kPiece, kPiece);
  }
  // Piece `index` of the memory at piece `at` of the file.
  [[nodiscard]] IoRequest request(IoOp op, File& file, int index, std::uint64_t at) {
    return {op, &file, piece(index).data(), kPiece, at * kPiece, GetParam().registered ? index : -1, at};
  }
  void drain(std::vector<IoCompletion>& completions) {
    while (queue_->in_flight() > 0) ASSERT_TRUE(queue_->wait(completions, std::nullopt));
  }
  [[nodiscard]] IoCompletion run(const IoRequest& request) {
    EXPECT_TRUE(queue_->submit(request));
    std::vector<IoCompletion> completions;
    drain(completions);
    return completions.at(0);
  }
  // Buffered, without the queue.
  [[nodiscard]] std::string content(const std::string& name) {
    std::ifstream stream(dir_ / name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  test::TempDir dir_;
  test::AlignedBuffer memory_{kDepth * kPiece};
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  std::unique_ptr<IoQueue> queue_;
};

INSTANTIATE_TEST_SUITE_P(Backends, IoQueueTest,
                         testing::Values(Kind{"UringBuffered", false, false, false},
                                         Kind{"UringDirect", false, true, false},
                                         Kind{"UringDirectRegistered", false, true, true},
                                         Kind{"UringBufferedRegistered", false, false, true},
                                         Kind{"UringDirectNudged", false, true, false, true},
                                         Kind{"UringBufferedNudged", false, false, false, true},
                                         Kind{"ThreadsBuffered", true, false, false},
                                         Kind{"ThreadsDirect", true, true, false}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(IoQueueTest, CarriesManyMoreRequestsThanItsDepth) {
  constexpr std::uint64_t kPieces = 50;
  const auto file = create("f");
  std::vector<int> free = {0, 1, 2, 3};
  std::map<std::uint64_t, int> used;  // piece of the file -> piece of the memory
  std::vector<IoCompletion> completions;
  const auto collect = [&] {
    completions.clear();
    ASSERT_TRUE(queue_->wait(completions, std::nullopt));
    for (const IoCompletion& completion : completions) {
      ASSERT_TRUE(completion.size_bytes) << completion.size_bytes.error().to_string();
      EXPECT_EQ(*completion.size_bytes, kPiece);
      free.push_back(used.at(completion.tag));
      used.erase(completion.tag);
    }
  };
  for (std::uint64_t at = 0; at < kPieces; ++at) {
    while (free.empty()) collect();
    const int index = free.back();
    free.pop_back();
    std::memset(piece(index).data(), static_cast<int>(at + 1), kPiece);
    used[at] = index;
    ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, index, at)));
  }
  while (!used.empty()) collect();
  EXPECT_EQ(queue_->in_flight(), 0u);

  const auto reader = open("f");
  for (std::uint64_t at = 0; at < kPieces; at += kDepth) {
    std::vector<IoCompletion> read;
    for (std::uint64_t i = 0; i < kDepth && at + i < kPieces; ++i) {
      ASSERT_TRUE(queue_->submit(request(IoOp::kRead, *reader, static_cast<int>(i), at + i)));
    }
    drain(read);
    for (const IoCompletion& completion : read) {
      ASSERT_EQ(completion.size_bytes.value(), kPiece);
      const auto bytes = piece(static_cast<int>(completion.tag - at));
      for (const std::byte byte : bytes) ASSERT_EQ(byte, static_cast<std::byte>(completion.tag + 1));
    }
  }
}

TEST_P(IoQueueTest, AReadThatMeetsTheEndOfTheFileGivesFewerBytes) {
  std::ofstream(dir_ / "f") << std::string(kPiece + 5000, 'x');
  const auto file = open("f");
  EXPECT_EQ(run(request(IoOp::kRead, *file, 0, 0)).size_bytes.value(), kPiece);
  EXPECT_EQ(run(request(IoOp::kRead, *file, 0, 1)).size_bytes.value(), 5000u);
  EXPECT_EQ(piece(0)[4999], std::byte{'x'});
  EXPECT_EQ(run(request(IoOp::kRead, *file, 0, 7)).size_bytes.value(), 0u);
}

TEST_P(IoQueueTest, ARequestOfNoBytesCompletes) {
  const auto file = create("f");
  IoRequest nothing = request(IoOp::kWrite, *file, 0, 0);
  nothing.size_bytes = 0;
  EXPECT_EQ(run(nothing).size_bytes.value(), 0u);
}

TEST_P(IoQueueTest, RefusesMoreThanItsDepth) {
  const auto file = create("f");
  EXPECT_EQ(queue_->depth(), kDepth);
  for (int i = 0; i < static_cast<int>(kDepth); ++i) {
    ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, i, static_cast<std::uint64_t>(i))));
  }
  EXPECT_EQ(queue_->in_flight(), kDepth);
  EXPECT_FALSE(queue_->submit(request(IoOp::kWrite, *file, 0, 9)));
  std::vector<IoCompletion> completions;
  drain(completions);
  EXPECT_EQ(completions.size(), kDepth);
}

TEST_P(IoQueueTest, AFailedTransferIsReportedInItsCompletion) {
  std::ofstream(dir_ / "f") << "x";
  const auto file = open("f");
  const IoCompletion completion = run(request(IoOp::kWrite, *file, 0, 3));  // open for reading only
  EXPECT_EQ(completion.tag, 3u);
  ASSERT_FALSE(completion.size_bytes);
  EXPECT_EQ(completion.size_bytes.error().sys_errno, EBADF);
  EXPECT_EQ(completion.size_bytes.error().path, dir_ / "f");
}

TEST_P(IoQueueTest, ADiskThatFillsUpInTheMiddleOfAWriteIsNoSpace) {
  const test::SmallMount disk("tmpfs", "size=24k");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  const auto file = fs_->open(disk / "f", OpenMode::kCreateExclusive, GetParam().direct).value();
  EXPECT_EQ(run(request(IoOp::kWrite, *file, 0, 0)).size_bytes.value(), kPiece);
  const IoCompletion completion = run(request(IoOp::kWrite, *file, 1, 1));  // half of it fits
  ASSERT_FALSE(completion.size_bytes);
  EXPECT_EQ(completion.size_bytes.error().kind, ErrorKind::kNoSpace);
}

TEST_P(IoQueueTest, AMisalignedWriteIsRefusedOnlyUnderDirectIo) {
  const auto file = create("f");
  IoRequest misaligned = request(IoOp::kWrite, *file, 0, 0);
  misaligned.data += 1;
  misaligned.size_bytes = 100;
  if (file->direct()) {
    const IoCompletion refused = run(misaligned);
    ASSERT_FALSE(refused.size_bytes);
    EXPECT_EQ(refused.size_bytes.error().sys_errno, EINVAL);
    ASSERT_TRUE(file->set_direct(false));
  }
  EXPECT_EQ(run(misaligned).size_bytes.value(), 100u);
}

TEST_P(IoQueueTest, TimeRunsOutWhenNothingCompletes) {
  std::vector<IoCompletion> completions;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(queue_->wait(completions, 5ms));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 5ms);
  ASSERT_TRUE(queue_->wait(completions, 0ms));
  ASSERT_TRUE(queue_->wait(completions, -1ms));
  EXPECT_TRUE(completions.empty());
}

TEST_P(IoQueueTest, PollingReturnsWhatHasCompleted) {
  const auto file = create("f");
  ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, 0, 0)));
  std::vector<IoCompletion> completions;
  while (completions.empty()) ASSERT_TRUE(queue_->wait(completions, Duration::zero()));
  EXPECT_EQ(completions[0].size_bytes.value(), kPiece);
}

TEST_P(IoQueueTest, ACompletionEndsAWaitOfAnyLength) {
  const auto file = create("f");
  std::vector<IoCompletion> completions;
  ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, 0, 0)));
  ASSERT_TRUE(queue_->wait(completions, Duration::max()));
  EXPECT_EQ(completions.size(), 1u);
}

TEST_P(IoQueueTest, AWakeBeforeTheWaitEndsItOnce) {
  std::vector<IoCompletion> completions;
  for (int round = 0; round < 3; ++round) {
    queue_->wake();
    queue_->wake();
    ASSERT_TRUE(queue_->wait(completions, std::nullopt));
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(queue_->wait(completions, 2ms));
    EXPECT_GE(std::chrono::steady_clock::now() - start, 2ms);
  }
  EXPECT_TRUE(completions.empty());
}

TEST_P(IoQueueTest, AWakeFromAnotherThreadEndsTheWait) {
  constexpr int kRounds = 200;
  std::atomic<int> woken = 0;
  std::atomic<int> asked = 0;
  const auto waker = start_thread("waker", [&](std::stop_token) {
    for (int round = 0; round < kRounds; ++round) {
      asked = round + 1;
      queue_->wake();
      while (woken.load() <= round) std::this_thread::yield();
    }
  });
  std::vector<IoCompletion> completions;
  for (int round = 0; round < kRounds; ++round) {
    while (asked.load() <= round) ASSERT_TRUE(queue_->wait(completions, std::nullopt));
    woken = round + 1;
  }
  EXPECT_TRUE(completions.empty());
}

TEST_P(IoQueueTest, NothingIsLostBetweenWakesAndCompletions) {
  const auto file = create("f");
  std::atomic<bool> stop = false;
  const auto waker = start_thread("waker", [&](std::stop_token) {
    while (!stop) queue_->wake();
  });
  std::vector<IoCompletion> completions;
  for (std::uint64_t at = 0; at < 100; ++at) {
    while (queue_->in_flight() == queue_->depth()) ASSERT_TRUE(queue_->wait(completions, std::nullopt));
    ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, static_cast<int>(at % kDepth), at)));
  }
  drain(completions);
  stop = true;
  EXPECT_EQ(completions.size(), 100u);
}

TEST_P(IoQueueTest, AClosedFilesDescriptorMayBeUsedAgain) {
  for (const bool tell : {true, false}) {
    const std::string first = tell ? "told-1" : "silent-1";
    const std::string second = tell ? "told-2" : "silent-2";
    auto file = create(first);
    const int descriptor = file->descriptor();
    std::memset(piece(0).data(), 'a', kPiece);
    ASSERT_EQ(run(request(IoOp::kWrite, *file, 0, 0)).size_bytes.value(), kPiece);
    if (tell) queue_->forget(*file);
    ASSERT_TRUE(file->close());
    file = create(second);
    ASSERT_EQ(file->descriptor(), descriptor);
    std::memset(piece(0).data(), 'b', kPiece);
    ASSERT_EQ(run(request(IoOp::kWrite, *file, 0, 0)).size_bytes.value(), kPiece);
    EXPECT_EQ(content(first), std::string(kPiece, 'a'));
    EXPECT_EQ(content(second), std::string(kPiece, 'b'));
  }
}

TEST_P(IoQueueTest, ServesMoreFilesThanItRemembers) {
  constexpr int kFiles = 40;
  std::vector<std::unique_ptr<File>> files;
  for (int i = 0; i < kFiles; ++i) files.push_back(create(std::to_string(i)));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      std::memset(piece(0).data(), 'A' + i, kPiece);
      ASSERT_EQ(run(request(IoOp::kWrite, *files[static_cast<std::size_t>(i)], 0, 0)).size_bytes.value(), kPiece);
    }
  }
  for (int i = 0; i < kFiles; ++i)
    EXPECT_EQ(content(std::to_string(i)), std::string(kPiece, static_cast<char>('A' + i))) << i;
}

TEST_P(IoQueueTest, ItsDestructorWaitsForRequestsInFlight) {
  const auto file = create("f");
  for (int i = 0; i < static_cast<int>(kDepth); ++i) {
    std::memset(piece(i).data(), 'a' + i, kPiece);
    ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, i, static_cast<std::uint64_t>(i))));
  }
  queue_.reset();
  const std::string text = content("f");
  ASSERT_EQ(text.size(), kDepth * kPiece);
  EXPECT_EQ(text[0], 'a');
  EXPECT_EQ(text.back(), 'a' + static_cast<int>(kDepth) - 1);
}

// When the queue is destroyed, every worker hangs in a write and more writes are waiting.
TEST(ThreadQueueTest, ItsDestructorAlsoWritesWaitingRequests) {
  constexpr std::uint64_t kWrites = 32;
  const test::TempDir directory;
  const std::unique_ptr<FileSystem> posix = make_posix_file_system();
  test::FaultFileSystem fs(*posix);
  const auto file = fs.open(directory / "f", OpenMode::kCreateExclusive, false).value();
  auto queue = posix->make_queue({.depth = kWrites, .buffer_slots = 0, .force_threads = true}).value();
  std::vector<std::byte> byte(1, std::byte{'x'});
  fs.hang(test::FsCall::kWriteAt, {.times = 8});  // as many as there are workers
  for (std::uint64_t i = 0; i < kWrites; ++i)
    ASSERT_TRUE(queue->submit({IoOp::kWrite, file.get(), byte.data(), 1, i, -1, i}));
  fs.wait_hung(8);
  std::jthread ending = start_thread("ending", [&](std::stop_token) { queue.reset(); });
  std::this_thread::sleep_for(50ms);  // it has begun by now; if not, nothing is shown
  fs.release_hung();
  ending.join();
  EXPECT_EQ(std::filesystem::file_size(directory / "f"), kWrites);
}

// The thread that made the queue and armed its wake-up may have ended when another one uses it.
TEST_P(IoQueueTest, MayBeHandedToAnotherThread) {
  std::unique_ptr<IoQueue> queue;
  start_thread("maker", [&](std::stop_token) {
    queue = make_queue();
    std::vector<IoCompletion> none;
    EXPECT_TRUE(queue->wait(none, 0ms));
  }).join();
  const auto file = create("f");
  ASSERT_TRUE(queue->submit({IoOp::kWrite, file.get(), piece(0).data(), kPiece, 0, -1, 5}));
  std::vector<IoCompletion> completions;
  while (completions.empty()) ASSERT_TRUE(queue->wait(completions, std::nullopt));
  EXPECT_EQ(completions[0].size_bytes.value(), kPiece);
  const auto waker = start_thread("waker", [&](std::stop_token) { queue->wake(); });
  ASSERT_TRUE(queue->wait(completions, std::nullopt));
  EXPECT_EQ(completions.size(), 1u);
}

TEST_P(IoQueueTest, AForkedChildCanDropItAndTheParentGoesOn) {
  const auto file = create("f");
  std::memset(piece(0).data(), 'a', kPiece);
  ASSERT_TRUE(queue_->submit(request(IoOp::kWrite, *file, 0, 0)));
  EXPECT_EQ(test::run_in_child([&] {
              queue_->wake();
              queue_.reset();
              return 7;
            }),
            7);
  std::vector<IoCompletion> completions;
  drain(completions);
  EXPECT_EQ(completions.at(0).size_bytes.value(), kPiece);
  EXPECT_EQ(content("f"), std::string(kPiece, 'a'));
}

TEST_P(IoQueueTest, AForkedChildCannotUseIt) {
  const auto file = create("f");
  EXPECT_EQ(test::run_in_child([&] {
              const Status submitted = queue_->submit(request(IoOp::kWrite, *file, 0, 0));
              if (submitted || submitted.error().kind != ErrorKind::kClosed) return 1;
              std::vector<IoCompletion> completions;
              const Status waited = queue_->wait(completions, std::nullopt);
              return waited || waited.error().kind != ErrorKind::kClosed ? 2 : 0;
            }),
            0);
}

}  // namespace
}  // namespace slackwater
