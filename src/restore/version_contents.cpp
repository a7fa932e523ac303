#include "restore/version_contents.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kLengthWordBytes = 8;

std::unexpected<Error> misplaced(const std::string& name, std::uint32_t rank, const std::string& path) {
  return corrupt(fmt::format("'{}' is named here, which is not a data file of rank {} in this version", name, rank),
                 path);
}

std::string describe(const FileIdentity& identity) {
  return fmt::format("step {} attempt {} rank {} of {}", identity.step, identity.attempt, identity.rank,
                     identity.world);
}

Status check_identity(const FileIdentity& found, const FileIdentity& expected, const char* what,
                      const std::string& path) {
  if (found.step == expected.step && found.attempt == expected.attempt && found.rank == expected.rank &&
      found.world == expected.world)
    return {};
  return corrupt(
      fmt::format("the {} belongs to {}, but {} was expected here", what, describe(found), describe(expected)), path);
}

// Appends the blocks [first_block, last_block). Each is verified before the next is read.
Status append_verified(File& file, const FileRecord& record, std::uint64_t first_block, std::uint64_t last_block,
                       std::string& out) {
  for (std::uint64_t block = first_block; block < last_block; ++block) {
    const std::uint64_t offset = block * kBlockBytes;
    const std::uint64_t size = std::min(kBlockBytes, record.size_bytes - offset);
    const std::size_t before = out.size();
    out.resize(before + size);
    const std::span<std::byte> into = std::as_writable_bytes(std::span(out).subspan(before));
    SW_ASSIGN(const std::uint64_t got, retry_read([&] { return file.read_at(into, offset); }));
    if (got != size) return corrupt(fmt::format("the file ends inside the block at offset {}", offset), file.path());
    if (digest64(into) != record.block_digests[block])
      return corrupt(
          fmt::format(
              "the block at offset {}, which holds the header or the tree, is not what was written (checksum differs)",
              offset),
          file.path());
  }
  return {};
}

Result<std::string> load_tree(FileSystem& fs, const std::string& path, const FileRecord& record,
                              const TensorInfo& stored) {
  if (stored.size_bytes > kMaxTreeBytes)
    return fail(ErrorKind::kUnsupported,
                fmt::format("the stored tree has {} bytes; at most {} can be read", stored.size_bytes, kMaxTreeBytes),
                path);
  std::string text;
  if (stored.size_bytes == 0) return text;
  SW_ASSIGN(const std::unique_ptr<File> file, retry_read([&] { return fs.open(path, OpenMode::kRead, false); }));
  const std::uint64_t first = stored.offset / kBlockBytes;
  const std::uint64_t last = (stored.offset + stored.size_bytes + kBlockBytes - 1) / kBlockBytes;
  SW_TRY(append_verified(*file, record, first, last, text));
  text.erase(0, stored.offset - first * kBlockBytes);
  text.resize(stored.size_bytes);
  return text;
}

// Whose tree and metadata to read. They are in the first file of a rank and nowhere else.
std::uint32_t tree_rank(const Manifest& manifest, const std::optional<Viewer>& viewer) {
  return viewer && viewer->world == manifest.world ? viewer->rank : 0;
}

Status take_tree(FileSystem& fs, const std::string& path, const FileRecord& record, ParsedHeader& header,
                 VersionContents& contents) {
  const auto stored = std::ranges::find(header.tensors, kTreeTensorName, &TensorInfo::name);
  if (stored != header.tensors.end()) {
    SW_ASSIGN(contents.tree, load_tree(fs, path, record, *stored));
  } else {
    contents.tree = std::move(header.tree);
  }
  contents.metadata = std::move(header.metadata);
  return {};
}

// Collects files, tensors, tree and metadata of a version from the headers of all its files.
class HeaderReader {
 public:
  HeaderReader(FileSystem& fs, std::string directory, const std::optional<Viewer>& viewer,
               const OnProgress& on_progress, VersionContents& contents)
      : fs_(fs), directory_(std::move(directory)), viewer_(viewer), on_progress_(on_progress), contents_(contents) {}

