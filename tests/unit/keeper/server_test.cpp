#include <sys/socket.h>

#include <thread>

#include <gtest/gtest.h>

#include "keeper/keeper_client.hpp"
#include "keeper/keeper_server.hpp"
#include "os/durable.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "unit/keeper/staged.hpp"
#include "version/attempt_files.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

// The keeper on a thread of the test. The trainers are in the test's own process.
class ServerTest : public ::testing::Test {
 protected:
  void start(std::chrono::milliseconds keep_for = std::chrono::minutes(10)) {
    ASSERT_TRUE(ensure_directory(*fs_, control_path(directory_.path())).has_value());
    server_ = std::make_unique<KeeperServer>(KeeperOptions{.directory = directory_.path(), .keep_for = keep_for},
                                             faults_, clock_, Log([](LogLevel, std::string_view) {}),
                                             listen_at(address()).value(), UniqueFd());
    thread_ = std::thread([this] { static_cast<void>(server_->run()); });
  }
  ~ServerTest() override {
    if (!thread_.joinable()) return;
    release_stale_keeper(settings());
    thread_.join();
  }
  [[nodiscard]] std::string address() const { return keeper_address(directory_.path(), 0).value(); }
  [[nodiscard]] KeeperSettings settings() const {
    return {.directory = directory_.path(),
            .program = "/nonexistent/slackwater",
            .answer_within = std::chrono::seconds(60)};
  }
  [[nodiscard]] UniqueFd connect() const { return connect_to(address(), std::chrono::seconds(60)).value(); }

  const TempDir directory_;
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  FaultFileSystem faults_{*fs_};  // the keeper's
  const SystemClock clock_;
  std::unique_ptr<KeeperServer> server_;
  std::thread thread_;
};

TEST_F(ServerTest, TheNextTrainerGetsTheMemoryOfTheLast) {
  start();
  {
    auto first = KeeperClient::attach(settings()).value().value();
    EXPECT_EQ(first->memory(), nullptr);
    auto memory = first->make_memory(1u << 20);
    ASSERT_TRUE(memory.has_value());
    (*memory)->bytes()[5] = std::byte{42};
  }
  auto second = KeeperClient::attach(settings()).value().value();
  ASSERT_NE(second->memory(), nullptr);
  EXPECT_EQ(second->memory()->bytes()[5], std::byte{42});
}

TEST_F(ServerTest, ASecondTrainerIsRefusedAndMayNotReleaseTheMemory) {
  start();
  auto first = KeeperClient::attach(settings()).value().value();
  ASSERT_TRUE(first->make_memory(1u << 20).has_value());
  const auto second = KeeperClient::attach(settings());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().kind, ErrorKind::kBusy);
  release_stale_keeper(settings());
  EXPECT_TRUE(first->make_memory(2u << 20).has_value()) << "the keeper still serves its trainer";
}

TEST_F(ServerTest, WhoeverPeeksCanOnlyRead) {
  start();
  auto trainer = KeeperClient::attach(settings()).value().value();
  ASSERT_TRUE(trainer->make_memory(1u << 20).has_value());
  const UniqueFd socket = connect();
  ASSERT_TRUE(send_message(socket, {.kind = MessageKind::kPeek}).has_value());
  const auto mail = receive_message(socket);
  ASSERT_TRUE(mail.has_value() && mail->has_value());
  EXPECT_FALSE(SharedMemory::map((*mail)->descriptor, SharedMemory::Access::kWrite).has_value());
  EXPECT_TRUE(SharedMemory::map((*mail)->descriptor, SharedMemory::Access::kRead).has_value());
}

TEST_F(ServerTest, AHostileClientIsCutOffAndTheTrainerIsServed) {
  start();
  auto trainer = KeeperClient::attach(settings()).value().value();
  for (const std::string& garbage :
       {std::string("x"), std::string(sizeof(KeeperMessage), '\xff'), std::string(4096, 'a')}) {
    const UniqueFd socket = connect();
    ASSERT_EQ(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
    char byte = 0;
    EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0);
  }
  // Words that belong to the trainer, or to the keeper itself.
  for (const MessageKind kind : {MessageKind::kMakeMemory, MessageKind::kReleased, static_cast<MessageKind>(999)}) {
    const UniqueFd socket = connect();
    ASSERT_TRUE(send_message(socket, {.kind = kind, .bytes = 1u << 20}).has_value());
    const auto mail = receive_message(socket);
    ASSERT_TRUE(mail.has_value() && mail->has_value());
    EXPECT_EQ((*mail)->message.kind, MessageKind::kRefused);
  }
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connect());
  EXPECT_TRUE(trainer->make_memory(1u << 20).has_value());
}

TEST_F(ServerTest, WhoeverWantsTheLockDuringAFlushIsToldThatItIsTheKeeperAndForHowLong) {
  const std::string& root = directory_.path();
  auto store = VersionStore::open(*fs_, clock_, root, Log(), VersionStore::Role::kLeader).value();
  const Attempt attempt = store->attempt().claim("test", {}, {"me"}).value();
  ASSERT_TRUE(store->make_version(7).has_value());
  store.reset();
  start();
  faults_.hang(FsCall::kSyncAll, {.path = "record"});
  stage_and_leave(settings(), {7, attempt.number}, attempt.run);
  faults_.wait_hung(1);
  const auto lock = fs_->try_lock(lock_path(root));
  ASSERT_FALSE(lock.has_value());
  const std::string& said = lock.error().message;
  for (const char* words : {"a memory keeper is writing the last step of a trainer that died",
                            "at most until 10 min 0 s after", "(memory_timeout)", "; wait until it is done"})
    EXPECT_NE(said.find(words), std::string::npos) << said;
  faults_.release_hung();
  wait_for_flush(settings(), std::chrono::minutes(1));
  EXPECT_TRUE(read_manifest(*fs_, root, {7, attempt.number}).has_value());
  EXPECT_TRUE(fs_->try_lock(lock_path(root)).has_value());
}

TEST_F(ServerTest, WithoutATrainerItEndsByItself) {
  start(std::chrono::milliseconds(1));
  thread_.join();
  server_.reset();  // as the end of the process would
  EXPECT_FALSE(KeeperClient::attach(settings()).value().has_value());
}

TEST_F(ServerTest, AReleaseEndsIt) {
  start();
  auto trainer = KeeperClient::attach(settings()).value().value();
  ASSERT_TRUE(trainer->make_memory(1u << 20).has_value());
  EXPECT_TRUE(trainer->release().has_value());
  thread_.join();
}

TEST_F(ServerTest, WithoutAProgramToStartThereIsAnErrorThatNamesIt) {
  const auto started = KeeperClient::start(settings());
  ASSERT_FALSE(started.has_value());
  EXPECT_NE(started.error().to_string().find("/nonexistent/slackwater"), std::string::npos);
}

}  // namespace
}  // namespace slackwater::test
