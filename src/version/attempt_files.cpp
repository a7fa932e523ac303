#include "version/attempt_files.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kAttemptFilesKept = 16;  // of the newest attempts

// A number above every attempt that left a trace. Version directories count too, so no name is ever used twice, even if
// attempt files were lost.
Result<std::uint32_t> next_attempt_number(FileSystem& fs, const std::string& root, std::uint32_t above) {
  SW_ASSIGN(std::uint32_t newest, newest_attempt_number(fs, root));
  newest = std::max(newest, above);
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, retry_read([&] { return fs.list(root); }));
  for (const DirectoryEntry& entry : entries) {
    if (const auto version = parse_version_directory(entry.name)) newest = std::max(newest, version->attempt);
  }
  if (newest == std::numeric_limits<std::uint32_t>::max())
    return corrupt("all attempt numbers are used up; start in a new directory", root);
  return newest + 1;
}

}  // namespace

Status publish_attempt(FileSystem& fs, const std::string& root, Attempt& attempt, std::uint32_t above) {
  for (;;) {
    SW_ASSIGN(attempt.number, next_attempt_number(fs, root, above));
    Status published =
        publish_exclusively(fs, control_path(root), attempt_file(attempt.number), serialize(attempt), attempt.run);
    if (published || published.error().kind != ErrorKind::kAlreadyExists) return published;
  }
}

Result<std::optional<std::uint32_t>> place_attempt_file(FileSystem& fs, const std::string& root, const Attempt& attempt,
                                                        const std::string& text) {
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs, root));
  if (newest > attempt.number) return std::optional(newest);
  if (newest < attempt.number) {
    const Status published =
        publish_exclusively(fs, control_path(root), attempt_file(attempt.number), text, random_id());
    if (published) return std::optional<std::uint32_t>();
    if (published.error().kind != ErrorKind::kAlreadyExists) return fail(published.error());
  }
  // An earlier try, another rank of this run, or another run that was first.
  SW_ASSIGN(const Attempt there, read_attempt(fs, root, attempt.number));
  if (there.run != attempt.run) return std::optional(there.number);
  SW_TRY(fs.sync_directory(control_path(root)));
  return std::optional<std::uint32_t>();
}

void remove_old_attempt_files(FileSystem& fs, const std::string& root, std::uint32_t newest, bool holds_lock) {
  const std::string control = control_path(root);
  const auto entries = fs.list(control);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    // The newest file says what is live. Older ones are read only if it is damaged, so a few of them stay.
    const auto number = parse_attempt_file(entry.name);
    const bool old = number && *number < newest && newest - *number >= kAttemptFilesKept;
    const bool claim = entry.name.starts_with(".attempt-") && entry.name.ends_with(".tmp");
    const bool note = entry.name.starts_with(".delete-") && entry.name.ends_with(".tmp");  // delete_notes.hpp
    const bool fetch = entry.name.starts_with("fetch-") && entry.name.ends_with(".lock");  // tiers/node_fetch.hpp
    const bool id = entry.name.starts_with(".tier") && entry.name.ends_with(".tmp");       // tiers/tier_identity.hpp
    const bool debris = holds_lock && (claim || note || fetch || id);
    if (entry.type == FileType::kRegular && (old || debris)) (void)fs.unlink(fmt::format("{}/{}", control, entry.name));
  }
}

Status check_newest_attempt(FileSystem& fs, const std::string& root, std::uint32_t ours) {
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs, root));
  return check_newest_attempt(newest, root, ours);
}

Status check_newest_attempt(std::uint32_t newest, const std::string& root, std::uint32_t ours) {
  if (newest <= ours) return {};
  return fail(
      ErrorKind::kAborted,
      fmt::format("another run has taken over this directory (attempt {}, ours is {}); stop this run", newest, ours),
      root);
}

}  // namespace slackwater