  Status read() {
    const Manifest& manifest = contents_.manifest;
    std::uint64_t total_bytes = 0;
    for (const RecordReference& reference : manifest.records) {
      if (on_progress_) on_progress_();
      SW_ASSIGN(Record record, load_record(fs_, directory_, manifest, reference));
      const bool tree_wanted = record.identity.rank == tree_rank(manifest, viewer_);
      for (FileRecord& file : record.files) {
        total_bytes += file.size_bytes;
        SW_TRY(add_file(record.identity, std::move(file), tree_wanted));
      }
    }
    if (total_bytes != manifest.size_bytes)
      return corrupt(
          fmt::format("the records say {} bytes in all, the manifest says {}", total_bytes, manifest.size_bytes),
          directory_ + "/" + kManifestName);
    return join_boxes();
  }

 private:
  Status add_file(const FileIdentity& identity, FileRecord record, bool tree_wanted) {
    std::string path = directory_ + "/" + record.name;
    SW_ASSIGN(ParsedHeader header, load_header(fs_, path, record, identity));
    if (tree_wanted && record.name == contents_.manifest.files.data(identity.rank, 0))
      SW_TRY(take_tree(fs_, path, record, header, contents_));
    for (TensorInfo& tensor : header.tensors) {
      if (tensor.name != kTreeTensorName) add_tensor(identity, std::move(tensor));
    }
    contents_.files.push_back({record.name, identity.rank, record.size_bytes});
    contents_.data.push_back({std::move(path), record.size_bytes, std::move(record.block_digests)});
    return {};
  }

  void add_tensor(const FileIdentity& identity, TensorInfo tensor) {
    tensor.file = static_cast<std::uint32_t>(contents_.files.size());
    for (StoredBox& box : tensor.boxes) box.file = tensor.file;
    const bool local = tensor.boxes.empty() && identity.world > 1;  // what a single rank saved is for every reader
    const bool own = viewer_ && viewer_->world == identity.world && viewer_->rank == identity.rank;
    contents_.left_out |= local && viewer_ && viewer_->world != identity.world;
    if (local && viewer_ && !own) return;
    if (local && !viewer_) {
      tensor.name = local_name(identity.rank, tensor.name);
      if (!tensor.alias_of.empty()) tensor.alias_of = local_name(identity.rank, tensor.alias_of);
    }
    contents_.tensors.push_back(std::move(tensor));
  }

  // Each header has only the boxes of its own file: join those of the same tensor.
  Status join_boxes() {
    std::vector<TensorInfo>& tensors = contents_.tensors;
    std::ranges::sort(tensors, {},
                      [](const TensorInfo& tensor) { return std::pair(std::string_view(tensor.name), tensor.file); });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorInfo* const same = kept > 0 && tensors[kept - 1].name == tensors[i].name ? &tensors[kept - 1] : nullptr;
      if (same != nullptr && !same->boxes.empty() && !tensors[i].boxes.empty() && same->dtype == tensors[i].dtype &&
          same->shape == tensors[i].shape && same->alias_of == tensors[i].alias_of) {
        std::ranges::move(tensors[i].boxes, std::back_inserter(same->boxes));
        continue;
      }
      if (kept != i) tensors[kept] = std::move(tensors[i]);
      ++kept;
    }
    tensors.resize(kept);
    for (TensorInfo& tensor : tensors) {
      if (!tensor.boxes.empty() && !settle_boxes(tensor))
        return corrupt(fmt::format("tensor '{}' has more than 2^63 bytes", tensor.name), directory_);
    }
    return check_unique(tensors, contents_.files, directory_);
  }

  FileSystem& fs_;
  const std::string directory_;
  const std::optional<Viewer>& viewer_;
  const OnProgress& on_progress_;
  VersionContents& contents_;
};

