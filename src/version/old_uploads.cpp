#include "version/old_uploads.hpp"

#include <algorithm>
#include <string_view>

#include "base/result.hpp"
#include "version/names.hpp"

namespace slackwater {

// "<root>/step-0000000042.a7/g0003/rank-03072.safetensors" -> step 42 of attempt 7.
std::optional<VersionName> version_of_upload(std::string_view path, std::string_view root) {
  while (root.ends_with('/')) root.remove_suffix(1);
  if (!path.starts_with(root) || !path.substr(root.size()).starts_with('/')) return std::nullopt;
  const std::string_view below = path.substr(root.size() + 1);
  const std::size_t slash = below.find('/');
  if (slash == std::string_view::npos || !stays_in_version(below.substr(slash + 1))) return std::nullopt;
  return parse_version_directory(below.substr(0, slash));
}

Result<std::vector<PendingUpload>> uploads_of_older_attempts(FileSystem& fs, const std::string& root,
                                                             std::uint32_t newest) {
  SW_ASSIGN(std::vector<PendingUpload> uploads, fs.list_uploads(root));
  std::erase_if(uploads, [&](const PendingUpload& upload) {
    const auto version = version_of_upload(upload.path, root);
    return !version || version->attempt >= newest;
  });
  return uploads;
}

}  // namespace slackwater
