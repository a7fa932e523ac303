// SmallMount: mounts a separate file system over a temporary directory, if the test may mount (root). It is for full
// disks ("tmpfs", "size=1m") and for file systems without O_DIRECT ("ramfs").
#pragma once

#include <sys/mount.h>

#include <string>

#include "support/temp_dir.hpp"

namespace slackwater::test {

class SmallMount {
 public:
  explicit SmallMount(const std::string& type, const std::string& options = {})
      : mounted_(::mount(type.c_str(), directory_.path().c_str(), type.c_str(), 0, options.c_str()) == 0) {}
  ~SmallMount() {
    if (mounted_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  SmallMount(const SmallMount&) = delete;
  SmallMount& operator=(const SmallMount&) = delete;

  // False where mounting is not permitted: skip the test.
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return directory_ / name; }
  [[nodiscard]] const std::string& path() const { return directory_.path(); }

 private:
  TempDir directory_;
  bool mounted_;
};

}  // namespace slackwater::test
