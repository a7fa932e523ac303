// Trainer: kill_trainer in a process of its own, its words on a pipe. Not thread-safe.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.hpp"
#include "support/child_process.hpp"

namespace slackwater::test {

// Killed, if it still runs, when this ends.
class Trainer {
 public:
  using Clock = std::chrono::steady_clock;

  Trainer(const std::string& directory, std::uint64_t size_mib, std::uint64_t steps, const char* when = "committed",
          std::uint32_t rank = 0, std::uint32_t world = 1, const char* tensors = "local") {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    out_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    process_ = start_program({KILL_TRAINER, directory, std::to_string(size_mib), std::to_string(steps), when,
                              std::to_string(rank), std::to_string(world), tensors},
                             theirs.get());
  }
  ~Trainer() {
    if (process_ > 0) static_cast<void>(end());
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] pid_t process() const { return process_; }
  // Reads what it says: until then, until it has said the word, or until it ends.
  void listen(Clock::time_point deadline, std::string_view word = {}) {
    while (word.empty() || said_.find(word) == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count();
      if (left <= 0) return;
      pollfd ready{.fd = out_.get(), .events = POLLIN, .revents = 0};
      const timespec timeout{.tv_sec = left / 1'000'000, .tv_nsec = left % 1'000'000 * 1000};
      if (::ppoll(&ready, 1, &timeout, nullptr) > 0 && !read_some()) return;
    }
  }
  // Kills it, reads the rest, and tells how it ended: the exit code, or 128 + the signal.
  [[nodiscard]] int end() {
    ::kill(process_, SIGKILL);
    while (read_some()) {
    }
    return wait_for_child(std::exchange(process_, -1));
  }
  // The number behind the last whole line that begins with the word.
  [[nodiscard]] std::optional<std::uint64_t> last(const std::string& word) const {
    std::optional<std::uint64_t> number;
    std::istringstream lines(said_.substr(0, said_.rfind('\n') + 1));
    for (std::string first; lines >> first;) {
      std::uint64_t value = 0;
      lines >> value;
      if (first == word) number = value;
    }
    return number;
  }

 private:
  bool read_some() {
    char buffer[4096];
    const ssize_t count = ::read(out_.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) return true;
    if (count <= 0) return false;
    said_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  UniqueFd out_;
  pid_t process_ = -1;
  std::string said_;
};

}  // namespace slackwater::test
