// GatedFileSystem: a file system for one flush. Calls that create or remove names go through a PublishGate, and are
// kAborted once that is closed. Everything else is passed on: reads, and writes to files that are open already.
// Owner: flush_version(). Thread rule: that of the gate's flush. Lifetime: both references outlive it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "keeper/publish_gate.hpp"
#include "os/file_system.hpp"

namespace slackwater {

class GatedFileSystem final : public FileSystem {
 public:
  GatedFileSystem(FileSystem& inner, PublishGate& gate) : inner_(inner), gate_(gate) {}

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Status make_directory(const std::string& path) override;
  [[nodiscard]] Status sync_directory(const std::string& path) override { return inner_.sync_directory(path); }
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status unlink(const std::string& path) override;
  [[nodiscard]] Status remove_directory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return inner_.list(path); }
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override { return inner_.status(path); }
  [[nodiscard]] Result<std::vector<FileEntry>> list_files(const std::string& path) override;
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override;

 private:
  template <class Operate>
  [[nodiscard]] auto gated(const std::string& path, Operate operate);

  FileSystem& inner_;
  PublishGate& gate_;
};

// What a flush says whose gate is closed.
[[nodiscard]] std::unexpected<Error> taken_over(const std::string& path);

}  // namespace slackwater
