#include "restore/version_contents.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "commit/catalog.hpp"
#include "commit/fields.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kLengthWordBytes = 8;

// What the manifest promises and is not there is damage, not an honest "not found".
Error as_damage(Error error) {
  if (error.kind == ErrorKind::kNotFound) {
    error.kind = ErrorKind::kCorrupt;
    error.message = "a file that this committed version promises is missing";
  }
  return error;
}

std::string describe(const StreamIdentity& identity) {
  return fmt::format("step {} attempt {} rank {} of {}", identity.step, identity.attempt, identity.rank,
                     identity.world);
}

Status check_identity(const StreamIdentity& found, const StreamIdentity& expected, const char* what,
                      const std::string& path) {
  if (found.step == expected.step && found.attempt == expected.attempt && found.rank == expected.rank &&
      found.world == expected.world)
    return {};
  return fail(ErrorKind::kCorrupt,
              fmt::format("the {} belongs to {}, but {} was expected here", what, describe(found), describe(expected)),
              path);
}

// Appends the blocks [first_block, last_block), each verified before the next is read.
Status append_verified(File& file, const FileRecord& promised, std::uint64_t first_block, std::uint64_t last_block,
                       std::string& out) {
  for (std::uint64_t block = first_block; block < last_block; ++block) {
    const std::uint64_t offset = block * kBlockBytes;
    const std::uint64_t size = std::min(kBlockBytes, promised.size_bytes - offset);
    const std::size_t before = out.size();
    out.resize(before + size);
    const std::span<std::byte> into = std::as_writable_bytes(std::span(out).subspan(before));
    SW_ASSIGN(const std::uint64_t got, file.read_at(into, offset));
    if (got != size)
      return fail(ErrorKind::kCorrupt, fmt::format("the file ends inside the block at offset {}", offset), file.path());
    if (digest64(into) != promised.block_digests[block])
      return fail(
          ErrorKind::kCorrupt,
          fmt::format(
              "the block at offset {} is not what was written (checksum differs); it holds the header or the tree",
              offset),
          file.path());
  }
  return {};
}

Result<std::string> load_tree(FileSystem& fs, const std::string& path, const FileRecord& promised,
                              const TensorInfo& stored) {
  if (stored.size_bytes > kMaxTreeBytes)
    return fail(ErrorKind::kUnsupported,
                fmt::format("the stored tree has {} bytes, at most {} can be read", stored.size_bytes, kMaxTreeBytes),
                path);
  std::string text;
  if (stored.size_bytes == 0) return text;
  SW_ASSIGN(const std::unique_ptr<File> file, fs.open(path, OpenMode::kRead, false));
  const std::uint64_t first = stored.offset / kBlockBytes;
  const std::uint64_t last = (stored.offset + stored.size_bytes + kBlockBytes - 1) / kBlockBytes;
  SW_TRY(append_verified(*file, promised, first, last, text));
  text.erase(0, stored.offset - first * kBlockBytes);
  text.resize(stored.size_bytes);
  return text;
}

Status add_file(FileSystem& fs, const std::string& directory, const Record& record, FileRecord promised,
                bool local_names, VersionContents& contents) {
  std::string path = directory + "/" + promised.name;
  auto header = load_header(fs, path, promised, record.identity);
  if (!header) return fail(as_damage(std::move(header).error()));

  const auto index = static_cast<std::uint32_t>(contents.files.size());
  for (TensorInfo& tensor : header->tensors) {
    if (tensor.name == kTreeTensorName) {
      if (contents.tree.empty()) {
        SW_ASSIGN(contents.tree, load_tree(fs, path, promised, tensor));
      }
      continue;
    }
    tensor.file = index;
    if (local_names) {
      tensor.name = local_name(record.identity.rank, tensor.name);
      if (!tensor.alias_of.empty()) tensor.alias_of = local_name(record.identity.rank, tensor.alias_of);
    }
    contents.tensors.push_back(std::move(tensor));
  }
  if (contents.tree.empty()) contents.tree = std::move(header->tree);
  contents.metadata.merge(header->metadata);
  contents.files.push_back({promised.name, record.identity.rank, promised.size_bytes});
  contents.data.push_back({std::move(path), promised.size_bytes, std::move(promised.block_digests)});
  return {};
}

}  // namespace

