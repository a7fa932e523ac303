// run_in_child: runs a test body in its own forked child. It is for what cannot be undone (seccomp, limits, other
// users) and for tests of fork itself. Also: programs that a test starts. The body uses no GoogleTest assertions. It
// returns 0, or a number that names the step that failed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <vector>

namespace slackwater::test {

// How a child ended: its exit code, or 128 + n if signal n ended it.
[[nodiscard]] inline int wait_for_child(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A program of its own; its path, and what it is told. `out`: where its words go, if not where ours do.
[[nodiscard]] inline pid_t start_program(std::vector<std::string> words, int out = STDOUT_FILENO) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    if (out != STDOUT_FILENO) ::dup2(out, STDOUT_FILENO);
    ::execv(arguments.front(), arguments.data());
    ::_exit(127);
  }
  return child;
}

// As wait_for_child().
template <class Body>
[[nodiscard]] int run_in_child(Body body) {
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) ::_exit(body());
  return wait_for_child(child);
}

}  // namespace slackwater::test
