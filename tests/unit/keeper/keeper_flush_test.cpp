// What the keeper does between two trainers: it writes what the last one staged, whatever happens meanwhile.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "keeper/keeper_client.hpp"
#include "keeper/keeper_server.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "unit/keeper/staged.hpp"
#include "version/catalog.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

// The keeper on a thread of the test, with a disk of its own. The trainers are in the test's own process, which lives.
class KeeperFlushTest : public ::testing::Test {
 protected:
  explicit KeeperFlushTest(std::chrono::milliseconds end_within = std::chrono::minutes(10),
                           std::chrono::milliseconds flush_pause = std::chrono::milliseconds(1)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    signals_ = UniqueFd(ends[1]);
    {
      auto store = VersionStore::open(*real_, clock_, root_, Log(), VersionStore::Role::kLeader).value();
      attempt_ = store->attempt().claim("test", {}, {"me"}).value();
      EXPECT_TRUE(store->make_version(7).has_value());
    }
    const Log log([this](LogLevel, std::string_view text) {
      if (on_log_) on_log_(text);
      {
        const std::lock_guard lock(lines_mutex_);
        lines_.emplace_back(text);
        lines_changed_.notify_all();
      }
      if (text.find("step 7 is committed") != std::string_view::npos)
        std::call_once(first_commit_, [this] { committed_.set_value(); });
    });
    server_ = std::make_unique<KeeperServer>(KeeperOptions{.directory = root_,
                                                           .idle_within = std::chrono::milliseconds(10),
                                                           .flush_pause = flush_pause,
                                                           .end_within = end_within},
                                             disk_, clock_, log, listen_at(keeper_address(root_, 0).value()).value(),
                                             UniqueFd(ends[0]));
    thread_ = std::thread([this] { ended_.set_value(server_->run()); });
  }
  ~KeeperFlushTest() override {
    disk_.release_hung();
    if (thread_.joinable()) release_stale_keeper(settings_);
    if (thread_.joinable()) thread_.join();
  }

  void stage_and_leave(const LeftBehind& left = {}) const {
    test::stage_and_leave(settings_, {7, attempt_.number}, attempt_.run, left);
  }
  // Waits until the keeper has logged it.
  void until_said(std::string_view words) {
    std::unique_lock lock(lines_mutex_);
    EXPECT_TRUE(lines_changed_.wait_for(lock, std::chrono::minutes(2), [&] {
      return std::ranges::any_of(lines_, [&](const auto& line) { return line.find(words) != std::string::npos; });
    })) << words;
  }
  void send_sigterm() const {  // as a signalfd tells it
    const signalfd_siginfo info{};
    ASSERT_EQ(::write(signals_.get(), &info, sizeof info), static_cast<ssize_t>(sizeof info));
  }
  // What run() returned.
  bool wait_end() {
    auto ended = ended_.get_future();
    EXPECT_EQ(ended.wait_for(std::chrono::minutes(2)), std::future_status::ready);
    thread_.join();
    return ended.get();
  }
  [[nodiscard]] bool logged(std::string_view words) {
    const std::lock_guard lock(lines_mutex_);
    return std::ranges::any_of(lines_, [&](const auto& line) { return line.find(words) != std::string::npos; });
  }
  [[nodiscard]] UniqueFd connect() const {
    return connect_to(keeper_address(root_, 0).value(), std::chrono::seconds(60)).value();
  }
  // All connections before this one are served by then.
  [[nodiscard]] bool is_flushing() const { return peek_at_keeper(settings_).value().value().flushing; }
  void until_written() {
    wait_for_flush(settings_, std::chrono::minutes(2));
    const VersionName name{7, attempt_.number};
    const auto manifest = read_manifest(*real_, root_, name);
    ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
    EXPECT_EQ(manifest->decision, Decision::kCommit);
    EXPECT_EQ(real_->list_files(version_path(root_, name))->size(), 4u);
  }
  void expect_memory_for_the_next() {
    const auto next = KeeperClient::attach(settings_);
    ASSERT_TRUE(next.has_value()) << next.error().to_string();
    ASSERT_NE(next->value()->memory(), nullptr);
    EXPECT_EQ(Region::open(next->value()->memory()).value().kept().size(), 1u);
    EXPECT_FALSE(next->value()->earlier_flush_hangs());
  }

  const TempDir directory_;
  const std::string root_ = directory_ / "run";
  const SystemClock clock_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem disk_{*real_};
  const KeeperSettings settings_{
      .directory = root_, .program = "/nonexistent/slackwater", .answer_within = std::chrono::seconds(60)};
  Attempt attempt_;
  std::function<void(std::string_view)> on_log_;  // set before the keeper says anything
  std::mutex lines_mutex_;                        // guards what follows
  std::condition_variable lines_changed_;
  std::vector<std::string> lines_;
  std::once_flag first_commit_;
  std::promise<void> committed_;
  UniqueFd signals_;
  std::promise<bool> ended_;
  std::unique_ptr<KeeperServer> server_;
  std::thread thread_;
};

