// OtherNodesFiles: small files that other nodes sent, seen as a read-only tier: attempt files, manifests, indexes. It
// holds no data files: the disks of other nodes cannot be read from here.
// Owned by one restore. Thread rule: thread-safe once it is filled. Lifetime: outlives the files that it opened.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "os/read_only_file_system.hpp"

namespace slackwater {

class OtherNodesFiles final : public ReadOnlyFileSystem {
 public:
  OtherNodesFiles();

  static constexpr const char* kRoot = "the other nodes";  // in paths and messages

  // `name` is relative to the root. What is there already stays.
  void add(const std::string& name, std::string text) { files_.emplace(name, std::move(text)); }

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override;

 private:
  std::map<std::string, std::string> files_;  // by name below the root
};

}  // namespace slackwater
