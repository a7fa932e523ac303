// Ballast: a file that takes all space a file system has left, to the last byte, until it is destroyed.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"

namespace slackwater::test {

class Ballast {
 public:
  explicit Ballast(const std::string& directory)
      : path_(directory + "/ballast"), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    fill();
  }
  ~Ballast() { static_cast<void>(::unlink(path_.c_str())); }
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;

  // Takes what has become free since.
  void fill() {
    const std::vector<char> bytes(1u << 20, 'x');
    for (std::size_t size = bytes.size(); size > 0;) {
      const ssize_t written = ::write(file_.get(), bytes.data(), size);
      if (written <= 0) size /= 2;
    }
  }

 private:
  const std::string path_;
  UniqueFd file_;
};

}  // namespace slackwater::test
