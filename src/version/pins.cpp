#include "version/pins.hpp"

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "version/catalog.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kPinText = "pinned\n";
constexpr std::string_view kPinAheadText = "to be pinned\n";
constexpr std::chrono::milliseconds kPinPause{20};
constexpr int kPinTries = 500;  // ten seconds

std::string pin_path(const std::string& root, const VersionName& version) {
  return fmt::format("{}/{}", control_path(root), pin_file(version));
}

// An existing pin is as good as a new one.
Status write_pin(FileSystem& fs, const std::string& root, const VersionName& version, std::string_view text) {
  Status written = write_durably(fs, pin_path(root, version), text);
  if (!written && written.error().kind != ErrorKind::kAlreadyExists) return written;
  return fs.sync_directory(control_path(root));
}

}  // namespace

Result<std::set<VersionName>> list_pins(FileSystem& fs, const std::string& root) {
  SW_ASSIGN(const auto entries, retry_read([&] { return fs.list(control_path(root)); }));
  std::set<VersionName> pins;
  for (const DirectoryEntry& entry : entries) {
    if (const auto pinned = parse_pin_file(entry.name)) pins.insert(*pinned);
  }
  return pins;
}

Status pin_version(FileSystem& fs, const std::string& root, const VersionName& version) {
  const std::string directory = version_path(root, version);
  SW_ASSIGN(const Manifest manifest, read_manifest(fs, root, version));
  if (manifest.decision != Decision::kCommit) {
    return fail(ErrorKind::kInvalidArgument, fmt::format("step {} was aborted and cannot be pinned", version.step),
                directory);
  }
  SW_TRY(write_pin(fs, root, version, kPinText));
  // Rank 0 may be deleting the version. It removes the manifest first and then looks for pins (VersionRemover::remove,
  // step 3). If it finds ours, the manifest comes back. If not, the directory disappears.
  for (int tries = 0; tries < kPinTries; ++tries) {
    auto decided = retry_read([&] { return lists_name(fs, directory, kManifestName); });
    if (decided && *decided) return {};
    if (!decided && decided.error().kind == ErrorKind::kNotFound) {
      (void)fs.unlink(pin_path(root, version));  // whoever wrote it: there is nothing left for it to keep
      return fail(ErrorKind::kNotFound, fmt::format("step {} is being deleted, and was not pinned", version.step),
                  directory);
    }
    if (!decided) return fail(std::move(decided).error());
    std::this_thread::sleep_for(kPinPause);
  }
  // The pin stays: another rank may rely on it. If the deletion goes through, it removes the pin too.
  return fail(Error{.kind = ErrorKind::kBusy,
                    .message = fmt::format("step {} is being deleted, and it may be too late to pin it; try again to "
                                           "find out",
                                           version.step),
                    .path = directory,
                    .retryable = true});
}

// The pin is durable before the manifest can be. No clean-up and no crash can find the manifest without the pin.
Status pin_ahead_of_commit(FileSystem& fs, const std::string& root, const VersionName& version) {
  return write_pin(fs, root, version, kPinAheadText);
}

bool pin_may_be_confirmed(FileSystem& fs, const std::string& root, const VersionName& version) {
  const auto text = retry_read([&] { return read_whole(fs, pin_path(root, version), kPinAheadText.size()); });
  return !text || *text == kPinText;
}

}  // namespace slackwater
