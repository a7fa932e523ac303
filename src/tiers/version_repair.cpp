#include "tiers/version_repair.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "tiers/tier_scan.hpp"
#include "version/attempt.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater {

VersionRepair::VersionRepair(RepairOrder order, TierPlace target, std::function<bool(std::uint32_t)> in_share, Log log)
    : order_(std::move(order)),
      target_(std::move(target)),
      in_share_(std::move(in_share)),
      log_(std::move(log)),
      sources_(order_.sources) {}

Status VersionRepair::copy(const CopyOptions& options) {
  // A file that is damaged below too comes from the tier after that.
  for (;;) {
    Status copied = try_to_copy(options);
    if (copied || !sources_.move_on(copied.error())) return copied;
  }
}

Status VersionRepair::try_to_copy(const CopyOptions& options) {
  SW_ASSIGN(const VersionFiles files, VersionFiles::read(sources_, sources_.root(), order_.version));
  VersionCopier copier(files, *target_.fs, target_.root);
  SW_TRY(copier.begin());
  for (const std::string& name : order_.damaged) SW_TRY(copy_damaged(files, name, options));
  for (const RecordReference& reference : files.manifest().records) {
    if (in_share_(reference.rank)) SW_TRY(copy_missing(files, reference, options));
  }
  return {};
}

Status VersionRepair::copy_damaged(const VersionFiles& files, const std::string& name, const CopyOptions& options) {
  const std::string directory = version_path(target_.root, order_.version);
  const auto rank = rank_of_file(name);
  if (!rank) return {};  // the index was placed by begin(); the manifest comes last
  const auto& records = files.manifest().records;
  const auto reference = std::ranges::find(records, *rank, &RecordReference::rank);
  if (reference == records.end()) return {};
  SW_ASSIGN(const VersionFiles::RankPart part, files.rank_part(*reference));
  if (name == reference->file) {
    ++files_copied_;
    return place_file(*target_.fs, directory, name, part.record_text);
  }
  const auto file = std::ranges::find(part.record.files, name, &FileRecord::name);
  if (file == part.record.files.end()) return {};
  // In place: only blocks that differ are written, so no byte that was good is lost if this is interrupted.
  SW_TRY(copy_file({files.fs(), fmt::format("{}/{}", files.directory(), name)},
                   {*target_.fs, fmt::format("{}/{}", directory, name)}, *file, options));
  ++files_copied_;
  return {};
}

Status VersionRepair::copy_missing(const VersionFiles& files, const RecordReference& reference,
                                   const CopyOptions& options) {
  const std::string directory = version_path(target_.root, order_.version);
  VersionCopier copier(files, *target_.fs, target_.root);
  const std::string record_path = fmt::format("{}/{}", directory, reference.file);
  const auto text = retry_read([&] { return read_whole(*target_.fs, record_path, kMaxRecordBytes); });
  if (!text && text.error().kind != ErrorKind::kNotFound && text.error().kind != ErrorKind::kCorrupt)
    return fail(text.error());
  if (!text || digest128(*text) != reference.digest) {
    // Without its record nobody knows how far an earlier copy came. So all of the rank's files are compared and
    // completed, and the record is placed behind them.
    files_copied_ += 1;
    return copier.copy_rank(reference, options);
  }
  SW_ASSIGN(const Record record, parse_record(*text, record_path));
  for (const FileRecord& file : record.files) {
    const std::string path = fmt::format("{}/{}", directory, file.name);
    const auto found = retry_read([&] { return target_.fs->status(path); });
    if (!found && found.error().kind != ErrorKind::kNotFound) return fail(found.error());
    if (found && found->size_bytes == file.size_bytes) continue;
    SW_TRY(copy_file({files.fs(), fmt::format("{}/{}", files.directory(), file.name)}, {*target_.fs, path}, file,
                     options));
    ++files_copied_;
  }
  return {};
}

Result<bool> VersionRepair::unpublished() const {
  const auto manifest = read_manifest(*target_.fs, target_.root, order_.version);
  if (manifest) return false;
  const ErrorKind kind = manifest.error().kind;
  if (kind == ErrorKind::kNotFound || kind == ErrorKind::kCorrupt) return true;
  return fail(manifest.error());
}

// Nobody may publish a manifest for files that a clean-up has taken away meanwhile. So all of them are looked at again.
Result<bool> VersionRepair::is_whole(const VersionFiles& files) {
  const std::string directory = version_path(target_.root, order_.version);
  for (const RecordReference& reference : files.manifest().records) {
    const auto record = read_whole(*target_.fs, fmt::format("{}/{}", directory, reference.file), kMaxRecordBytes);
    if (!record && record.error().kind != ErrorKind::kNotFound) return fail(record.error());
    if (!record || digest128(*record) != reference.digest) return false;
    SW_ASSIGN(const Record parsed, parse_record(*record, fmt::format("{}/{}", directory, reference.file)));
    for (const FileRecord& file : parsed.files) {
      const auto found = target_.fs->status(fmt::format("{}/{}", directory, file.name));
      if (!found && found.error().kind != ErrorKind::kNotFound) return fail(found.error());
      if (!found || found->size_bytes != file.size_bytes) return false;
    }
  }
  return true;
}

Result<bool> VersionRepair::publish() {
  SW_ASSIGN(const VersionFiles files, VersionFiles::read(sources_, sources_.root(), order_.version));
  SW_ASSIGN(const bool whole, is_whole(files));
  if (!whole) return false;
  SW_TRY(publish_attempt_file());
  // A damaged manifest is in the way. It says nothing that the copy below does not say.
  const std::string path = fmt::format("{}/{}", version_path(target_.root, order_.version), kManifestName);
  const auto there = read_manifest(*target_.fs, target_.root, order_.version);
  if (!there && there.error().kind == ErrorKind::kCorrupt) SW_TRY(target_.fs->unlink(path));
  return VersionCopier(files, *target_.fs, target_.root).publish();
}

// An upper tier that was lost has lost its attempt files too. The newest one says which versions are live. It is never
// placed over a newer attempt: that one has its own list.
Status VersionRepair::publish_attempt_file() {
  SW_ASSIGN(const std::uint32_t here, newest_attempt_number(*target_.fs, target_.root));
  SW_ASSIGN(const std::uint32_t below, newest_attempt_number(sources_, sources_.root()));
  if (below <= here || below > order_.newest_attempt) return {};
  const std::string name = attempt_file(below);
  SW_ASSIGN(const std::string text, read_listed(sources_, control_path(sources_.root()), name, kMaxAttemptBytes));
  const Status published = publish_exclusively(*target_.fs, control_path(target_.root), name, text, random_id());
  if (!published && published.error().kind != ErrorKind::kAlreadyExists) return published;
  return {};
}

}  // namespace slackwater
