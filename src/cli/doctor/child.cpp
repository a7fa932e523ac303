#include "cli/doctor/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace slackwater::cli::doctor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kTailBytes = 2000;
constexpr std::size_t kMostLineBytes = 1u << 20;

sigset_t held_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

bool make_pipe(Pipe& made) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  made.read = UniqueFd(ends[0]);
  made.write = UniqueFd(ends[1]);
  return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

// Only calls that are safe after fork.
[[noreturn]] void become(char* const* words, const Pipe& out, const Pipe& err, const sigset_t& mask, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out.write.get(), STDOUT_FILENO);
  ::dup2(err.write.get(), STDERR_FILENO);
  ::execvp(words[0], words);
  ::dprintf(STDERR_FILENO, "cannot run %s: %s\n", words[0], ::strerror(errno));
  ::_exit(127);
}

// Appends what is there. False once the other end is closed.
bool read_some(const UniqueFd& from, std::string& to) {
  std::array<char, 4096> piece{};
  while (true) {
    const ssize_t got = ::read(from.get(), piece.data(), piece.size());
    if (got > 0) to.append(piece.data(), static_cast<std::size_t>(got));
    if (got == 0) return false;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
  }
}

void keep_tail(std::string& text) {
  if (text.size() > kTailBytes) text.erase(0, text.size() - kTailBytes);
}

// Ends the whole group: with SIGTERM first, so that it can remove its own files. A process that hangs inside the kernel
// does not even die of SIGKILL. Then it is left behind.
void end_group(pid_t child) {
  bool ended = false;
  for (const int number : {SIGTERM, SIGKILL}) {
    ::kill(-child, number);
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    while (!ended && Clock::now() < deadline) {
      ended = ::waitpid(child, nullptr, WNOHANG) != 0;
      if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

}  // namespace

HeldSignals::HeldSignals() {
  const sigset_t set = held_set();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

HeldSignals::~HeldSignals() {
  ::close(descriptor_);
  const sigset_t set = held_set();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void HeldSignals::take() {
  signalfd_siginfo info{};
  while (::read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    received_ = static_cast<int>(info.ssi_signo);
}

std::string ChildEnd::text() const {
  if (!started) return "could not be started";
  if (timed_out) return "did not end within its time limit";
  if (signal != 0) return fmt::format("ended with signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("ended with code {}", exit_code);
}

ChildEnd run_child(const std::vector<std::string>& command, std::chrono::milliseconds time_limit, HeldSignals& signals,
                   const std::function<bool(std::string_view line)>& on_line) {
  ChildEnd end;
  Pipe out;
  Pipe err;
  if (!make_pipe(out) || !make_pipe(err)) return end;
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  sigset_t mask;  // the child gets the signals that we hold
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigdelset(&mask, number);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return end;
  if (child == 0) become(words.data(), out, err, mask, parent);
  ::setpgid(child, child);  // whichever of the two is first
  end.started = true;
  (void)out.write.close();
  (void)err.write.close();
  // A grandchild may hold the pipes open, so the end of the child itself is what counts. Kernels before 5.3 have no
  // pidfd: there the loop looks every 50 ms.
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));

  const auto deadline = Clock::now() + time_limit;
  std::string lines;
  bool out_open = true;
  bool err_open = true;
  const auto take_output = [&] {
    out_open = out_open && read_some(out.read, lines);
    err_open = err_open && read_some(err.read, end.error_tail);
    std::size_t at = 0;
    for (std::size_t stop = 0; (stop = lines.find('\n', at)) != std::string::npos; at = stop + 1) {
      const std::string line = lines.substr(at, stop - at);
      if (!on_line(line)) end.error_tail += line + "\n";
    }
    lines.erase(0, at);
    if (lines.size() > kMostLineBytes) lines.clear();
    keep_tail(end.error_tail);
  };
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) != child) {
    take_output();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || signals.received() != 0) {
      end.timed_out = signals.received() == 0;
      end.interrupted = !end.timed_out;
      end_group(child);
      take_output();
      return end;
    }
    // A pipe that the child has closed would be ready at once, for ever.
    std::array<pollfd, 4> waits{pollfd{out_open ? out.read.get() : -1, POLLIN, 0},
                                pollfd{err_open ? err.read.get() : -1, POLLIN, 0},
                                pollfd{signals.descriptor(), POLLIN, 0}, pollfd{ended.get(), POLLIN, 0}};
    (void)::poll(waits.data(), waits.size(), static_cast<int>(std::min<decltype(left)>(left, ended ? 60'000 : 50)));
    signals.take();
  }
  take_output();
  ::kill(-child, SIGKILL);  // whatever it has left behind
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

}  // namespace slackwater::cli::doctor