Result<Record> load_record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
                           const RecordReference& reference) {
  const std::string path = directory + "/" + reference.file;
  auto text = read_whole(fs, path, kMaxRecordBytes);
  if (!text) return fail(as_damage(std::move(text).error()));
  if (digest128(*text) != reference.digest)
    return fail(ErrorKind::kCorrupt, "the record is not the one the manifest names (checksum differs)", path);
  SW_ASSIGN(Record record, parse_record(*text, path));
  SW_TRY(check_identity(record.identity, {manifest.step, manifest.attempt, reference.rank, manifest.world}, "record",
                        path));
  if (record.run != manifest.run)
    return fail(ErrorKind::kCorrupt, "the record was written by another run than the manifest", path);
  return record;
}

Result<ParsedHeader> load_header(FileSystem& fs, const std::string& path, const FileRecord& promised,
                                 const StreamIdentity& identity) {
  SW_ASSIGN(const std::unique_ptr<File> file, fs.open(path, OpenMode::kRead, false));
  SW_ASSIGN(const FileStatus status, file->status());
  if (status.size_bytes != promised.size_bytes)
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file has {} bytes, its record promises {}", status.size_bytes, promised.size_bytes),
                path);
  if (promised.size_bytes < kLengthWordBytes)
    return fail(ErrorKind::kCorrupt, fmt::format("{} bytes are too few for a safetensors file", promised.size_bytes),
                path);

  std::string bytes;
  SW_TRY(append_verified(*file, promised, 0, 1, bytes));
  SW_ASSIGN(const std::uint64_t length,
            header_bytes(std::string_view(bytes).substr(0, kLengthWordBytes), promised.size_bytes, path));
  const std::uint64_t blocks = (kLengthWordBytes + length + kBlockBytes - 1) / kBlockBytes;
  bytes.reserve(std::min(blocks * kBlockBytes, promised.size_bytes));
  SW_TRY(append_verified(*file, promised, 1, blocks, bytes));
  SW_ASSIGN(ParsedHeader header,
            parse_header(std::string_view(bytes).substr(kLengthWordBytes, length), promised.size_bytes, path));
  if (!header.has_identity)
    return fail(ErrorKind::kCorrupt, "the header does not say which step and rank it belongs to", path);
  SW_TRY(check_identity(header.identity, identity, "header", path));
  return header;
}

Result<VersionContents> load_version(FileSystem& fs, const std::string& root, const VersionName& version,
                                     std::optional<std::uint32_t> rank) {
  const std::string directory = root + "/" + version_directory(version);
  VersionContents contents;
  SW_ASSIGN(contents.manifest, read_manifest(fs, root, version));
  const Manifest& manifest = contents.manifest;
  if (manifest.decision == Decision::kAbort)
    return fail(ErrorKind::kAborted, fmt::format("this version was given up when it was written: {}", manifest.reason),
                directory);

  std::uint64_t total_bytes = 0;
  const bool local_names = manifest.world > 1 && !rank;
  for (const RecordReference& reference : manifest.records) {
    if (rank && reference.rank != *rank) continue;
    SW_ASSIGN(Record record, load_record(fs, directory, manifest, reference));
    for (FileRecord& file : record.files) {
      total_bytes += file.size_bytes;
      SW_TRY(add_file(fs, directory, record, std::move(file), local_names, contents));
    }
  }
  if (!rank && total_bytes != manifest.size_bytes)
    return fail(ErrorKind::kCorrupt,
                fmt::format("the records promise {} bytes, the manifest {}", total_bytes, manifest.size_bytes),
                directory + "/" + kManifestName);

  std::ranges::sort(contents.tensors, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(contents.tensors, {}, &TensorInfo::name);
  if (twice != contents.tensors.end())
    return fail(ErrorKind::kCorrupt,
                fmt::format("tensor '{}' is stored in {} and again in {}", twice->name,
                            contents.files[twice->file].name, contents.files[std::next(twice)->file].name),
                directory);
  return contents;
}

Error damaged_or_removed(FileSystem& fs, const std::string& root, const VersionName& version, Error damage) {
  const std::string directory = root + "/" + version_directory(version);
  const auto manifest = fs.status(directory + "/" + kManifestName);
  if (manifest || manifest.error().kind != ErrorKind::kNotFound) return damage;
  return {ErrorKind::kNotFound,
          fmt::format("the checkpoint of step {} is not there any more; it was removed meanwhile", version.step),
          directory, 0, false};
}

std::string join_names(const std::vector<std::string>& names, std::size_t at_most) {
  const std::size_t shown = std::min(names.size(), at_most);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace slackwater
