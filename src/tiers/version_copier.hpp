// VersionCopier: puts a committed version onto another tier, file by file, under the same name and with the same bytes.
// The order makes the version visible only when it is complete and durable there:
//   index -> for each rank: data files, then its record -> [all records found and checked] -> manifest, exclusively
// Several processes may copy parts of one version at the same time, or the same part twice: all of them write the same
// bytes. The target must have a claimed attempt that is at least as new as the version (VersionStore::follow()).
// Owned by a promoter, a repair, or a verb of the CLI. Thread rule: one thread at a time.
// Lifetime: both FileSystems outlive it.
#pragma once

#include <cstdint>
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
  // is on its way.
  [[nodiscard]] Status begin();
  // Data files and record of one rank. Does nothing if its record is there: the record comes last.
  [[nodiscard]] Status copy_rank(const RecordReference& reference, const CopyOptions& options);
  // The ranks whose record is not on the target yet. Looks only for those that it has not found before.
  [[nodiscard]] Result<std::vector<std::uint32_t>> missing_ranks();
  // All ranks' files are there: makes all names durable, then publishes the manifest. Someone else may have done it.
  [[nodiscard]] Status publish();

  // All of it, for a single process: begin, every rank, publish. Does nothing if the manifest is there already.
  [[nodiscard]] Status copy_all(const CopyOptions& options);
  [[nodiscard]] Result<bool> is_published();
  [[nodiscard]] const std::string& directory() const { return directory_; }  // on the target

 private:
  [[nodiscard]] Result<bool> has_record(const RecordReference& reference);
  [[nodiscard]] Result<std::string> make_rank_directory(const std::string& file);

  const VersionFiles& source_;
  FileSystem& target_;
  const std::string root_;
  const std::string directory_;
  std::set<std::uint32_t> found_;  // ranks whose record is on the target
};

}  // namespace slackwater
