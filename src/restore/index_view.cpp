#include "restore/index_view.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "tensor/shape.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

// Tied tensors get copies of the boxes. Without a limit, a short index could make us allocate gigabytes.
constexpr std::size_t kMaxTiedBoxes = 4'000'000;

class IndexViewer {
 public:
  IndexViewer(std::vector<IndexEntry> entries, std::uint32_t world, const std::optional<Viewer>& viewer,
              const std::string& path)
      : entries_(std::move(entries)), world_(world), viewer_(viewer), path_(path) {}

  Result<IndexView> view() {
    SW_TRY(number_files());
    // Tied tensors first: they copy the boxes that add_stored() then moves away.
    for (const IndexEntry& entry : entries_)
      if (!entry.alias_of.empty()) SW_TRY(add_tied(entry));
    for (IndexEntry& entry : entries_)
      if (entry.alias_of.empty()) SW_TRY(add_stored(entry));
    std::ranges::sort(view_.tensors, {}, &TensorInfo::name);
    SW_TRY(check_unique(view_.tensors, view_.files, path_));
    return std::move(view_);
  }

 private:
  std::unexpected<Error> wrong(std::string_view what) const {
    return corrupt(fmt::format("the index is wrong: {}", what), path_);
  }

  Status number_files() {
    std::unordered_map<std::string_view, std::uint64_t> ends;
    for (const IndexEntry& entry : entries_) {
      for (const IndexShard& shard : entry.shards) {
        std::uint64_t& end = ends[shard.file];
        end = std::max(end, shard.offset + shard.size_bytes);
      }
    }
    for (const auto& [name, end] : ends) {
      const auto rank = rank_of_file(name);
      if (!rank || *rank >= world_ || name == record_file(*rank))
        return wrong(fmt::format("'{}' is not a data file of a version of {} ranks", name, world_));
      view_.files.push_back({std::string(name), *rank, end});
    }
    std::ranges::sort(view_.files, {}, [](const FileInfoOnTier& file) { return std::pair(file.rank, file.name); });
    for (std::uint32_t i = 0; i < view_.files.size(); ++i) numbers_.emplace(view_.files[i].name, i);
    return {};
  }

  // The rank of a rank-local tensor; nullopt for others, and if only one rank saved.
  std::optional<std::uint32_t> rank_in(std::string_view name) const {
    return world_ > 1 ? rank_of_local_name(name) : std::nullopt;
  }

  // The viewer's name for the tensor of this name; nullopt if it does not see it.
  std::optional<std::string> name_for_viewer(const std::string& name) {
    if (!viewer_) return name;
    const auto local = rank_in(name);
    if (!local) return name;
    view_.left_out |= viewer_->world != world_;
    if (viewer_->world != world_ || viewer_->rank != *local) return std::nullopt;
    return name.substr(name.find('/') + 1);
  }

  Status add_tied(const IndexEntry& entry) {
    if (by_name_.empty()) {
      for (std::uint32_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].name, i);
    }
    std::optional<std::string> name = name_for_viewer(entry.name);
    if (!name) return {};
    const IndexEntry& stored = entries_[by_name_.at(entry.alias_of)];  // parse_index() has checked that it exists
    if (stored.dtype != entry.dtype || stored.shape != entry.shape)
      return wrong(
          fmt::format("tensor '{}' is tied to '{}', which has another shape or dtype", entry.name, stored.name));
    tied_boxes_ += stored.shards.size();
    if (tied_boxes_ > kMaxTiedBoxes)
      return wrong(fmt::format("its tied tensors have more than {} boxes in all", kMaxTiedBoxes));
    SW_TRY(add(std::move(*name), stored, stored.shards));
    view_.tensors.back().alias_of = name_for_viewer(entry.alias_of).value_or(entry.alias_of);
    return {};
  }

  Status add_stored(IndexEntry& entry) {
    if (const auto local = rank_in(entry.name)) {
      for (const IndexShard& shard : entry.shards) {
        if (rank_of_file(shard.file) != local)
          return wrong(fmt::format("it places tensor '{}' of rank {} in '{}'", entry.name, *local, shard.file));
      }
    }
    std::optional<std::string> name = name_for_viewer(entry.name);
    if (!name) return {};
    return add(std::move(*name), entry, std::move(entry.shards));
  }

  Status add(std::string name, const IndexEntry& entry, std::vector<IndexShard> shards) {
    TensorInfo& tensor = view_.tensors.emplace_back();
    tensor.name = std::move(name);
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.boxes.reserve(shards.size());
    for (IndexShard& shard : shards) {
      tensor.boxes.push_back({.offset = std::move(shard.box_offset),
                              .shape = std::move(shard.box_shape),
                              .file = numbers_.at(shard.file),
                              .file_offset = shard.offset,
                              .size_bytes = shard.size_bytes});
    }
    if (!settle_boxes(tensor)) return wrong(fmt::format("tensor '{}' has more than 2^63 bytes", tensor.name));
    if (tensor.boxes.empty() && shards.empty() && tensor.size_bytes > 0)
      return wrong(fmt::format("tensor '{}' is stored nowhere", tensor.name));
    return {};
  }

  std::vector<IndexEntry> entries_;
  const std::uint32_t world_;
  const std::optional<Viewer>& viewer_;
  const std::string& path_;
  std::unordered_map<std::string, std::uint32_t> numbers_;       // of files
  std::unordered_map<std::string_view, std::uint32_t> by_name_;  // index of entries; filled when one of them is tied
  std::size_t tied_boxes_ = 0;
  IndexView view_;
};

}  // namespace

Result<std::string> read_index(FileSystem& fs, const std::string& directory, const Manifest& manifest) {
  const std::string path = fmt::format("{}/{}", directory, kIndexName);
  SW_ASSIGN(std::string text, retry_read([&] { return read_whole(fs, path, kMaxIndexBytes); }));
  if (digest128(text) != manifest.index_digest)
    return corrupt("the index is not the one the manifest names (checksum differs)", path);
  return text;
}

Result<IndexView> view_index(std::vector<IndexEntry> entries, std::uint32_t world, const std::optional<Viewer>& viewer,
                             const std::string& path) {
  return IndexViewer(std::move(entries), world, viewer, path).view();
}

bool settle_boxes(TensorInfo& tensor) {
  const auto size_bytes = packed_bytes(tensor.dtype, tensor.shape);
  if (!size_bytes) return false;
  tensor.size_bytes = *size_bytes;
  if (tensor.boxes.size() != 1 || tensor.boxes[0].shape != tensor.shape) return true;
  tensor.file = tensor.boxes[0].file;
  tensor.offset = tensor.boxes[0].file_offset;
  tensor.boxes.clear();
  return true;
}

Status check_unique(const std::vector<TensorInfo>& tensors, const std::vector<FileInfoOnTier>& files,
                    const std::string& path) {
  const auto twice = std::ranges::adjacent_find(tensors, {}, &TensorInfo::name);
  if (twice == tensors.end()) return {};
  const auto where = [&](const TensorInfo& tensor) {
    if (files.empty()) return std::string("no file");
    return files[tensor.boxes.empty() ? tensor.file : tensor.boxes.front().file].name;
  };
  return corrupt(
      fmt::format("tensor '{}' is stored in {} and again in {}", twice->name, where(*twice), where(*std::next(twice))),
      path);
}

}  // namespace slackwater
