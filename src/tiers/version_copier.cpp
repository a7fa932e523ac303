#include "tiers/version_copier.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr int kCopyTries = 3;  // to copy a version that somebody else deletes at the same time

std::string base_name(const std::string& name) { return name.substr(name.rfind('/') + 1); }

}  // namespace

VersionCopier::VersionCopier(const VersionFiles& source, FileSystem& target, std::string target_root)
    : source_(source), target_(target), root_(std::move(target_root)), directory_(version_path(root_, source.name())) {}

Status VersionCopier::begin(DamagedManifest damaged) {
  // All files have the names of the source. So without this look, the copy would write over another run's version.
  SW_ASSIGN(const ManifestThere there, find_manifest(target_, root_, source_));
  if (there == ManifestThere::kOther) {
    return fail(ErrorKind::kAlreadyExists,
                "a different checkpoint of that name is there, which is kept; remove it there with slackwater rm",
                directory_);
  }
  if (there == ManifestThere::kDamaged && damaged == DamagedManifest::kStays) {
    return fail(ErrorKind::kCorrupt,
                "a checkpoint of that name is there, and its manifest is damaged; remove it there with slackwater rm",
                fmt::format("{}/{}", directory_, kManifestName));
  }
  SW_ASSIGN(const std::string index, source_.index_text());
  Status made = target_.make_directory(directory_);
  if (!made && made.error().kind != ErrorKind::kAlreadyExists) return made;
  if (!made) SW_TRY(check_own_directory(target_, directory_));
  return place_file(target_, directory_, kIndexName, index);
}

// The directory that the file belongs into: the version's, or a subdirectory of it.
Result<std::string> VersionCopier::make_rank_directory(const std::string& file) {
  const auto slash = file.rfind('/');
  if (slash == std::string::npos) return directory_;
  std::string inner = fmt::format("{}/{}", directory_, file.substr(0, slash));
  Status made = target_.make_directory(inner);
  if (!made && made.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(made).error());
  if (!made) SW_TRY(check_own_directory(target_, inner));
  return inner;
}

Status VersionCopier::copy_rank(const RecordReference& reference, const CopyOptions& options) {
  if (!incomplete_.contains(reference.rank)) {
    SW_ASSIGN(const bool there, has_record(reference));
    if (there) return {};
  }
  SW_ASSIGN(const VersionFiles::RankPart part, source_.rank_part(reference));
  SW_ASSIGN(const std::string inner, make_rank_directory(reference.file));
  for (const FileRecord& file : part.record.files) {
    SW_TRY(copy_file({source_.fs(), fmt::format("{}/{}", source_.directory(), file.name)},
                     {target_, fmt::format("{}/{}", directory_, file.name)}, file, options));
  }
  // The record vouches for the data files, so it comes after them.
  SW_TRY(place_file(target_, inner, base_name(reference.file), part.record_text));
  // Then the names, from the inside out, as in VersionStore::write_record().
  if (inner != directory_) SW_TRY(target_.sync_directory(inner));
  SW_TRY(target_.sync_directory(directory_));
  SW_TRY(target_.sync_directory(root_));
  incomplete_.erase(reference.rank);
  note_found(reference, part.record, part.record_text.size());
  return {};
}

void VersionCopier::note_found(const RecordReference& reference, const Record& record, std::uint64_t record_bytes) {
  Files& files = found_[reference.rank];
  files = {{reference.file, record_bytes}};
  for (const FileRecord& file : record.files) files.push_back({file.name, file.size_bytes});
}

Result<bool> VersionCopier::has_record(const RecordReference& reference) {
  if (found_.contains(reference.rank)) return true;
  const std::string path = fmt::format("{}/{}", directory_, reference.file);
  const std::string inner = path.substr(0, path.rfind('/'));
  const auto text = read_listed(target_, inner, base_name(reference.file), kMaxRecordBytes);
  if (!text && text.error().kind == ErrorKind::kNotFound) return false;
  if (!text) return fail(text.error());
  // Half a record is one that is being written, or that a crash cut short.
  if (digest128(*text) != reference.digest) return false;
  SW_ASSIGN(const Record record, parse_record(*text, path));
  note_found(reference, record, text->size());
  return true;
}

Result<std::vector<std::uint32_t>> VersionCopier::missing_ranks() {
  std::vector<std::uint32_t> missing;
  for (const RecordReference& reference : source_.manifest().records) {
    SW_ASSIGN(const bool there, has_record(reference));
    if (!there) missing.push_back(reference.rank);
  }
  return missing;
}

