#include "keeper/kept_files.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "version/manifest.hpp"
#include "version/manifest_cache.hpp"

namespace slackwater {

class KeptFiles::OpenFile final : public File {
 public:
  OpenFile(std::shared_ptr<const Content> content, std::string path)
      : content_(std::move(content)), path_(std::move(path)), size_bytes_(size_of(*content_)) {}

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    std::uint64_t done = 0;
    while (done < into.size() && offset + done < size_bytes_) {
      const std::span<const std::byte> there = in_place(offset + done);
      const std::uint64_t size = std::min<std::uint64_t>(there.size(), into.size() - done);
      std::memcpy(into.data() + done, there.data(), size);
      done += size;
    }
    return done;
  }
  [[nodiscard]] std::span<const std::byte> in_place(std::uint64_t offset) const override {
    if (offset >= size_bytes_) return {};
    if (const auto* text = std::get_if<std::string>(content_.get()))
      return std::as_bytes(std::span(*text)).subspan(offset);
    const Slabs& slabs = std::get<Slabs>(*content_);
    const std::uint64_t slab_bytes = slabs.region->shape().slab_bytes;
    const std::uint64_t inside = offset % slab_bytes;
    const std::uint64_t size = std::min(slab_bytes - inside, size_bytes_ - offset);
    return slabs.region->slab(slabs.file.slabs[offset / slab_bytes]).subspan(inside, size);
  }
  [[nodiscard]] Result<FileStatus> status() const override {
    return FileStatus{.type = FileType::kRegular, .size_bytes = size_bytes_, .link_count = 1};
  }
  [[nodiscard]] Status close() override { return {}; }
  [[nodiscard]] bool direct() const override { return false; }
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return -1; }

  [[nodiscard]] Status write_at(std::span<const std::byte>, std::uint64_t) override { return refuse(path_); }
  [[nodiscard]] Status allocate(std::uint64_t) override { return refuse(path_); }
  [[nodiscard]] Status truncate(std::uint64_t) override { return refuse(path_); }
  [[nodiscard]] Status sync_data() override { return refuse(path_); }
  [[nodiscard]] Status sync_all() override { return refuse(path_); }
  [[nodiscard]] Status set_direct(bool) override { return refuse(path_); }

 private:
  const std::shared_ptr<const Content> content_;
  const std::string path_;
  const std::uint64_t size_bytes_;
};

std::unexpected<Error> KeptFiles::refuse(const std::string& path) {
  return fail(ErrorKind::kUnsupported, "a version in the keeper's memory can only be read", path);
}

std::uint64_t KeptFiles::size_of(const Content& content) {
  if (const auto* text = std::get_if<std::string>(&content)) return text->size();
  return std::get<Slabs>(content).file.size_bytes;
}

Result<VersionInfo> KeptFiles::add(std::span<const RankPart> parts) {
  const StagedVersion& first = parts.front().version;
  const std::string directory = version_path(root_, first.name);
  SW_ASSIGN(PartsCommit commit, commit_of(parts, "the keeper's copy of " + directory));
  const auto put = [&](const std::string& name, Content content) {
    files_[directory + "/" + name] = std::make_shared<const Content>(std::move(content));
  };
  for (const RankPart& part : parts) {
    put(commit.manifest.files.record(part.version.rank), part.version.record);
    for (const StagedFile& file : part.version.files) put(file.name, Slabs{part.region, file});
  }
  put(kIndexName, std::move(commit.index));
  put(kManifestName, first.world > 1 ? serialize(commit.manifest) : first.manifest);
  return version_info(commit.manifest);
}

Result<std::unique_ptr<File>> KeptFiles::open(const std::string& path, OpenMode mode, bool /*direct*/) {
  if (mode != OpenMode::kRead) return refuse(path);
  const auto found = files_.find(path);
  if (found == files_.end()) return fail(ErrorKind::kNotFound, "the keeper's memory has no such file", path);
  return std::make_unique<OpenFile>(found->second, path);
}

Result<std::vector<DirectoryEntry>> KeptFiles::list(const std::string& path) {
  std::set<std::pair<std::string, bool>> names;  // and whether it is a file
  const std::string prefix = path + "/";
  for (auto file = files_.lower_bound(prefix); file != files_.end() && file->first.starts_with(prefix); ++file) {
    const std::string rest = file->first.substr(prefix.size());
    names.emplace(rest.substr(0, rest.find('/')), rest.find('/') == std::string::npos);
  }
  if (names.empty()) return fail(ErrorKind::kNotFound, "the keeper's memory has no such directory", path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, is_file] : names)
    entries.push_back({name, is_file ? FileType::kRegular : FileType::kDirectory});
  return entries;
}

Result<FileStatus> KeptFiles::status(const std::string& path) {
  if (const auto found = files_.find(path); found != files_.end())
    return FileStatus{.type = FileType::kRegular, .size_bytes = size_of(*found->second), .link_count = 1};
  SW_TRY(list(path));
  return FileStatus{.type = FileType::kDirectory};
}

}  // namespace slackwater
