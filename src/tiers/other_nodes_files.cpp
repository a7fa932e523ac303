#include "tiers/other_nodes_files.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

namespace slackwater {
namespace {

constexpr const char* kReadOnly = "files received from other nodes are read-only";

std::unexpected<Error> cannot_be_written(const std::string& path) {
  return fail(ErrorKind::kUnsupported, kReadOnly, path);
}

std::string below_memory_root(const std::string& path) {
  const std::string_view root = OtherNodesFiles::kRoot;
  return path.size() > root.size() ? path.substr(root.size() + 1) : std::string();
}

class MemoryFile final : public File {
 public:
  MemoryFile(std::string path, const std::string& text) : path_(std::move(path)), text_(text) {}

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    if (offset >= text_.size()) return 0;
    const std::uint64_t size = std::min<std::uint64_t>(into.size(), text_.size() - offset);
    std::memcpy(into.data(), text_.data() + offset, size);
    return size;
  }
  [[nodiscard]] Status write_at(std::span<const std::byte>, std::uint64_t) override { return cannot_be_written(path_); }
  [[nodiscard]] Status allocate(std::uint64_t) override { return cannot_be_written(path_); }
  [[nodiscard]] Status truncate(std::uint64_t) override { return cannot_be_written(path_); }
  [[nodiscard]] Status sync_data() override { return cannot_be_written(path_); }
  [[nodiscard]] Status sync_all() override { return cannot_be_written(path_); }
  [[nodiscard]] Status close() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override {
    return FileStatus{.type = FileType::kRegular, .size_bytes = text_.size(), .link_count = 1};
  }
  [[nodiscard]] bool direct() const override { return false; }
  [[nodiscard]] Status set_direct(bool) override { return {}; }
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  const std::string path_;
  const std::string& text_;
};

}  // namespace

OtherNodesFiles::OtherNodesFiles() : ReadOnlyFileSystem(kReadOnly) {}

Result<std::unique_ptr<File>> OtherNodesFiles::open(const std::string& path, OpenMode mode, bool) {
  if (mode != OpenMode::kRead) return refuse(path);
  const auto found = files_.find(below_memory_root(path));
  if (found == files_.end()) return fail(ErrorKind::kNotFound, "no other node sent this file", path);
  return std::make_unique<MemoryFile>(path, found->second);
}

Result<std::vector<DirectoryEntry>> OtherNodesFiles::list(const std::string& path) {
  const std::string name = below_memory_root(path);
  const std::string prefix = name.empty() ? name : name + "/";
  std::map<std::string, FileType> merged;
  for (const auto& [file, text] : files_) {
    if (!file.starts_with(prefix)) continue;
    const std::string rest = file.substr(prefix.size());
    const auto slash = rest.find('/');
    merged.emplace(rest.substr(0, slash), slash == std::string::npos ? FileType::kRegular : FileType::kDirectory);
  }
  if (merged.empty() && !name.empty()) return fail(ErrorKind::kNotFound, "no other node has this directory", path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [entry, type] : merged) entries.push_back({entry, type});
  return entries;
}

Result<FileStatus> OtherNodesFiles::status(const std::string& path) {
  const std::string name = below_memory_root(path);
  if (const auto found = files_.find(name); found != files_.end())
    return FileStatus{.type = FileType::kRegular, .size_bytes = found->second.size(), .link_count = 1};
  if (auto entries = list(path); !entries) return fail(std::move(entries).error());
  return FileStatus{.type = FileType::kDirectory, .size_bytes = 0, .link_count = 1};
}

Result<std::unique_ptr<IoQueue>> OtherNodesFiles::make_queue(const IoQueueOptions&) { return refuse(kRoot); }

}  // namespace slackwater
