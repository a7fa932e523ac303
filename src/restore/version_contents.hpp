// What a committed version promises, each part verified before it is believed: of one rank read from manifest, record and headers; of
// several from manifest and index, so that a reader does not open the files of ranks whose tensors he does not want.
// Free functions over a FileSystem; results are plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commit/manifest.hpp"
#include "commit/names.hpp"
#include "commit/record.hpp"
#include "layout/safetensors_header.hpp"
#include "os/file_system.hpp"
#include "restore/version_index.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxTreeBytes = 1u << 30;  // it is read whole into memory

struct DataFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> block_digests;
  bool promised = true;  // by its record; false: that was not read yet, and size and digests are not known
};

struct VersionContents {
  Manifest manifest;
  std::vector<FileInfoOnTier> files;
  std::vector<DataFile> data;       // parallel to `files`
  std::vector<TensorInfo> tensors;  // sorted by name, aliases included, the stored tree left out
  std::map<std::string, std::string> metadata;
  std::string tree;
  bool left_out = false;  // as in IndexView
  std::string trouble;    // what is not as it should be, and does not matter to this reader; empty: nothing
};

// Called as reading goes on, for each file at least; may be empty.
using OnProgress = std::function<void()>;

// Strictly: the first thing that does not agree is the error. A missing file is kCorrupt: the manifest promised it.
// Without a viewer, in a version of several ranks, each tensor is called as the index calls it, and tree and metadata are those of rank
// 0. A viewer sees the global tensors, and if his run has as many ranks as the one that saved, his rank's own ones and its tree.
// An index that is gone or not the one the manifest names costs time, not the version: headers say the same. `trouble` then has a
// sentence about it.
[[nodiscard]] Result<VersionContents> load_version(FileSystem& fs, const std::string& root, const VersionName& version,
                                                   const std::optional<Viewer>& viewer = {},
                                                   const OnProgress& on_progress = {});

// Reads the records of the files named, as far as that has not been done.
[[nodiscard]] Status load_promises(FileSystem& fs, const std::string& directory, VersionContents& contents,
                                   std::span<const std::uint32_t> files, const OnProgress& on_progress = {});

// One record: the subdirectory it lies in is one, digest of its exact bytes against the manifest, then parsed, then step, attempt, rank,
// world and run compared, and the names of the files. Who reads files of a rank asks for its record before.
[[nodiscard]] Result<Record> load_record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
                                         const RecordReference& reference);

// The header of one data file: size on disk, then the digests of the blocks it lies in, then parsed, then its identity compared.
[[nodiscard]] Result<ParsedHeader> load_header(FileSystem& fs, const std::string& path, const FileRecord& promised,
                                               const StreamIdentity& identity);

// What the manifest promises and the listing of its directory does not show is damage. A name that is listed and cannot be
// opened is trouble of the storage, as is a directory that cannot be listed. `error` names the file; other kinds stay.
[[nodiscard]] Error missing_or_unreadable(FileSystem& fs, Error error);

// Readers take no lock: retention may remove a version under them, manifest first. What then looks like damage is kNotFound.
[[nodiscard]] Error damaged_or_removed(FileSystem& fs, const std::string& root, const VersionName& version,
                                       Error damage);

// "a, b, c and 5 more".
[[nodiscard]] std::string join_names(const std::vector<std::string>& names, std::size_t at_most = 5);

}  // namespace slackwater
