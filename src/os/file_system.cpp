#include "os/file_system.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater {
namespace {

// Adds the files of one directory, and returns the names of its subdirectories. What is removed meanwhile is left out.
Result<std::vector<std::string>> add_files(FileSystem& fs, const std::string& directory, const std::string& prefix,
                                           std::vector<FileEntry>& files) {
  std::vector<std::string> inner;
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs.list(directory));
  for (const DirectoryEntry& entry : entries) {
    if (entry.type == FileType::kDirectory) inner.push_back(entry.name);
    if (entry.type != FileType::kRegular) continue;
    const auto found = fs.status(fmt::format("{}/{}", directory, entry.name));
    if (!found && found.error().kind == ErrorKind::kNotFound) continue;
    if (!found) return fail(found.error());
    files.push_back({prefix + entry.name, found->size_bytes});
  }
  return inner;
}

}  // namespace

Result<std::vector<FileEntry>> FileSystem::list_files(const std::string& path) {
  std::vector<FileEntry> files;
  SW_ASSIGN(const std::vector<std::string> inner, add_files(*this, path, {}, files));
  for (const std::string& name : inner) {
    const auto added = add_files(*this, fmt::format("{}/{}", path, name), name + "/", files);
    if (!added && added.error().kind != ErrorKind::kNotFound) return fail(added.error());
  }
  std::ranges::sort(files, {}, &FileEntry::name);
  return files;
}

Result<std::string> FileSystem::identity(const std::string& path) {
  return fail(ErrorKind::kUnsupported, "cannot tell here whether two names mean the same place", path);
}

}  // namespace slackwater