Result<bool> VersionCopier::is_published() {
  SW_ASSIGN(const ManifestThere there, find_manifest(target_, root_, source_));
  return there == ManifestThere::kSame;
}

Result<std::vector<std::uint32_t>> VersionCopier::incomplete_ranks() {
  incomplete_.clear();
  SW_ASSIGN(const std::vector<std::uint32_t> without_record, missing_ranks());
  incomplete_.insert(without_record.begin(), without_record.end());
  const auto listed = target_.list_files(directory_);
  if (!listed && listed.error().kind != ErrorKind::kNotFound) return fail(listed.error());
  const auto is_there = [&](const FileEntry& file) {
    if (!listed) return false;
    const auto found = std::ranges::lower_bound(*listed, file.name, {}, &FileEntry::name);
    return found != listed->end() && found->name == file.name && found->size_bytes == file.size_bytes;
  };
  index_is_there_ = listed && std::ranges::binary_search(*listed, std::string_view(kIndexName), {}, &FileEntry::name);
  for (const auto& [rank, files] : found_)
    if (!std::ranges::all_of(files, is_there)) incomplete_.insert(rank);
  for (const std::uint32_t rank : incomplete_) found_.erase(rank);
  return std::vector<std::uint32_t>(incomplete_.begin(), incomplete_.end());
}

Result<bool> VersionCopier::publish() {
  SW_ASSIGN(const std::vector<std::uint32_t> incomplete, incomplete_ranks());
  if (!incomplete.empty() || !index_is_there_) return false;
  // Whoever wrote a file may have died before its last sync. One sync of each directory makes all names durable; the
  // bytes were synced before their record was written.
  std::set<std::string> inner;
  for (const RecordReference& reference : source_.manifest().records) {
    const auto slash = reference.file.rfind('/');
    if (slash != std::string::npos) inner.insert(fmt::format("{}/{}", directory_, reference.file.substr(0, slash)));
  }
  for (const std::string& path : inner) SW_TRY(target_.sync_directory(path));
  SW_TRY(target_.sync_directory(directory_));
  SW_TRY(target_.sync_directory(root_));
  // The same text as on the tier above, so that the two manifests have the same digest and seal.
  Status published = publish_exclusively(target_, directory_, kManifestName, source_.manifest_text(), random_id());
  if (published) return true;
  if (published.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(published).error());
  SW_ASSIGN(const std::string there, read_listed(target_, directory_, kManifestName, kMaxManifestBytes));
  if (there == source_.manifest_text()) {
    SW_TRY(target_.sync_directory(directory_));
    return true;
  }
  return fail(ErrorKind::kCorrupt,
              "the target already has a different manifest for this step; remove it there with slackwater rm",
              fmt::format("{}/{}", directory_, kManifestName));
}

Status VersionCopier::copy_all(const CopyOptions& options) {
  for (int tries = 0; tries < kCopyTries; ++tries) {
    SW_ASSIGN(const bool complete, is_complete());
    if (complete) return {};
    SW_TRY(begin());
    for (const RecordReference& reference : source_.manifest().records) SW_TRY(copy_rank(reference, options));
    SW_ASSIGN(const bool published, publish());
    if (!published) continue;
    SW_ASSIGN(const bool still_complete, is_complete());
    if (still_complete) return {};
    // Files went after the last look at them. What was published must not stay without them.
    Status withdrawn = target_.unlink(fmt::format("{}/{}", directory_, kManifestName));
    if (!withdrawn && withdrawn.error().kind != ErrorKind::kNotFound) return withdrawn;
    SW_TRY(target_.sync_directory(directory_));
  }
  return fail(Error{.kind = ErrorKind::kBusy,
                    .message = fmt::format("step {} was deleted there while it was copied: a run that copies to the "
                                           "same place does not keep it (`keep`), or another process cleans up there",
                                           source_.name().step),
                    .path = directory_,
                    .retryable = true});
}

Result<bool> VersionCopier::is_complete() {
  SW_ASSIGN(const bool published, is_published());
  if (!published) return false;
  SW_ASSIGN(const std::vector<std::uint32_t> incomplete, incomplete_ranks());
  return incomplete.empty() && index_is_there_;
}

}  // namespace slackwater
