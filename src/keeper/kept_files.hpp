// KeptFiles: the versions in a keeper's memory as a file system, so that what restores from a directory restores from
// memory too, with the same checks. Data files are slabs in order; their bytes are read in place (File::in_place).
// Records, index and manifest are texts. It can only be read.
// Owner: the trainer's MemoryTier. Thread rule: constant once the versions are added; then any thread.
// Lifetime: it keeps the memory mapped; `real` outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "keeper/rank_parts.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"

namespace slackwater {

class KeptFiles final : public FileSystem {
 public:
  // `root`: of tier 0, whose names the versions have. `real`: makes the queues of readers.
  KeptFiles(std::string root, FileSystem& real) : root_(std::move(root)), real_(real) {}

  // Adds a version that all of its ranks have: one part per rank, in order. Fails as commit_of() does.
  [[nodiscard]] Result<VersionInfo> add(std::span<const RankPart> parts);

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    return real_.make_queue(options);
  }
  // Not in memory.
  [[nodiscard]] Status make_directory(const std::string& path) override { return refuse(path); }
  [[nodiscard]] Status sync_directory(const std::string& path) override { return refuse(path); }
  [[nodiscard]] Status link(const std::string& from, const std::string& /*to*/) override { return refuse(from); }
  [[nodiscard]] Status unlink(const std::string& path) override { return refuse(path); }
  [[nodiscard]] Status remove_directory(const std::string& path) override { return refuse(path); }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override { return refuse(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override { return refuse(path); }

 private:
  struct Slabs {
    std::shared_ptr<const Region> region;
    StagedFile file;
  };
  using Content = std::variant<std::string, Slabs>;
  class OpenFile;

  [[nodiscard]] static std::unexpected<Error> refuse(const std::string& path);
  [[nodiscard]] static std::uint64_t size_of(const Content& content);

  const std::string root_;
  FileSystem& real_;
  std::map<std::string, std::shared_ptr<const Content>> files_;  // by path
};

}  // namespace slackwater
