#include "version/names.hpp"

#include <cstddef>
#include <span>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/scan.hpp"

namespace slackwater {
namespace {

// "g0003/"; empty for a file in the version's own directory.
std::string_view directory_in(std::string_view name) { return name.substr(0, name.rfind('/') + 1); }

std::string rank_directory(std::uint32_t group) { return fmt::format("g{:04}", group); }

std::string versioned(std::string_view prefix, const VersionName& version) {
  return fmt::format("{}{:010}.a{}", prefix, version.step, version.attempt);
}

// Accepts only the spelling that versioned() makes: "step-42.a7" and "step-0000000042.a07" are not ours.
std::optional<VersionName> parse_versioned(std::string_view prefix, std::string_view name) {
  std::string_view rest = name;
  VersionName version;
  if (!take_prefix(rest, prefix) || !take_number(rest, version.step) || !take_prefix(rest, ".a") ||
      !take_number(rest, version.attempt) || !rest.empty() || versioned(prefix, version) != name) {
    return std::nullopt;
  }
  return version;
}

}  // namespace

std::string version_directory(const VersionName& version) { return versioned("step-", version); }

std::optional<VersionName> parse_version_directory(std::string_view name) { return parse_versioned("step-", name); }

std::string version_path(const std::string& root, const VersionName& version) {
  return fmt::format("{}/{}", root, version_directory(version));
}

std::string control_path(const std::string& root) { return fmt::format("{}/{}", root, kControlDirectory); }

std::string lock_path(const std::string& root) { return fmt::format("{}/{}", control_path(root), kLockName); }

std::string pin_file(const VersionName& version) { return versioned("pin-", version); }

std::optional<VersionName> parse_pin_file(std::string_view name) { return parse_versioned("pin-", name); }

std::string delete_note_file(const VersionName& version, std::string_view tier) {
  return fmt::format("{}.{}", versioned("delete-", version), to_hex(digest64(std::as_bytes(std::span(tier)))));
}

std::optional<VersionName> parse_delete_note_file(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !digest64_from_hex(name.substr(dot + 1))) return std::nullopt;
  return parse_versioned("delete-", name.substr(0, dot));
}

std::string attempt_file(std::uint32_t attempt) { return fmt::format("attempt-{:04}.json", attempt); }

std::optional<std::uint32_t> parse_attempt_file(std::string_view name) {
  std::string_view rest = name;
  std::uint32_t attempt = 0;
  if (!take_prefix(rest, "attempt-") || !take_number(rest, attempt) || attempt_file(attempt) != name)
    return std::nullopt;
  return attempt;
}

std::string record_file(std::uint32_t rank) { return fmt::format("rank-{:05}.record", rank); }

std::string failure_note_file(const FailureNote& note) {
  return fmt::format("rank-{:05}.a{}.failed", note.rank, note.attempt);
}

std::optional<FailureNote> parse_failure_note_file(std::string_view name) {
  std::string_view rest = name;
  FailureNote note;
  if (!take_prefix(rest, "rank-") || !take_number(rest, note.rank) || !take_prefix(rest, ".a") ||
      !take_number(rest, note.attempt) || failure_note_file(note) != name) {
    return std::nullopt;
  }
  return note;
}

bool is_rank_directory(std::string_view name) {
  std::string_view rest = name;
  std::uint32_t group = 0;
  return take_prefix(rest, "g") && take_number(rest, group) && rank_directory(group) == name;
}

std::optional<std::uint32_t> rank_of_file(std::string_view name) {
  const std::string_view directory = directory_in(name);
  if (!directory.empty() && !is_rank_directory(directory.substr(0, directory.size() - 1))) return std::nullopt;
  name.remove_prefix(directory.size());
  std::string_view rest = name;
  std::uint32_t rank = 0;
  if (!take_prefix(rest, "rank-") || !take_number(rest, rank)) return std::nullopt;
  std::uint32_t part = 0;
  if (rest != ".record" && take_prefix(rest, "-") && !take_number(rest, part)) return std::nullopt;
  const bool ours = rest == ".record" ? name == record_file(rank) : name == data_file(rank, part);
  return ours ? std::optional(rank) : std::nullopt;
}

RankFiles RankFiles::of_world(std::uint32_t world) { return {world > kRanksInDirectory ? kRanksInDirectory : 0}; }

std::string RankFiles::directory(std::uint32_t rank) const {
  return ranks_in_directory == 0 ? std::string() : rank_directory(rank / ranks_in_directory);
}

std::string RankFiles::data(std::uint32_t rank, std::uint32_t part) const {
  return data_file(rank, part, directory(rank));
}

std::string RankFiles::record(std::uint32_t rank) const {
  return ranks_in_directory == 0 ? record_file(rank) : fmt::format("{}/{}", directory(rank), record_file(rank));
}

bool RankFiles::is_data(std::string_view name, std::uint32_t rank) const {
  const std::string record_name = record(rank);
  return rank_of_file(name) == rank && name != record_name && directory_in(name) == directory_in(record_name);
}

bool is_version_file(std::string_view name) {
  if (name == kManifestName || name == kIndexName) return true;
  if (directory_in(name).empty() && (rank_of_file(name) || parse_failure_note_file(name))) return true;
  // See publish_exclusively().
  const bool is_private =
      name.starts_with(fmt::format(".{}.", kManifestName)) || name.starts_with(fmt::format(".{}.", kIndexName));
  return is_private && name.ends_with(".tmp");
}

bool stays_in_version(std::string_view name) { return is_plain_name(name) || rank_of_file(name); }

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

}  // namespace slackwater