TEST_F(KeeperFlushTest, AnAttachWhoseTrainerHasGivenUpEndsNoFlush) {
  // The keeper is held up where it learns that its trainer is gone. Meanwhile another one comes, and waits in vain.
  std::promise<void> held;
  std::promise<void> go_on;
  on_log_ = [&, first = true](std::string_view text) mutable {
    if (text.find("has ended or disconnected") == std::string_view::npos || !std::exchange(first, false)) return;
    held.set_value();
    go_on.get_future().wait();
  };
  disk_.hang(FsCall::kWriteAt);
  stage_and_leave();
  held.get_future().wait();
  ASSERT_TRUE(send_message(connect(), {.kind = MessageKind::kAttach}).has_value());
  go_on.set_value();
  disk_.wait_hung(1);
  EXPECT_TRUE(is_flushing());
  EXPECT_EQ(disk_.count(FsCall::kTryLock), 1u) << "it is the same flush";
  disk_.release_hung();
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, AnAttachThatCannotBeAnsweredIsUndone) {
  disk_.hang(FsCall::kWriteAt);
  stage_and_leave();
  disk_.wait_hung(1);
  const UniqueFd deaf = connect();  // its process lives
  ASSERT_EQ(::shutdown(deaf.get(), SHUT_RD), 0);
  ASSERT_TRUE(send_message(deaf, {.kind = MessageKind::kAttach}).has_value());
  // By another flush. Nobody talks to the keeper meanwhile.
  ASSERT_EQ(committed_.get_future().wait_for(std::chrono::minutes(2)), std::future_status::ready);
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, ATrainerThatIsCutOffForGarbageIsOver) {
  const UniqueFd trainer = connect();
  ASSERT_TRUE(send_message(trainer, {.kind = MessageKind::kAttach}).has_value());
  ASSERT_TRUE(receive_message(trainer).has_value());
  ASSERT_EQ(::send(trainer.get(), "x", 1, MSG_NOSIGNAL), 1);
  char byte = 0;
  EXPECT_LE(::recv(trainer.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(KeeperClient::attach(settings_).has_value());
}

TEST_F(KeeperFlushTest, AFlushThatCannotBeginIsTriedAgain) {
  disk_.raise(FsCall::kTryLock);  // as when there is no thread for it
  stage_and_leave();
  EXPECT_TRUE(is_flushing());
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, AFlushThatRunsOutOfMemoryIsTriedAgain) {
  disk_.raise(FsCall::kWriteAt);
  stage_and_leave();
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, AFlushThatFailsIsTriedAgain) {
  disk_.fail(FsCall::kWriteAt, ENOSPC, {.times = 3});  // then somebody makes room
  stage_and_leave();
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, AFlushThatGetsNoLockIsTriedAgain) {
  disk_.fail(FsCall::kTryLock, EIO);
  stage_and_leave();
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, AMemoryThatCannotBeMappedIsTriedAgain) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  // Also called when the test is over: by then it does nothing.
  on_log_ = [before, first = true](std::string_view text) mutable {
    if (text.find("has ended or disconnected") != std::string_view::npos && std::exchange(first, false)) {
      std::uint64_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      rlimit tight = before;  // the region needs more, and nothing else does
      tight.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + (64u << 20);
      ::setrlimit(RLIMIT_AS, &tight);
    }
    if (text.find("cannot be read now") != std::string_view::npos) ::setrlimit(RLIMIT_AS, &before);
  };
  stage_and_leave();
  until_said("the memory cannot be read now");
  until_written();
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, ItSaysThatItHoldsNothingUnsaved) {
  stage_and_leave({.committed = true});
  until_said("the memory holds nothing unsaved");
}

TEST_F(KeeperFlushTest, ItSaysWhichStepOfSeveralRanksItHoldsAndThatItIsLostWithTheMemory) {
  stage_and_leave({.world = 2});
  until_said("step 7 is held for the restart, because one keeper cannot commit a step of several ranks");
  release_stale_keeper(settings_);
  until_said("step 7 is only in this memory, as far as the keeper knows, and lost with it");
}

TEST_F(KeeperFlushTest, WhoeverWaitsForAFlushSeesItsProgress) {
  disk_.hang(FsCall::kWriteAt, {.nth = 2, .path = "safetensors"});
  stage_and_leave();
  disk_.wait_hung(1);
  EXPECT_EQ(peek_at_keeper(settings_)->value().progress, 1u);
}

// Answers peeks: a flush that has written one slab more each time, and is done at last.
TEST(WaitForFlush, ASlowFlushIsWaitedForAsLongAsItGoesOn) {
  const TempDir directory;
  const KeeperSettings settings{.directory = directory.path()};
  const UniqueFd listener = listen_at(keeper_address(directory.path(), 0).value()).value();
  const UniqueFd memory = make_shared_memory("test", 1u << 20).value();
  constexpr std::uint32_t kSlabs = 5;
  std::atomic<std::uint32_t> peeks = 0;
  std::thread keeper([&] {
    while (peeks <= kSlabs) {
      pollfd watched{.fd = listener.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&watched, 1, 120'000), 1);
      const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto mail = receive_message(socket);
      if (!mail || !*mail || (*mail)->message.kind != MessageKind::kPeek) return;  // told to end
      ++peeks;
      const KeeperMessage reply{.kind = MessageKind::kMemory, .flushing = peeks <= kSlabs ? 1u : 0u, .progress = peeks};
      ASSERT_TRUE(send_message(socket, reply, &memory));
    }
  });
  wait_for_flush(settings, std::chrono::milliseconds(0));
  EXPECT_EQ(peeks, kSlabs + 1);
  if (peeks <= kSlabs) release_stale_keeper(settings);
  keeper.join();
}

TEST_F(KeeperFlushTest, AFlushThatHangsIsToldToTheNextTrainerAndNoOtherBeginsBeforeItHasEnded) {
  disk_.hang(FsCall::kUnlink);
  stage_and_leave();
  disk_.wait_hung(1);
  {
    const auto trainer = KeeperClient::attach(settings_).value().value();
    ASSERT_NE(trainer->memory(), nullptr);
    EXPECT_TRUE(trainer->earlier_flush_hangs());
  }
  EXPECT_TRUE(is_flushing()) << "or will be";
  EXPECT_EQ(disk_.count(FsCall::kTryLock), 1u);
  disk_.release_hung();
  until_written();
  EXPECT_EQ(disk_.count(FsCall::kTryLock), 2u);
  expect_memory_for_the_next();
}

TEST_F(KeeperFlushTest, ToldToEndItWritesTheStepFirst) {
  disk_.hang(FsCall::kWriteAt);
  stage_and_leave();
  disk_.wait_hung(1);
  send_sigterm();
  disk_.release_hung();
  EXPECT_TRUE(wait_end());
  EXPECT_TRUE(logged("step 7 is committed"));
  EXPECT_FALSE(logged("lost with it"));
  EXPECT_TRUE(read_manifest(*real_, root_, {7, attempt_.number}).has_value());
}

// A write has failed so often that the next try is far away.
class KeeperLongPauseTest : public KeeperFlushTest {
 protected:
  KeeperLongPauseTest() : KeeperFlushTest(std::chrono::seconds(30), std::chrono::hours(1)) {}
};

TEST_F(KeeperLongPauseTest, ToldToEndItTriesAgainAtOnce) {
  disk_.fail(FsCall::kWriteAt, ENOSPC, {.times = 2});  // then somebody makes room
  stage_and_leave();
  until_said("step 7 could not be written");
  send_sigterm();
  EXPECT_TRUE(wait_end());
  EXPECT_TRUE(logged("step 7 is committed"));
  EXPECT_FALSE(logged("lost with it"));
}

// The disk does not answer, and whoever sent SIGTERM does not wait for ever.
class KeeperEndTest : public KeeperFlushTest {
 protected:
  KeeperEndTest() : KeeperFlushTest(std::chrono::milliseconds(50)) {}
};

TEST_F(KeeperEndTest, ToldToEndItGivesUpAWriteThatHangsAndNamesTheStep) {
  disk_.hang(FsCall::kWriteAt);
  stage_and_leave();
  disk_.wait_hung(1);
  send_sigterm();
  EXPECT_FALSE(wait_end()) << "its thread hangs";
  EXPECT_TRUE(logged("lost with it: not written within 50 ms of SIGTERM"));
}

TEST_F(KeeperEndTest, ToldToEndItDoesNotWaitForAnEarlierWriteThatHangs) {
  disk_.hang(FsCall::kUnlink);
  stage_and_leave();
  disk_.wait_hung(1);
  ASSERT_TRUE(KeeperClient::attach(settings_).value().value()->earlier_flush_hangs());
  send_sigterm();
  EXPECT_FALSE(wait_end()) << "its thread hangs";
  EXPECT_TRUE(logged("step 7 is only in this memory"));
  EXPECT_TRUE(logged("because an earlier write hangs"));
}

TEST_F(KeeperEndTest, ToldToEndItDoesNotWaitForADecisionThatHangs) {
  disk_.hang(FsCall::kLink);
  stage_and_leave();
  disk_.wait_hung(1);
  send_sigterm();
  EXPECT_FALSE(wait_end()) << "its thread hangs";
  EXPECT_TRUE(logged("whether it is committed will be seen at the next start"));
}

}  // namespace
}  // namespace slackwater::test
