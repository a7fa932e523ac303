// What a committed version holds. Each part is verified before it is believed. With one rank it is read from manifest,
// record and headers; with several from manifest and index, so that a reader need not open the files of ranks whose
// tensors it does not want.
// Free functions over a FileSystem; results are plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/safetensors_header.hpp"
#include "os/file_system.hpp"
#include "restore/index_view.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "version/manifest.hpp"
#include "version/names.hpp"
#include "version/record.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxTreeBytes = 1u << 30;  // it is read whole into memory

struct DataFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> block_digests;
  bool has_record = true;  // false: its record was not read yet, so size and digests are unknown
};

struct VersionContents {
  Manifest manifest;
  std::vector<FileInfoOnTier> files;
  std::vector<DataFile> data;       // parallel to `files`
  std::vector<TensorInfo> tensors;  // sorted by name; with aliases, without the stored tree
  std::map<std::string, std::string> metadata;
  std::string tree;
  bool left_out = false;  // as in IndexView
  std::string trouble;    // what is wrong, but does not keep this reader from reading; empty: nothing
};

// Called as reading goes on, at least once per file; may be empty.
using OnProgress = std::function<void()>;

// Strict: the first contradiction is the error. A missing file is kCorrupt, because the manifest names it.
// Without a viewer, a version of several ranks shows each tensor under its name in the index, and the tree and metadata
// of rank 0. A viewer sees the global tensors. If its run has as many ranks as the one that saved, it also sees its own
// rank's tensors and tree.
// An index that is missing, or not the one the manifest names, costs time but not the version: the headers say the
// same.
// `trouble` then says so.
[[nodiscard]] Result<VersionContents> load_version(FileSystem& fs, const std::string& root, const VersionName& version,
                                                   const std::optional<Viewer>& viewer = {},
                                                   const OnProgress& on_progress = {});

// Reads the records of these files, unless that was done before.
[[nodiscard]] Status load_records(FileSystem& fs, const std::string& directory, VersionContents& contents,
                                  std::span<const std::uint32_t> files, const OnProgress& on_progress = {});

// The manifest of a version; kAborted if its writer gave the version up.
[[nodiscard]] Result<Manifest> read_commit(FileSystem& fs, const std::string& root, const VersionName& version);

// Reads one record. Checks, in this order: that its subdirectory is a directory, the digest of its exact bytes against
// the manifest, its syntax, then step, attempt, rank, world, run and file names. Nothing of a rank is read before its
// record.
[[nodiscard]] Result<Record> load_record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
                                         const RecordReference& reference);

// Reads the header of one data file. Checks the size on disk, then the digests of the header's blocks, then its syntax,
// then its identity.
[[nodiscard]] Result<ParsedHeader> load_header(FileSystem& fs, const std::string& path, const FileRecord& record,
                                               const FileIdentity& identity);

// Tells damage from storage trouble when a file was not found. A file that the manifest names and its directory does
// not list is damage. A file that is listed but cannot be opened, or a directory that cannot be listed, is storage
// trouble.
// `error` names the file; errors of other kinds are returned unchanged.
[[nodiscard]] Error missing_or_unreadable(FileSystem& fs, Error error);

// Readers take no lock, so retention may remove a version under them, manifest first. What then looks like damage
// becomes kNotFound.
[[nodiscard]] Error damaged_or_removed(FileSystem& fs, const std::string& root, const VersionName& version,
                                       Error damage);

// "a, b, c and 5 more".
[[nodiscard]] std::string join_names(const std::vector<std::string>& names, std::size_t at_most = 5);

}  // namespace slackwater
