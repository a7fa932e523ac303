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
  auto files = VersionFiles::read(sources_, sources_.root(), order_.version);
  // Not due on any tier below, or not there yet. Then there is nothing to bring.
  if (!files && files.error().kind == ErrorKind::kNotFound && order_.damaged.empty()) return {};
  if (!files) return fail(std::move(files).error());
  files_ = std::move(*files);
  // publish() replaces a damaged manifest. It may be all that the upper tier lacks.
  VersionCopier copier(*files_, *target_.fs, target_.root);
  SW_TRY(copier.begin(VersionCopier::DamagedManifest::kMayBeReplaced));
  for (const std::string& name : order_.damaged) SW_TRY(copy_damaged(name, options));
  for (const RecordReference& reference : files_->manifest().records) {
    if (in_share_(reference.rank)) SW_TRY(copy_missing(reference, options));
  }
  return {};
}

Status VersionRepair::copy_damaged(const std::string& name, const CopyOptions& options) {
  const VersionFiles& files = *files_;
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

Status VersionRepair::copy_missing(const RecordReference& reference, const CopyOptions& options) {
  const VersionFiles& files = *files_;
  const std::string directory = version_path(target_.root, order_.version);
  SW_ASSIGN(const auto text, find_record(*target_.fs, directory, reference));
  if (!text) {
    // Without its record nobody knows how far an earlier copy came. So all of the rank's files are compared and
    // completed, and the record is placed behind them.
    files_copied_ += 1;
    return VersionCopier(files, *target_.fs, target_.root).copy_rank(reference, options);
  }
  SW_ASSIGN(const Record record, parse_record(*text, fmt::format("{}/{}", directory, reference.file)));
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
  if (!files_) return false;
  const auto manifest = read_manifest(*target_.fs, target_.root, order_.version);
  if (manifest) return false;
  const ErrorKind kind = manifest.error().kind;
  if (kind == ErrorKind::kNotFound || kind == ErrorKind::kCorrupt) return true;
  return fail(manifest.error());
}

Result<std::optional<std::uint32_t>> VersionRepair::missing_rank() const {
  const std::string directory = version_path(target_.root, order_.version);
  for (const RecordReference& reference : files_->manifest().records) {
    SW_ASSIGN(const auto text, find_record(*target_.fs, directory, reference));
    if (!text) return std::optional(reference.rank);
    SW_ASSIGN(const Record record, parse_record(*text, fmt::format("{}/{}", directory, reference.file)));
    for (const FileRecord& file : record.files) {
      const auto found = target_.fs->status(fmt::format("{}/{}", directory, file.name));
      if (!found && found.error().kind != ErrorKind::kNotFound) return fail(found.error());
      if (!found || found->size_bytes != file.size_bytes) return std::optional(reference.rank);
    }
  }
  return std::optional<std::uint32_t>();
}

Result<bool> VersionRepair::publish() {
  // Nobody may publish a manifest for files that a clean-up has taken away meanwhile. So all are looked at again.
  SW_ASSIGN(const auto missing, missing_rank());
  if (missing) return false;
  // A tier that was lost has lost its attempt files too. The one that decided says which versions are live. It is not
  // placed where there are others: then this tier has a list of its own, until a run claims the next attempt.
  if (order_.attempt) {
    SW_ASSIGN(const std::uint32_t here, newest_attempt_number(*target_.fs, target_.root));
    if (here == 0) SW_TRY(place_attempt_file(*target_.fs, target_.root, *order_.attempt, serialize(*order_.attempt)));
  }
  // A damaged manifest is in the way. It says nothing that the copy below does not say.
  const std::string path = fmt::format("{}/{}", version_path(target_.root, order_.version), kManifestName);
  const auto there = read_manifest(*target_.fs, target_.root, order_.version);
  if (!there && there.error().kind == ErrorKind::kCorrupt) SW_TRY(target_.fs->unlink(path));
  return VersionCopier(*files_, *target_.fs, target_.root).publish();
}

}  // namespace slackwater
