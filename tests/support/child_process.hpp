// run_in_child: a test body in a forked child of its own, for what cannot be undone (seccomp, limits, other users) or for
// what is about fork itself. The body uses no GoogleTest assertions: it returns 0, or a number that names the step that failed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace slackwater::test {

// The exit code of the child; 128 + n if signal n ended it.
template <class Body>
[[nodiscard]] int run_in_child(Body body) {
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) ::_exit(body());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace slackwater::test
