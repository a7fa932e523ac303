// ReadOnlyFileSystem: the base of file systems that only show something: several tiers as one, texts in memory. Every
// call that would change something is kUnsupported.
// Owner, thread rule and lifetime: those of the class that derives from it.
#pragma once

#include <memory>
#include <string>

#include "os/file_system.hpp"

namespace slackwater {

class ReadOnlyFileSystem : public FileSystem {
 public:
  [[nodiscard]] Status make_directory(const std::string& path) final { return refuse(path); }
  [[nodiscard]] Status sync_directory(const std::string& path) final { return refuse(path); }
  [[nodiscard]] Status link(const std::string& from, const std::string& /*to*/) final { return refuse(from); }
  [[nodiscard]] Status unlink(const std::string& path) final { return refuse(path); }
  [[nodiscard]] Status remove_directory(const std::string& path) final { return refuse(path); }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) final { return refuse(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) final { return refuse(path); }

 protected:
  explicit ReadOnlyFileSystem(const char* refusal) : refusal_(refusal) {}
  [[nodiscard]] std::unexpected<Error> refuse(const std::string& path) const {
    return std::unexpected(Error{.kind = ErrorKind::kUnsupported, .message = refusal_, .path = path});
  }

 private:
  const char* const refusal_;  // one sentence
};

}  // namespace slackwater
