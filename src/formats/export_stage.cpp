#include "formats/export_stage.hpp"

#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"

namespace slackwater::formats {
namespace {

constexpr const char* kStageLock = "lock";

}  // namespace

ExportStage::ExportStage(FileSystem& fs, std::string directory, std::string stage)
    : fs_(fs), directory_(std::move(directory)), stage_(std::move(stage)) {}

Result<std::unique_ptr<ExportStage>> ExportStage::open(FileSystem& fs, const std::string& directory,
                                                       const std::string& name) {
  SW_TRY(ensure_directory(fs, directory));
  std::unique_ptr<ExportStage> stage(new ExportStage(fs, directory, fmt::format("{}/{}", directory, name)));
  SW_TRY(ensure_directory(fs, stage->stage_));
  auto lock = fs.try_lock(fmt::format("{}/{}", stage->stage_, kStageLock));
  if (!lock) {
    if (lock.error().kind == ErrorKind::kBusy) lock.error().message = "another export is writing there; wait for it";
    return fail(std::move(lock).error());
  }
  stage->lock_ = std::move(*lock);
  stage->empty();
  return stage;
}

ExportStage::~ExportStage() {
  if (lock_ == nullptr) return;  // somebody else's
  empty();
  (void)fs_.unlink(fmt::format("{}/{}", stage_, kStageLock));
  (void)fs_.remove_directory(stage_);
}

void ExportStage::empty() {
  const auto entries = fs_.list(stage_);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries)
    if (entry.name != kStageLock) (void)fs_.unlink(fmt::format("{}/{}", stage_, entry.name));
}

Result<DurableFile> ExportStage::create(const std::string& name, std::uint64_t size_bytes) {
  return DurableFile::create(fs_, fmt::format("{}/{}", stage_, name), size_bytes, false);
}

Status ExportStage::write(const std::string& name, std::string_view bytes) {
  return write_durably(fs_, fmt::format("{}/{}", stage_, name), bytes);
}

Result<std::vector<std::string>> ExportStage::existing(const std::function<bool(std::string_view)>& matches) const {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(directory_));
  std::vector<std::string> found;
  for (const DirectoryEntry& entry : entries)
    if (matches(entry.name)) found.push_back(entry.name);
  return found;
}

Status ExportStage::remove(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    SW_TRY(fs_.unlink(fmt::format("{}/{}", directory_, name)));
    SW_TRY(fs_.sync_directory(directory_));  // in this order on disk too
  }
  return {};
}

Status ExportStage::publish(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    // The last name says that all others are there, so they must be durable before it is.
    if (i + 1 == names.size() && i > 0) SW_TRY(fs_.sync_directory(directory_));
    // rename() and not link(): a user may export to a file system without links, and --force replaces in one step.
    const std::string from = fmt::format("{}/{}", stage_, names[i]);
    const std::string to = fmt::format("{}/{}", directory_, names[i]);
    if (std::rename(from.c_str(), to.c_str()) != 0)
      return fail(error_from_errno(errno, "cannot give the exported file its name", to));
  }
  return fs_.sync_directory(directory_);
}

}  // namespace slackwater::formats
