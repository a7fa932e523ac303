// UniqueFd: owns one file descriptor. Move-only; not thread-safe. The destructor ignores errors of close(2), so writers
// must call close().
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace slackwater {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int descriptor) : descriptor_(descriptor) {}
  UniqueFd(UniqueFd&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      (void)close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  ~UniqueFd() { (void)close(); }

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] explicit operator bool() const { return descriptor_ >= 0; }

  // Returns 0 or the errno of close(2). The descriptor is gone either way. Linux frees it before it reports EINTR or
  // EIO, so a second try could close somebody else's descriptor.
  [[nodiscard]] int close() {
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor < 0 || ::close(descriptor) == 0) return 0;
    return errno == EINTR ? 0 : errno;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace slackwater
