#include "base/thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace slackwater {
namespace {

// A new thread inherits its creator's signal mask, so signals are blocked before the start and restored afterwards.
// Fault signals stay unblocked. A fault whose signal is blocked kills the process without the trainer's crash handler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::jthread start_thread(std::string name, std::function<void(std::stop_token)> body) {
  const SignalsBlocked blocked;
  return std::jthread([name = std::move(name), body = std::move(body)](std::stop_token stop) {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    body(std::move(stop));
  });
}

// On Linux each thread has a nice value of its own, and a new thread has that of its creator. Where it may not be
// changed, the thread runs as it is.
void lower_priority() {
  const auto self = static_cast<id_t>(gettid());
  static_cast<void>(setpriority(PRIO_PROCESS, self, std::max(10, getpriority(PRIO_PROCESS, self))));
}

}  // namespace slackwater
