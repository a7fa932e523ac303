// VersionCopier: puts a committed version onto another tier, file by file, under the same name and with the same bytes.
// The order makes the version visible only when it is complete and durable there:
//   [no other version of that name is there] -> index -> for each rank: data files, then its record
//   -> [all records found and checked] -> [every file is there, with its exact size] -> manifest, exclusively
// A record vouches for files that were there once. A clean-up, or a power cut, may have taken them since, so nothing is
// published before one list of the version has shown all of them.
// Several processes may copy parts of one version at the same time, or the same part twice: all of them write the same
// bytes. The target must have a claimed attempt that is at least as new as the version (RunAttempt::follow()).
// Owned by a promoter, a repair, or a verb of the CLI. Thread rule: one thread at a time.
// Lifetime: both FileSystems outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tiers/file_copier.hpp"
#include "tiers/version_files.hpp"

namespace slackwater {

class VersionCopier {
 public:
  VersionCopier(const VersionFiles& source, FileSystem& target, std::string target_root);

  // Makes the directory of the version on the target, and the index in it. Whoever lists it then knows that the version
  // is on its way. Before it writes anything, it looks for a manifest. kAlreadyExists, with the path of directory():
  // another version of that name is there, and stays as it is. kCorrupt: a damaged manifest, unless it may be replaced.
  enum class DamagedManifest : std::uint8_t { kStays, kMayBeReplaced };
  [[nodiscard]] Status begin(DamagedManifest damaged = DamagedManifest::kStays);
  // Data files and record of one rank. Does nothing if its record is there: the record comes last. For a rank that
  // incomplete_ranks() has named, what is there is compared and completed.
  [[nodiscard]] Status copy_rank(const RecordReference& reference, const CopyOptions& options);
  // The ranks whose record is not on the target yet. Looks only for those that it has not found before.
  [[nodiscard]] Result<std::vector<std::uint32_t>> missing_ranks();
  // The ranks of which some file is not on the target, or not with its exact size. Trusts nothing that it found before.
  [[nodiscard]] Result<std::vector<std::uint32_t>> incomplete_ranks();
  // If no rank is incomplete: makes all names durable, then publishes the manifest. Someone else may have done it.
  // False: files are missing, and nothing was published; see incomplete().
  [[nodiscard]] Result<bool> publish();
  [[nodiscard]] const std::set<std::uint32_t>& incomplete() const { return incomplete_; }  // when it was checked last

  // All of it, for a single process that may not be alone: begin, every rank, publish, and a check afterwards that it
  // is still there. Somebody who deletes there without a lock may not have seen the copy, nor its manifest.
  // Does nothing if a complete copy is there already.
  [[nodiscard]] Status copy_all(const CopyOptions& options);
  [[nodiscard]] Result<bool> is_published();                                 // this version, not one of its name
  [[nodiscard]] Result<bool> is_complete();                                  // published, and every file is there
  [[nodiscard]] const std::string& directory() const { return directory_; }  // on the target

 private:
  // The data files of a rank on the target, by its record there, and the record itself.
  using Files = std::vector<FileEntry>;

  [[nodiscard]] Result<bool> has_record(const RecordReference& reference);
  void note_found(const RecordReference& reference, const Record& record, std::uint64_t record_bytes);
  [[nodiscard]] Result<std::string> make_rank_directory(const std::string& file);

  const VersionFiles& source_;
  FileSystem& target_;
  const std::string root_;
  const std::string directory_;
  std::map<std::uint32_t, Files> found_;  // ranks whose record is on the target
  std::set<std::uint32_t> incomplete_;
  bool index_is_there_ = false;  // as of the last incomplete_ranks()
};

}  // namespace slackwater
