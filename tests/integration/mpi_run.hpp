// MpiRun: a program under mpirun. Ended, with all its ranks, when this ends. Not thread-safe.
#pragma once

#include <signal.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace slackwater::test {

class MpiRun {
 public:
  // `program`: its path and its arguments.
  MpiRun(unsigned ranks, const std::vector<std::string>& program) {
    std::vector<std::string> words;
    std::istringstream mpirun(MPIRUN);
    for (std::string word; std::getline(mpirun, word, '|');) words.push_back(word);
    words.push_back(std::to_string(ranks));
    words.insert(words.end(), program.begin(), program.end());
    name_ = program.front().substr(program.front().rfind('/') + 1);
    process_ = start_program(std::move(words));
  }
  ~MpiRun() {
    if (process_ <= 0) return;
    const std::vector<pid_t> left = ranks();
    ::kill(process_, SIGKILL);
    for (const pid_t rank : left) ::kill(rank, SIGKILL);
    static_cast<void>(wait());
  }
  MpiRun(const MpiRun&) = delete;
  MpiRun& operator=(const MpiRun&) = delete;

  // The processes of the ranks, in the order they were started; fewer while mpirun is at it.
  [[nodiscard]] std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    add_ranks(process_, found);
    return found;
  }
  // How mpirun ended: its exit code, or 128 + the signal.
  [[nodiscard]] int wait() { return wait_for_child(std::exchange(process_, -1)); }

 private:
  void add_ranks(pid_t process, std::vector<pid_t>& found) const {
    const std::string about = "/proc/" + std::to_string(process);
    std::string name;
    if (std::ifstream(about + "/comm") >> name; name == name_.substr(0, 15)) found.push_back(process);
    std::ifstream children(about + "/task/" + std::to_string(process) + "/children");
    for (pid_t child = 0; children >> child;) add_ranks(child, found);
  }

  std::string name_;
  pid_t process_ = -1;
};

}  // namespace slackwater::test
