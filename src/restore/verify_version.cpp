#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "restore/block_reader.hpp"
#include "restore/checkpoint_reader.hpp"
#include "restore/extent_map.hpp"
#include "restore/index_view.hpp"
#include "restore/version_contents.hpp"
#include "tensor/box.hpp"
#include "version/fields.hpp"
#include "version/index.hpp"

namespace slackwater {
namespace {

constexpr const char* kHeaderItem = "(header)";
constexpr std::chrono::milliseconds kProgressInterval{100};

// One data file, as far as it is known before its blocks are read.
struct CheckedFile {
  std::string name;
  DataFile data;
  FileIdentity identity;
  std::uint64_t readable_bytes = 0;  // in whole blocks; the last one may be short if the file has its full size
  bool size_fits = true;             // its size on disk is the one in its record
  std::uint64_t header_end = 1;      // blocks that begin before it hold the header
};

// A stored tensor, or a box of it, as the index has it.
struct IndexedTensor {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  Box box;
};

struct BadRange {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::string what;
};

class Verifier {
 public:
  Verifier(const ReaderDependencies& parts, const std::string& root, const VersionName& version,
           const ReadOptions& options, const VerifyProgress& progress)
      : fs_(*parts.fs),
        pool_(parts.pool),
        root_(root),
        version_(version),
        directory_(root + "/" + version_directory(version)),
        options_(options),
        progress_(progress) {}

  Result<VerifyReport> run();

 private:
  void check_index(const Manifest& manifest);
  void check_record(const Manifest& manifest, const RecordReference& reference);
  void check_file(const FileIdentity& identity, FileRecord record);
  [[nodiscard]] Result<std::vector<BadRange>> check_blocks();
  void check_headers(const std::vector<BadRange>& bad);
  void compare_with_index(const std::string& file, const std::vector<TensorInfo>& tensors);
  void name_damage(std::vector<BadRange> bad);

  [[nodiscard]] std::vector<std::string> indexed_names(const std::string& file, std::uint64_t from_offset) const;
  void add(std::string file, std::uint64_t offset, std::uint64_t size_bytes, std::vector<std::string> tensors,
           std::string what);

  FileSystem& fs_;
  Pool* const pool_;
  const std::string& root_;
  const VersionName version_;
  const std::string directory_;
  const ReadOptions& options_;
  const VerifyProgress& progress_;

