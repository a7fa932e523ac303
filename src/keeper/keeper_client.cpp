#include "keeper/keeper_client.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"

namespace slackwater {
namespace {

Error without_answer() {
  return {ErrorKind::kIo,
          "the keeper closed the connection instead of answering; is the keeper from another release?",
          {},
          0,
          true};
}

Result<ReceivedMessage> exchange(const UniqueFd& socket, const KeeperMessage& request) {
  SW_TRY(send_message(socket, request));
  SW_ASSIGN(std::optional<ReceivedMessage> reply, receive_message(socket));
  if (!reply) return fail(without_answer());
  return std::move(*reply);
}

Result<std::shared_ptr<SharedMemory>> map_reply(const ReceivedMessage& reply, SharedMemory::Access access) {
  if (!reply.descriptor)
    return fail(ErrorKind::kCorrupt, "the keeper sent no memory; is the keeper from another release?");
  return SharedMemory::map(reply.descriptor, access);
}

struct SpawnSettings {
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};
  SpawnSettings() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

// Starts the program and waits until it listens. It forks once more (keeper.cpp of the command line), so what is waited
// for is only the process that was started here, and no child is left behind for the trainer to reap.
Status spawn_keeper(const KeeperSettings& settings) {
  SpawnSettings how;
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&how.files, stream, "/dev/null", 2 /* O_RDWR */, 0);
  // A session of its own: signals for the trainer's process group and terminal do not reach it. The trainer's masks and
  // ignored signals are not its own.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&how.attributes, &none);
  posix_spawnattr_setsigdefault(&how.attributes, &all);
  posix_spawnattr_setflags(&how.attributes,
                           static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  std::vector<std::string> words{settings.program,
                                 "keeper",
                                 settings.directory,
                                 "--rank",
                                 fmt::format("{}", settings.rank),
                                 "--keep-for",
                                 fmt::format("{}", std::chrono::duration<double>(settings.keep_for).count())};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t process = 0;
  if (const int failed =
          ::posix_spawnp(&process, arguments.front(), &how.files, &how.attributes, arguments.data(), environ);
      failed != 0)
    return fail(error_from_errno(failed, "cannot start the keeper process", settings.program));
  int status = 0;
  pid_t ended = 0;
  do {
    ended = ::waitpid(process, &status, 0);
  } while (ended < 0 && errno == EINTR);
  // Somebody else may have reaped it (a trainer that ignores SIGCHLD). Whether it listens shows in a moment.
  if (ended == process && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
    return fail(ErrorKind::kUnsupported,
                fmt::format("the keeper process ended at once (wait status {}); '{} keeper' must be the program of "
                            "this release",
                            status, settings.program));
  return {};
}

}  // namespace

KeeperClient::KeeperClient(UniqueFd socket)
    : socket_(std::move(socket)), fork_guard_([this] { (void)socket_.close(); }) {}

Result<ReceivedMessage> KeeperClient::ask(const KeeperMessage& request) { return exchange(socket_, request); }

Result<std::optional<std::unique_ptr<KeeperClient>>> KeeperClient::attach(const KeeperSettings& settings) {
  using Attached = std::optional<std::unique_ptr<KeeperClient>>;
  auto address = keeper_address(settings.directory, settings.rank);
  if (!address && address.error().kind == ErrorKind::kNotFound) return Attached();  // not even a directory
  if (!address) return fail(std::move(address).error());
  auto socket = connect_to(*address, settings.answer_within);
  if (!socket && socket.error().kind == ErrorKind::kNotFound) return Attached();
  if (!socket) return fail(std::move(socket).error());
  std::unique_ptr<KeeperClient> client(new KeeperClient(std::move(*socket)));
  SW_ASSIGN(const ReceivedMessage reply, client->ask({.kind = MessageKind::kAttach}));
  if (reply.message.kind == MessageKind::kRefused)
    return fail(ErrorKind::kBusy,
                fmt::format("process {} is attached to the keeper of this directory", reply.message.pid),
                settings.directory);
  client->earlier_flush_hangs_ = reply.message.flushing != 0;
  if (reply.message.kind == MessageKind::kMemory) {
    SW_ASSIGN(client->memory_, map_reply(reply, SharedMemory::Access::kWrite));
  }
  return Attached(std::move(client));
}

Result<std::unique_ptr<KeeperClient>> KeeperClient::start(const KeeperSettings& settings) {
  SW_ASSIGN(auto attached, attach(settings));
  if (attached) return std::move(*attached);
  SW_TRY(spawn_keeper(settings));
  SW_ASSIGN(attached, attach(settings));
  if (attached) return std::move(*attached);
  return fail(ErrorKind::kIo, "the keeper process does not answer", settings.program);
}

Result<std::shared_ptr<SharedMemory>> KeeperClient::make_memory(std::uint64_t size_bytes) {
  memory_.reset();
  SW_ASSIGN(const ReceivedMessage reply, ask({.kind = MessageKind::kMakeMemory, .bytes = size_bytes}));
  if (reply.message.kind != MessageKind::kMemory)
    return fail(error_from_errno(reply.message.sys_errno, "the keeper could not make its memory"));
  return map_reply(reply, SharedMemory::Access::kWrite);
}

Status KeeperClient::release() {
  SW_ASSIGN(const ReceivedMessage reply, ask({.kind = MessageKind::kRelease}));
  if (reply.message.kind == MessageKind::kReleased) return {};
  return fail(ErrorKind::kIo, "the keeper did not release its memory");
}

Result<std::optional<PeekedMemory>> peek_at_keeper(const KeeperSettings& settings) {
  using Peeked = std::optional<PeekedMemory>;
  auto address = keeper_address(settings.directory, settings.rank);
  if (!address && address.error().kind == ErrorKind::kNotFound) return Peeked();  // not even a directory
  if (!address) return fail(std::move(address).error());
  const auto socket = connect_to(*address, settings.answer_within);
  if (!socket && socket.error().kind == ErrorKind::kNotFound) return Peeked();
  if (!socket) return fail(socket.error());
  SW_ASSIGN(const ReceivedMessage reply, exchange(*socket, {.kind = MessageKind::kPeek}));
  if (reply.message.kind != MessageKind::kMemory) return Peeked();
  SW_ASSIGN(auto memory, map_reply(reply, SharedMemory::Access::kRead));
  return Peeked(
      {.memory = std::move(memory), .flushing = reply.message.flushing != 0, .progress = reply.message.progress});
}

void wait_for_flush(const KeeperSettings& settings, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{10};
  auto deadline = std::chrono::steady_clock::now() + timeout;
  for (std::uint32_t seen = 0;;) {
    const auto peeked = peek_at_keeper(settings);
    if (!peeked || !*peeked || !(*peeked)->flushing) return;
    const auto now = std::chrono::steady_clock::now();
    if ((*peeked)->progress > seen) {  // a flush that is tried again begins at 0: that is none
      seen = (*peeked)->progress;
      deadline = now + timeout;
    } else if (now >= deadline) {
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void release_stale_keeper(const KeeperSettings& settings) {
  const auto address = keeper_address(settings.directory, settings.rank);
  if (!address) return;
  const auto socket = connect_to(*address, settings.answer_within);
  if (!socket) return;
  // A keeper with a trainer refuses. Then another run uses the directory, and the lock says so in a moment.
  static_cast<void>(exchange(*socket, {.kind = MessageKind::kRelease}));
}

}  // namespace slackwater
