// VersionFiles: which files make up a committed version, from its manifest and its records. A version is this set of
// files, wherever they are; code that copies, repairs or counts a version asks here and does not list a directory.
// Every text is checked against the digest that vouches for it: records and index against the manifest, data files
// (by the caller) against their record.
// Plain value. Thread rule: constant after read(). Lifetime: the FileSystem outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "version/manifest.hpp"
#include "version/names.hpp"
#include "version/record.hpp"

namespace slackwater {

class VersionFiles {
 public:
  // Reads the manifest. kNotFound: there is none. kAborted: it is not a commit.
  [[nodiscard]] static Result<VersionFiles> read(FileSystem& fs, const std::string& root, const VersionName& version);

  [[nodiscard]] FileSystem& fs() const { return *fs_; }
  [[nodiscard]] const VersionName& name() const { return name_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }  // the names below are relative to it
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& manifest_text() const { return manifest_text_; }  // exact bytes

  // What one rank wrote: its record as text and as values; `record.files` are its data files.
  struct RankPart {
    std::string record_text;
    Record record;
  };
  // `reference` is one of manifest().records. kCorrupt: the record is not the one that the manifest vouches for.
  [[nodiscard]] Result<RankPart> rank_part(const RecordReference& reference) const;
  [[nodiscard]] Result<std::string> index_text() const;

  // All names: data files and records of all ranks, the index, and the manifest last. Reads every record.
  [[nodiscard]] Result<std::vector<std::string>> names() const;

 private:
  FileSystem* fs_ = nullptr;
  VersionName name_;
  std::string directory_;
  std::string manifest_text_;
  Manifest manifest_;
};

// What a tier has under the name of a version that is to be copied there. Two runs that have not seen each other may
// use the same names (tier_branches.hpp), so the name alone does not say that it is this version.
enum class ManifestThere : std::uint8_t {
  kNone,
  kSame,     // byte for byte: the version is published there
  kDamaged,  // it says nothing
  kOther,    // of another version, whose files must not be touched
};
// An error means that it could not be read, and nothing is known.
[[nodiscard]] Result<ManifestThere> find_manifest(FileSystem& fs, const std::string& root, const VersionFiles& version);

// A record's text, if it is in the version's directory with the bytes that the manifest vouches for. nullopt: it is
// missing, or is being written, or a crash cut it short.
[[nodiscard]] Result<std::optional<std::string>> find_record(FileSystem& fs, const std::string& directory,
                                                             const RecordReference& reference);

}  // namespace slackwater
