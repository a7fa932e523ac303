// SIGKILL at random moments: the next start never goes back behind a step that was reported committed, and never reads
// a wrong byte.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "support/effort.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWrongBytes = 3;  // exit code of the trainer
constexpr std::chrono::minutes kPatience{2};

// The trainer in a process of its own, its words on a pipe. Killed, if it still runs, when this ends.
class Trainer {
 public:
  Trainer(const std::string& directory, std::uint64_t size_mib, std::uint64_t steps, const char* when = "committed") {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    out_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    const std::string size = std::to_string(size_mib);
    const std::string count = std::to_string(steps);
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("cannot fork");
    if (process_ == 0) {
      ::dup2(theirs.get(), STDOUT_FILENO);
      ::execl(KILL_TRAINER, KILL_TRAINER, directory.c_str(), size.c_str(), count.c_str(), when, nullptr);
      ::_exit(127);
    }
  }
  ~Trainer() {
    if (process_ > 0) static_cast<void>(end());
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

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
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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

struct KillTally {
  std::uint64_t killed = 0;
  std::uint64_t while_restoring = 0;
  std::uint64_t committed = 0;  // steps reported
  std::uint64_t behind = 0;     // restarts that lost a reported step
  std::uint64_t wrong = 0;      // restarts that found wrong bytes
  std::uint64_t failed = 0;     // ended by themselves, with an error
  std::vector<std::string> findings;
};

struct KillPlan {
  std::uint64_t kills = 25;
  std::uint64_t size_mib = 16;
  const char* report_when = "committed";
};

// Starts and kills the trainer over and over, then lets it come to its end once.
KillTally kill_over_and_over(const KillPlan& plan) {
  const TempDir directory;
  const std::string run = directory / "run";
  const std::uint64_t horizon_us = kSanitized ? 2'000'000 : 600'000;
  std::mt19937_64 random(harness_seed());
  KillTally tally;
  std::uint64_t floor = 0;
  const auto meet = [&](const Trainer& trainer, std::uint64_t round) {
    const auto restored = trainer.last("restored");
    if (restored && *restored < floor) {
      ++tally.behind;
      tally.findings.push_back(
          fmt::format("round {}: step {} was reported, step {} was restored", round, floor, *restored));
    }
    if (const auto committed = trainer.last("committed")) {
      tally.committed += *committed - *restored;
      floor = *committed;
    }
  };

  for (std::uint64_t round = 0; round < plan.kills; ++round) {
    Trainer trainer(run, plan.size_mib, 1'000'000, plan.report_when);
    // Half of the kills fall into training, half anywhere after the start; some soon, some late.
    if (round % 2 == 0) trainer.listen(Clock::now() + kPatience, "committed");
    const auto moment = std::chrono::microseconds(random() % (horizon_us >> (round % 6)));
    trainer.listen(Clock::now() + moment);
    const int code = trainer.end();
    ++tally.killed;
    if (!trainer.last("restored")) ++tally.while_restoring;
    if (code != 128 + SIGKILL) {
      ++(code == kWrongBytes ? tally.wrong : tally.failed);
      tally.findings.push_back(fmt::format("round {}: the trainer ended with code {}", round, code));
    }
    meet(trainer, round);
  }
  Trainer last(run, plan.size_mib, 2, plan.report_when);
  last.listen(Clock::now() + kPatience, "done");
  if (!last.last("done")) {
    const int code = last.end();
    ++(code == kWrongBytes ? tally.wrong : tally.failed);
    tally.findings.push_back(fmt::format("the last start did not come to its end: code {}", code));
  }
  meet(last, plan.kills);
  return tally;
}

void print(const KillPlan& plan, const KillTally& tally) {
  constexpr const char* kRow = "{:>6} | {:>15} | {:>15} | {:>9} | {:>11} | {:>6} | {:>4}\n";
  fmt::print("\nKills, seed {}, state {} MiB, steps reported when {}\n", harness_seed(), plan.size_mib,
             plan.report_when);
  fmt::print(fmt::runtime(kRow), "tried", "while restoring", "steps reported", "gone back", "wrong bytes", "failed",
             "lost");
  fmt::print(fmt::runtime(kRow), tally.killed, tally.while_restoring, tally.committed, tally.behind, tally.wrong,
             tally.failed, tally.behind + tally.wrong);
}

TEST(KillTest, ARestartFindsEveryReportedStepBitForBit) {
  const KillPlan plan{.kills = effort("SLACKWATER_KILLS", 25),
                      .size_mib = effort("SLACKWATER_KILL_MIB", kSanitized ? 80 : 16)};  // a tenth: 8
  const KillTally tally = kill_over_and_over(plan);
  print(plan, tally);
  for (const std::string& finding : tally.findings) ADD_FAILURE() << finding;
  EXPECT_EQ(tally.killed, plan.kills);
  EXPECT_GE(tally.committed, plan.kills / 2) << "killed too early to show anything";
  EXPECT_EQ(tally.behind + tally.wrong + tally.failed, 0u);
}

// The harness itself: a step that is reported before it is safe is missed after a kill.
TEST(KillTest, TheHarnessSeesAStepThatWasReportedTooEarly) {
  const KillPlan plan{.kills = 20, .size_mib = 16, .report_when = "captured"};
  const KillTally tally = kill_over_and_over(plan);
  print(plan, tally);
  EXPECT_GT(tally.behind, 0u);
  EXPECT_EQ(tally.wrong, 0u);
}

}  // namespace
}  // namespace slackwater::test
