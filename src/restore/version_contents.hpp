// What a committed version promises, read from manifest, records and headers, each verified before it is believed.
// Free functions over a FileSystem; results are plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "commit/manifest.hpp"
#include "commit/names.hpp"
#include "commit/record.hpp"
#include "layout/safetensors_header.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxTreeBytes = 1u << 30;  // it is read whole into memory

struct DataFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> block_digests;
};

struct VersionContents {
  Manifest manifest;
  std::vector<FileInfoOnTier> files;
  std::vector<DataFile> data;       // parallel to `files`
  std::vector<TensorInfo> tensors;  // sorted by name, aliases included, the stored tree left out
  std::map<std::string, std::string> metadata;
  std::string tree;
};

// Everything, strictly: the first thing that does not agree is the error. A missing file is kCorrupt: the manifest promised it.
// `rank`: only that rank's part, its tensors under their own names. Without, in a version of several ranks, each tensor is called as the
// index calls it (local_name()), and tree and metadata are those of the lowest rank that has them.
[[nodiscard]] Result<VersionContents> load_version(FileSystem& fs, const std::string& root, const VersionName& version,
                                                   std::optional<std::uint32_t> rank = {});

// One record: digest of its exact bytes against the manifest, then parsed, then step, attempt, rank, world and run compared.
[[nodiscard]] Result<Record> load_record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
                                         const RecordReference& reference);

// The header of one data file: size on disk, then the digests of the blocks it lies in, then parsed, then its identity compared.
[[nodiscard]] Result<ParsedHeader> load_header(FileSystem& fs, const std::string& path, const FileRecord& promised,
                                               const StreamIdentity& identity);

// Readers take no lock: retention may remove a version under them, manifest first. What then looks like damage is kNotFound.
[[nodiscard]] Error damaged_or_removed(FileSystem& fs, const std::string& root, const VersionName& version,
                                       Error damage);

// "a, b, c and 5 more".
[[nodiscard]] std::string join_names(const std::vector<std::string>& names, std::size_t at_most = 5);

}  // namespace slackwater
