#include "keeper/gated_file_system.hpp"

namespace slackwater {

std::unexpected<Error> taken_over(const std::string& path) {
  return fail(ErrorKind::kAborted, "another attempt has taken over, so this one publishes nothing", path);
}

template <class Operate>
auto GatedFileSystem::gated(const std::string& path, Operate operate) {
  using Answer = decltype(operate());
  return gate_.operate(operate, [&]() -> Answer { return taken_over(path); });
}

Result<std::unique_ptr<File>> GatedFileSystem::open(const std::string& path, OpenMode mode, bool direct) {
  if (mode != OpenMode::kCreateExclusive) return inner_.open(path, mode, direct);
  return gated(path, [&] { return inner_.open(path, mode, direct); });
}

Status GatedFileSystem::make_directory(const std::string& path) {
  return gated(path, [&] { return inner_.make_directory(path); });
}

Status GatedFileSystem::link(const std::string& from, const std::string& to) {
  return gated(to, [&] { return inner_.link(from, to); });
}

Status GatedFileSystem::unlink(const std::string& path) {
  return gated(path, [&] { return inner_.unlink(path); });
}

Status GatedFileSystem::remove_directory(const std::string& path) {
  return gated(path, [&] { return inner_.remove_directory(path); });
}

Result<std::vector<FileEntry>> GatedFileSystem::list_files(const std::string& path) { return inner_.list_files(path); }

Result<std::unique_ptr<FileLock>> GatedFileSystem::try_lock(const std::string& path) {
  return gated(path, [&] { return inner_.try_lock(path); });
}

Result<std::unique_ptr<IoQueue>> GatedFileSystem::make_queue(const IoQueueOptions& options) {
  return inner_.make_queue(options);
}

}  // namespace slackwater
