// slackwater keeper: the process that holds a trainer's newest checkpoint in memory. Trainers start it; people do not.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "cli/location.hpp"
#include "cli/verbs.hpp"
#include "keeper/keeper_server.hpp"
#include "keeper/keeper_socket.hpp"
#include "slackwater/options.hpp"
#include "version/names.hpp"

namespace slackwater::cli {
namespace {

struct KeeperArguments {
  std::string directory;
  std::uint32_t rank = 0;
  double keep_for_s = std::chrono::duration<double>(Options().memory_timeout).count();
  bool foreground = false;
};

// Lines with the time, at the end of a file in the checkpoint directory. A log that cannot be written is no reason to
// lose a checkpoint.
Log open_keeper_log(const KeeperArguments& arguments) {
  const std::string path = fmt::format("{}/keeper-{:05}.log", control_path(arguments.directory), arguments.rank);
  const auto file = std::make_shared<UniqueFd>(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  return Log([file](LogLevel level, std::string_view message) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    const std::string line =
        fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z {} {} {}\n", parts.tm_year + 1900, parts.tm_mon + 1,
                    parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, ::getpid(),
                    level == LogLevel::kInfo      ? "info"
                    : level == LogLevel::kWarning ? "warning"
                                                  : "error",
                    message);
    if (*file) (void)!::write(file->get(), line.data(), line.size());
  });
}

// Whatever the trainer had open stays open as long as any process has it: sockets, pipes, locks.
void close_inherited() {
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  if (::syscall(SYS_close_range, kFirst, ~0u, 0) == 0) return;
  for (int descriptor = kFirst; descriptor < 4096; ++descriptor) ::close(descriptor);
}

UniqueFd hold_signals() {
  for (const int ignored : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE}) std::signal(ignored, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int run_keeper(const KeeperArguments& arguments) {
  close_inherited();
  ::umask(S_IRWXG | S_IRWXO);
  const auto address = keeper_address(arguments.directory, arguments.rank);
  if (!address) {
    print_error(address.error());
    return kFailed;
  }
  auto listener = listen_at(*address);
  // Another one listens: two ranks started at once, or the name was taken. Whoever started this one finds out.
  if (!listener && listener.error().kind == ErrorKind::kAlreadyExists) return kFine;
  if (!listener) {
    print_error(listener.error());
    return kFailed;
  }
  // The trainer waits for the process that it started: until here. What goes on is nobody's child, so nobody has to
  // reap it. There is one thread so far, so fork is safe.
  if (!arguments.foreground) {
    const pid_t child = ::fork();
    if (child != 0) return child < 0 ? kFailed : kFine;
    (void)::setsid();
  }
  (void)::prctl(PR_SET_NAME, "sw-keeper");
  if (::chdir("/") != 0) return kFailed;  // keeps no directory busy
  const auto fs = make_posix_file_system();
  const SystemClock clock;
  const Log log = open_keeper_log(arguments);
  const auto keep_for =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(arguments.keep_for_s));
  KeeperServer server({.directory = arguments.directory, .rank = arguments.rank, .keep_for = keep_for}, *fs, clock, log,
                      std::move(*listener), hold_signals());
  if (server.run()) return kFine;
  // A thread hangs in the file system, and nobody could join it. All that it could still publish is closed to it.
  std::_Exit(kFailed);
}

}  // namespace

Verb add_keeper(CLI::App& parser) {
  auto arguments = std::make_shared<KeeperArguments>();
  CLI::App* verb = parser.add_subcommand("keeper", "Hold a trainer's newest checkpoint in memory; trainers start it");
  verb->group("");  // not in --help
  verb->add_option("DIR", arguments->directory, "Directory the trainer saves to, as an absolute path")->required();
  verb->add_option("--rank", arguments->rank, "Whose memory");
  verb->add_option("--keep-for", arguments->keep_for_s, "Seconds without a trainer until the memory is released");
  verb->add_flag("--foreground", arguments->foreground, "Stay the child of whoever started it");
  return {verb, [arguments] { return run_keeper(*arguments); }};
}

}  // namespace slackwater::cli