  VerifyReport report_;
  // The stored tensors of each file by the index, sorted by offset; empty if the index is damaged.
  std::map<std::string, std::vector<IndexedTensor>, std::less<>> index_;
  std::vector<CheckedFile> files_;
  std::vector<std::string> item_names_;
  std::vector<FileExtent> items_;  // where each tensor lies, by the headers; by the index if a header is damaged
};

// The error without its path, which a Damage names already.
std::string reason(const Error& error) {
  Error bare = error;
  bare.path.clear();
  return bare.to_string();
}

// Gives tensors the names they have in the index. With several ranks, each may have a tensor of the same name, so those
// get the rank in front. Boxes of a global tensor go by the tensor's name.
void call_as_indexed(std::vector<TensorInfo>& tensors, const FileIdentity& identity) {
  for (TensorInfo& tensor : tensors) {
    if (tensor.boxes.empty() && identity.world > 1) tensor.name = local_name(identity.rank, tensor.name);
    if (tensor.boxes.empty()) continue;
    tensor.offset = tensor.boxes.front().file_offset;
    tensor.size_bytes = tensor.boxes.front().size_bytes;
  }
}

bool agree(const TensorInfo& stored, const IndexedTensor& indexed) {
  if (stored.size_bytes != indexed.size_bytes) return false;
  if (stored.boxes.empty()) return stored.shape == indexed.box.shape;
  return stored.boxes.front().offset == indexed.box.offset && stored.boxes.front().shape == indexed.box.shape;
}

void Verifier::add(std::string file, std::uint64_t offset, std::uint64_t size_bytes, std::vector<std::string> tensors,
                   std::string what) {
  report_.damages.push_back({std::move(file), offset, size_bytes, std::move(tensors), std::move(what)});
}

Result<VerifyReport> Verifier::run() {
  const auto started = std::chrono::steady_clock::now();
  auto manifest = read_commit(fs_, root_, version_);
  if (!manifest) {
    // For any other kind no commit was decided here, or this release cannot read it. That is not damage.
    const bool damaged = manifest.error().kind == ErrorKind::kCorrupt || manifest.error().kind == ErrorKind::kIo;
    if (!damaged) return fail(std::move(manifest).error());
    add(kManifestName, 0, 0, {}, reason(manifest.error()));
    return std::move(report_);
  }

  check_index(*manifest);
  for (const RecordReference& reference : manifest->records) check_record(*manifest, reference);
  SW_ASSIGN(std::vector<BadRange> bad, check_blocks());
  check_headers(bad);
  name_damage(std::move(bad));
  if (!report_.damages.empty()) {
    Error gone = damaged_or_removed(fs_, root_, version_, {});
    if (gone.kind == ErrorKind::kNotFound) return fail(std::move(gone));
  }
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return std::move(report_);
}

void Verifier::check_index(const Manifest& manifest) {
  const auto text = read_index(fs_, directory_, manifest);
  if (!text) return add(kIndexName, 0, 0, {}, reason(text.error()));
  auto entries = parse_index(*text, directory_ + "/" + kIndexName);
  if (!entries) return add(kIndexName, 0, text->size(), {}, reason(entries.error()));
  for (IndexEntry& entry : *entries) {
    std::vector<BoxView> boxes;
    for (const IndexShard& shard : entry.shards) boxes.push_back({shard.box_offset, shard.box_shape});
    if (entry.alias_of.empty() && check_tiling(entry.shape, boxes))
      add(kIndexName, 0, 0, {entry.name}, "the boxes of this tensor do not cover it exactly");
    for (IndexShard& shard : entry.shards)
      index_[shard.file].push_back(
          {entry.name, shard.offset, shard.size_bytes, {std::move(shard.box_offset), std::move(shard.box_shape)}});
  }
  for (auto& [file, tensors] : index_) {
    std::ranges::sort(tensors, {}, &IndexedTensor::offset);
    const auto rank = rank_of_file(file);
    if (!rank || *rank >= manifest.world || !manifest.files.is_data(file, *rank))
      add(kIndexName, 0, 0, {tensors.front().name}, fmt::format("'{}' is not a data file of this version", file));
  }
}

void Verifier::check_record(const Manifest& manifest, const RecordReference& reference) {
  auto record = load_record(fs_, directory_, manifest, reference);
  if (!record) {
    std::vector<std::string> tensors;
    for (std::uint32_t part = 0;; ++part) {
      std::vector<std::string> more = indexed_names(manifest.files.data(reference.rank, part), 0);
      if (more.empty()) break;
      tensors.insert(tensors.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    }
    return add(reference.file, 0, 0, std::move(tensors),
               fmt::format("{}; without the record the files of rank {} cannot be checked", reason(record.error()),
                           reference.rank));
  }
  for (FileRecord& file : record->files) check_file(record->identity, std::move(file));
}

void Verifier::check_file(const FileIdentity& identity, FileRecord record) {
  const std::string path = directory_ + "/" + record.name;
  const auto opened = fs_.open(path, OpenMode::kRead, false);
  const auto status = opened ? (*opened)->status() : Result<FileStatus>(fail(opened.error()));
  if (!status)
    return add(record.name, 0, record.size_bytes, indexed_names(record.name, 0),
               status.error().kind == ErrorKind::kNotFound ? "the file is missing" : reason(status.error()));

  std::uint64_t readable_bytes = record.size_bytes;
  if (status->size_bytes < record.size_bytes) {
    readable_bytes = round_down(status->size_bytes, kBlockBytes);
    add(record.name, readable_bytes, record.size_bytes - readable_bytes, indexed_names(record.name, readable_bytes),
        fmt::format("the file is truncated: it has {} bytes of {}", status->size_bytes, record.size_bytes));
  } else if (status->size_bytes > record.size_bytes) {
    add(record.name, record.size_bytes, status->size_bytes - record.size_bytes, {},
        fmt::format("the file has {} bytes, its record says {}", status->size_bytes, record.size_bytes));
  }
  files_.push_back({.name = record.name,
                    .data = {path, record.size_bytes, std::move(record.block_digests)},
                    .identity = identity,
                    .readable_bytes = readable_bytes,
                    .size_fits = status->size_bytes == record.size_bytes});
}

Result<std::vector<BadRange>> Verifier::check_blocks() {
  std::vector<ReadFile> read_files;
  std::vector<FileExtent> extents;
  std::uint64_t total = 0;
  for (const CheckedFile& file : files_) {
    extents.push_back({static_cast<std::uint32_t>(read_files.size()), 0, 0, file.readable_bytes});
    read_files.push_back({file.data.path, file.data.size_bytes, file.data.block_digests});
    total += file.readable_bytes;
  }
  std::unique_ptr<Pool> own_pool;
  if (pool_ == nullptr) {
    SW_ASSIGN(own_pool, make_read_pool(options_, total));
  }
  BlockReader reader(fs_, pool_ != nullptr ? *pool_ : *own_pool, block_reader_options(options_), Log(options_.log));
  const std::vector<ReadUnit> units = ExtentMap(std::move(extents)).plan_units(read_files, reader.unit_bytes());

  std::vector<BadRange> bad;
  const auto collect = [&](const BadBlock& block) {
    std::string what = reason(block.error);
    const bool joins = !bad.empty() && bad.back().file == block.file && bad.back().what == what &&
                       bad.back().offset + bad.back().size_bytes == block.offset;
    if (joins) {
      bad.back().size_bytes += block.size_bytes;
    } else {
      bad.push_back({block.file, block.offset, block.size_bytes, std::move(what)});
    }
    return true;
  };
  auto last_report = std::chrono::steady_clock::now() - kProgressInterval;
  const auto report_progress = [&](std::uint64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || (now - last_report < kProgressInterval && done != total)) return;
    last_report = now;
    progress_(done, total);
  };
  const auto nothing_to_place = [](const ReadUnit&, std::span<const std::byte>) -> Status { return {}; };
  SW_TRY(reader.run(read_files, units, nothing_to_place, collect, report_progress));
  report_.bytes_read = total;
  std::ranges::sort(bad, {}, [](const BadRange& range) { return std::pair(range.file, range.offset); });
  return bad;
}

// Headers come after the blocks, so that a damaged block is reported only once.
void Verifier::check_headers(const std::vector<BadRange>& bad) {
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    CheckedFile& file = files_[i];
    const auto take = [&](const std::string& name, std::uint64_t offset, std::uint64_t size_bytes) {
      items_.push_back({i, static_cast<std::uint32_t>(item_names_.size()), offset, size_bytes});
      item_names_.push_back(name);
    };
    const FileRecord record{file.name, file.data.size_bytes, 0, file.data.block_digests};
    if (auto header = load_header(fs_, file.data.path, record, file.identity)) {
      file.header_end = header->data_offset;
      call_as_indexed(header->tensors, file.identity);
      for (const TensorInfo& tensor : header->tensors) take(tensor.name, tensor.offset, tensor.size_bytes);
      compare_with_index(file.name, header->tensors);
      continue;
    } else if (file.size_fits && std::ranges::find(bad, i, &BadRange::file) == bad.end()) {
      add(file.name, 0, 0, {kHeaderItem}, reason(header.error()));
    }
    const auto indexed = index_.find(file.name);
    if (indexed == index_.end()) continue;
    file.header_end = indexed->second.front().offset;
    for (const IndexedTensor& tensor : indexed->second) take(tensor.name, tensor.offset, tensor.size_bytes);
  }
}

// The index is derived from the headers. One that contradicts them would mislead a reader that trusts it.
void Verifier::compare_with_index(const std::string& file, const std::vector<TensorInfo>& tensors) {
  const auto indexed = index_.find(file);
  if (indexed == index_.end()) return;
  std::map<std::pair<std::string_view, std::uint64_t>, const TensorInfo*> by_place;
  for (const TensorInfo& tensor : tensors)
    by_place.emplace(std::pair(std::string_view(tensor.name), tensor.offset), &tensor);
  for (const IndexedTensor& entry : indexed->second) {
    const auto found = by_place.find({entry.name, entry.offset});
    if (found != by_place.end() && agree(*found->second, entry)) continue;
    add(kIndexName, 0, 0, {entry.name},
        fmt::format("the index and the header of {} do not agree about this tensor", file));
  }
}

void Verifier::name_damage(std::vector<BadRange> bad) {
  const ExtentMap items(std::move(items_));
  for (BadRange& range : bad) {
    const CheckedFile& file = files_[range.file];
    std::vector<std::string> names;
    if (range.offset < file.header_end) names.emplace_back(kHeaderItem);
    for (const FileExtent& extent : items.overlapping(range.file, range.offset, range.size_bytes))
      names.push_back(item_names_[extent.item]);
    add(file.name, range.offset, range.size_bytes, std::move(names), std::move(range.what));
  }
}

std::vector<std::string> Verifier::indexed_names(const std::string& file, std::uint64_t from_offset) const {
  std::vector<std::string> names;
  const auto indexed = index_.find(file);
  if (indexed == index_.end()) return names;
  for (const IndexedTensor& tensor : indexed->second)
    if (tensor.offset + tensor.size_bytes > from_offset) names.push_back(tensor.name);
  return names;
}

}  // namespace

Result<VerifyReport> verify_version(const ReaderDependencies& parts, const std::string& root,
                                    const VersionName& version, const ReadOptions& options,
                                    const VerifyProgress& progress) {
  return Verifier(parts, root, version, options, progress).run();
}

}  // namespace slackwater