Status load_by_index(FileSystem& fs, const std::string& directory, std::string_view index_text,
                     const std::optional<Viewer>& viewer, VersionContents& contents) {
  const Manifest& manifest = contents.manifest;
  const std::string path = fmt::format("{}/{}", directory, kIndexName);
  SW_ASSIGN(std::vector<IndexEntry> entries, parse_index(index_text, path));

  const std::uint32_t rank = tree_rank(manifest, viewer);
  SW_ASSIGN(const Record record, load_record(fs, directory, manifest, manifest.records[rank]));
  SW_ASSIGN(IndexView view, view_index(std::move(entries), manifest.world, viewer, path));
  contents.files = std::move(view.files);
  contents.tensors = std::move(view.tensors);
  contents.left_out = view.left_out;
  for (const FileInfoOnTier& file : contents.files) {
    if (!manifest.files.is_data(file.name, file.rank)) return misplaced(file.name, file.rank, path);
    contents.data.push_back({directory + "/" + file.name, file.size_bytes, {}, false});
  }

  for (const FileRecord& file : record.files) {
    if (file.name != manifest.files.data(rank, 0)) continue;
    const std::string first = directory + "/" + file.name;
    SW_ASSIGN(ParsedHeader header, load_header(fs, first, file, record.identity));
    SW_TRY(take_tree(fs, first, file, header, contents));
  }
  return {};
}

bool has_feature(const Manifest& manifest, std::string_view feature) {
  return std::ranges::find(manifest.required_features, feature) != manifest.required_features.end();
}

}  // namespace

Result<Manifest> read_commit(FileSystem& fs, const std::string& root, const VersionName& version) {
  SW_ASSIGN(Manifest manifest, read_manifest(fs, root, version));
  if (manifest.decision == Decision::kAbort)
    return fail(ErrorKind::kAborted, fmt::format("this version was given up by its writer: {}", manifest.reason),
                root + "/" + version_directory(version));
  return manifest;
}

Result<Record> load_record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
                           const RecordReference& reference) {
  if (const std::string own = manifest.files.directory(reference.rank); !own.empty()) {
    if (auto found = retry_read([&] { return check_own_directory(fs, directory + "/" + own); }); !found)
      return fail(missing_or_unreadable(fs, std::move(found).error()));
  }
  const std::string path = directory + "/" + reference.file;
  auto text = retry_read([&] { return read_whole(fs, path, kMaxRecordBytes); });
  if (!text) return fail(missing_or_unreadable(fs, std::move(text).error()));
  if (digest128(*text) != reference.digest)
    return corrupt("the record is not the one the manifest names (checksum differs)", path);
  SW_ASSIGN(Record record, parse_record(*text, path));
  SW_TRY(check_identity(record.identity, {manifest.step, manifest.attempt, reference.rank, manifest.world}, "record",
                        path));
  if (record.run != manifest.run) return corrupt("the record and the manifest were written by different runs", path);
  for (const FileRecord& file : record.files)
    if (!manifest.files.is_data(file.name, reference.rank)) return misplaced(file.name, reference.rank, path);
  return record;
}

Result<ParsedHeader> load_header(FileSystem& fs, const std::string& path, const FileRecord& record,
                                 const FileIdentity& identity) {
  auto opened = retry_read([&] { return fs.open(path, OpenMode::kRead, false); });
  if (!opened) return fail(missing_or_unreadable(fs, std::move(opened).error()));
  const std::unique_ptr<File> file = std::move(*opened);
  SW_ASSIGN(const FileStatus status, retry_read([&] { return file->status(); }));
  if (status.size_bytes != record.size_bytes)
    return corrupt(fmt::format("the file has {} bytes, its record says {}", status.size_bytes, record.size_bytes),
                   path);
  if (record.size_bytes < kLengthWordBytes)
    return corrupt(fmt::format("{} bytes are too few for a safetensors file", record.size_bytes), path);

  std::string bytes;
  SW_TRY(append_verified(*file, record, 0, 1, bytes));
  SW_ASSIGN(const std::uint64_t length,
            header_bytes(std::string_view(bytes).substr(0, kLengthWordBytes), record.size_bytes, path));
  const std::uint64_t blocks = (kLengthWordBytes + length + kBlockBytes - 1) / kBlockBytes;
  bytes.reserve(std::min(blocks * kBlockBytes, record.size_bytes));
  SW_TRY(append_verified(*file, record, 1, blocks, bytes));
  SW_ASSIGN(ParsedHeader header,
            parse_header(std::string_view(bytes).substr(kLengthWordBytes, length), record.size_bytes, path));
  if (!header.has_identity) return corrupt("the header does not say which step and rank it belongs to", path);
  SW_TRY(check_identity(header.identity, identity, "header", path));
  return header;
}

