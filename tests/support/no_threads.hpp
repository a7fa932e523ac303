// NoThreads: while it lives, this process can start no thread. std::thread throws std::system_error, as it does when
// the limit of processes is reached. (That limit itself does not hold for root.)
#pragma once

#include <pthread.h>

#include <cstddef>

namespace slackwater::test {

class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 46);  // no address space has room for such a stack
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace slackwater::test
