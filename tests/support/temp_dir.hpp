// TempDir: a directory of its own for one test, removed with everything in it at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace slackwater::test {

class TempDir {
 public:
  TempDir() : TempDir(default_base()) {}
  explicit TempDir(const std::string& base) : path_(base + "/slackwater-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make the temporary directory " + path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Where syncs cost nothing, for tests that are not about them; the usual place if there is no such file system.
  [[nodiscard]] static std::string in_memory() {
    return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : default_base();
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  // Of a file inside it.
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  static std::string default_base() {
    const char* base = std::getenv("TMPDIR");
    return base != nullptr && *base != '\0' ? base : "/tmp";
  }

  std::string path_;
};

}  // namespace slackwater::test