Result<VersionContents> load_version(FileSystem& fs, const std::string& root, const VersionName& version,
                                     const std::optional<Viewer>& viewer, const OnProgress& on_progress) {
  const std::string directory = root + "/" + version_directory(version);
  VersionContents contents;
  SW_ASSIGN(contents.manifest, read_commit(fs, root, version));
  const Manifest& manifest = contents.manifest;

  // With several ranks the index spares the reader the headers of files it does not want. One rank's header is read
  // anyway, for the tree.
  if (manifest.world > 1 || has_feature(manifest, kGlobalTensorsFeature)) {
    auto index_text = read_index(fs, directory, manifest);
    if (index_text) {
      SW_TRY(load_by_index(fs, directory, *index_text, viewer, contents));
      return contents;
    }
    contents.trouble = fmt::format("the index cannot be used, so the headers of all files were read: {}",
                                   index_text.error().to_string());
  }
  SW_TRY(HeaderReader(fs, directory, viewer, on_progress, contents).read());
  return contents;
}

Status load_records(FileSystem& fs, const std::string& directory, VersionContents& contents,
                    std::span<const std::uint32_t> files, const OnProgress& on_progress) {
  for (const std::uint32_t wanted : files) {
    if (contents.data[wanted].has_record) continue;
    if (on_progress) on_progress();
    const std::uint32_t rank = contents.files[wanted].rank;
    SW_ASSIGN(Record record, load_record(fs, directory, contents.manifest, contents.manifest.records[rank]));
    // A record covers all files of its rank, so the others need not load it again.
    for (FileRecord& of_file : record.files) {
      const auto file = std::ranges::lower_bound(
          contents.files, std::pair(rank, std::string_view(of_file.name)), {},
          [](const FileInfoOnTier& info) { return std::pair(info.rank, std::string_view(info.name)); });
      if (file == contents.files.end() || file->name != of_file.name) continue;
      DataFile& data = contents.data[static_cast<std::size_t>(file - contents.files.begin())];
      data.size_bytes = of_file.size_bytes;
      data.block_digests = std::move(of_file.block_digests);
      data.has_record = true;
    }
    if (!contents.data[wanted].has_record)
      return corrupt(fmt::format("the index names this file, but the record of rank {} does not", rank),
                     contents.data[wanted].path);
  }
  return {};
}

Error missing_or_unreadable(FileSystem& fs, Error error) {
  if (error.kind != ErrorKind::kNotFound) return error;
  const std::size_t slash = error.path.rfind('/');
  const auto entries = retry_read([&] { return fs.list(error.path.substr(0, slash)); });
  if (!entries && entries.error().kind != ErrorKind::kNotFound) return entries.error();
  const std::string name = error.path.substr(slash + 1);
  if (entries && std::ranges::find(*entries, name, &DirectoryEntry::name) != entries->end()) {
    error.kind = ErrorKind::kIo;
    error.retryable = true;
    error.message = "the file is listed in its directory, but cannot be opened";
  } else {
    error.kind = ErrorKind::kCorrupt;
    error.message = "a file of this committed version is missing";
  }
  return error;
}

Error damaged_or_removed(FileSystem& fs, const std::string& root, const VersionName& version, Error damage) {
  if (damage.kind != ErrorKind::kCorrupt && damage.kind != ErrorKind::kNotFound) return damage;
  const std::string directory = root + "/" + version_directory(version);
  const auto manifest = fs.status(directory + "/" + kManifestName);
  if (manifest || manifest.error().kind != ErrorKind::kNotFound) return damage;
  return {ErrorKind::kNotFound, fmt::format("the checkpoint of step {} has been removed in the meantime", version.step),
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
