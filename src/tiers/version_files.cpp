#include "tiers/version_files.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

// A name may have a subdirectory in front: "g0003/rank-03072.record".
Result<std::string> read_in(FileSystem& fs, const std::string& directory, const std::string& name,
                            std::uint64_t max_bytes) {
  const auto slash = name.rfind('/');
  if (slash == std::string::npos) return read_listed(fs, directory, name, max_bytes);
  const std::string inner = fmt::format("{}/{}", directory, name.substr(0, slash));
  SW_TRY(check_own_directory(fs, inner));
  return read_listed(fs, inner, name.substr(slash + 1), max_bytes);
}

}  // namespace

Result<VersionFiles> VersionFiles::read(FileSystem& fs, const std::string& root, const VersionName& version) {
  VersionFiles files;
  files.fs_ = &fs;
  files.name_ = version;
  files.directory_ = version_path(root, version);
  SW_ASSIGN(files.manifest_text_, read_listed(fs, files.directory_, kManifestName, kMaxManifestBytes));
  SW_ASSIGN(files.manifest_,
            parse_manifest(files.manifest_text_, fmt::format("{}/{}", files.directory_, kManifestName)));
  if (files.manifest_.step != version.step || files.manifest_.attempt != version.attempt)
    return corrupt("the manifest is of another version", files.directory_);
  if (files.manifest_.decision != Decision::kCommit)
    return fail(ErrorKind::kAborted, fmt::format("step {} was aborted, so it has no files to copy", version.step),
                files.directory_);
  return files;
}

Result<VersionFiles::RankPart> VersionFiles::rank_part(const RecordReference& reference) const {
  const std::string path = fmt::format("{}/{}", directory_, reference.file);
  RankPart part;
  SW_ASSIGN(part.record_text, read_in(*fs_, directory_, reference.file, kMaxRecordBytes));
  if (digest128(part.record_text) != reference.digest)
    return corrupt("the record is not the one that the manifest vouches for", path);
  SW_ASSIGN(part.record, parse_record(part.record_text, path));
  for (const FileRecord& file : part.record.files) {
    if (!stays_in_version(file.name) || rank_of_file(file.name) != std::optional(reference.rank))
      return corrupt(fmt::format("the record of rank {} names the file '{}'", reference.rank, file.name), path);
  }
  return part;
}

Result<std::string> VersionFiles::index_text() const {
  SW_ASSIGN(std::string text, read_listed(*fs_, directory_, kIndexName, kMaxIndexBytes));
  if (digest128(text) == manifest_.index_digest) return text;
  return corrupt("the index is not the one that the manifest vouches for",
                 fmt::format("{}/{}", directory_, kIndexName));
}

Result<ManifestThere> find_manifest(FileSystem& fs, const std::string& root, const VersionFiles& version) {
  const std::string directory = version_path(root, version.name());
  const auto text = read_listed(fs, directory, kManifestName, kMaxManifestBytes);
  if (!text && text.error().kind == ErrorKind::kNotFound) return ManifestThere::kNone;
  if (!text && text.error().kind == ErrorKind::kCorrupt) return ManifestThere::kDamaged;
  if (!text) return fail(text.error());
  if (*text == version.manifest_text()) return ManifestThere::kSame;
  const auto manifest = parse_manifest(*text, fmt::format("{}/{}", directory, kManifestName));
  // One of a newer format is intact, and not ours.
  if (!manifest) return manifest.error().kind == ErrorKind::kCorrupt ? ManifestThere::kDamaged : ManifestThere::kOther;
  const bool named_so = VersionName{manifest->step, manifest->attempt} == version.name();
  return named_so ? ManifestThere::kOther : ManifestThere::kDamaged;
}

Result<std::optional<std::string>> find_record(FileSystem& fs, const std::string& directory,
                                               const RecordReference& reference) {
  auto text = read_in(fs, directory, reference.file, kMaxRecordBytes);
  if (!text && text.error().kind != ErrorKind::kNotFound && text.error().kind != ErrorKind::kCorrupt)
    return fail(std::move(text).error());
  if (!text || digest128(*text) != reference.digest) return std::optional<std::string>();
  return std::optional(std::move(*text));
}

Result<std::vector<std::string>> VersionFiles::names() const {
  std::vector<std::string> names;
  for (const RecordReference& reference : manifest_.records) {
    SW_ASSIGN(const RankPart part, rank_part(reference));
    for (const FileRecord& file : part.record.files) names.push_back(file.name);
    names.push_back(reference.file);
  }
  names.emplace_back(kIndexName);
  names.emplace_back(kManifestName);
  return names;
}

}  // namespace slackwater
