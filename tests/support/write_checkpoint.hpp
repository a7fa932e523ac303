// CheckpointWriter: writes real committed versions for tests of readers. It uses layout and version with plain file
// writes, and no engine.
// Anything that goes wrong is an exception, which fails the test. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "device/device.hpp"
#include "layout/file_layout.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/tensor.hpp"
#include "support/bytes.hpp"
#include "support/file_bytes.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}
inline void must(Status status) {
  if (!status) throw std::runtime_error(status.error().to_string());
}

// A tensor that owns its bytes; pseudo-random ones, so that no two blocks are alike.
struct OwnedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  Bytes bytes;

  static OwnedTensor random(std::string name, DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed = 1) {
    std::uint64_t size = item_bytes(dtype);
    for (const std::int64_t extent : shape) size *= static_cast<std::uint64_t>(extent);
    Bytes bytes(size);
    fill_pattern(bytes, seed * 7919 + std::hash<std::string>{}(name));
    return {std::move(name), dtype, std::move(shape), std::move(bytes)};
  }
  [[nodiscard]] Tensor view() const { return {.name = name, .dtype = dtype, .shape = shape, .data = bytes.data()}; }
};

// The tensors must outlive the state.
inline State state_of(const std::vector<OwnedTensor>& tensors, std::string tree = "{}") {
  State state;
  for (const OwnedTensor& tensor : tensors) state.tensors.push_back(tensor.view());
  state.tree = std::move(tree);
  return state;
}

// Fills one file of a layout with the bytes of the state.
inline FileRecord write_part(const std::string& directory, const FileLayout& part, const State& state) {
  std::string bytes = part.header();
  bytes.resize(part.size_bytes());
  const std::unique_ptr<Device> host = make_host_device();
  for (const Extent& extent : part.extents()) {
    if (extent.tensor == kTreeSource) {
      bytes.replace(extent.offset, extent.size_bytes, state.tree);
      continue;
    }
    const Tensor& tensor = state.tensors[extent.tensor];
    const StridedMemory memory{static_cast<std::byte*>(const_cast<void*>(tensor.data)), item_bytes(tensor.dtype),
                               tensor.shape, tensor.strides};
    const CopyPiece piece{&memory, 0, extent.size_bytes, reinterpret_cast<std::byte*>(bytes.data()) + extent.offset};
    if (extent.size_bytes > 0) must(host->copy_to_host({&piece, 1}));
  }
  FileRecord record{.name = part.file_name(),
                    .size_bytes = part.size_bytes(),
                    .tensor_count = part.extents().size(),
                    .block_digests = {}};
  const auto all = std::as_bytes(std::span(bytes));
  for (std::uint64_t at = 0; at < all.size(); at += kBlockBytes)
    record.block_digests.push_back(digest64(all.subspan(at, std::min<std::uint64_t>(kBlockBytes, all.size() - at))));
  std::ofstream file(directory + "/" + part.file_name(), std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + part.file_name());
  return record;
}

class CheckpointWriter {
 public:
  // Claims an attempt that adopts everything that counts in `root`.
  explicit CheckpointWriter(std::string root) : root_(std::move(root)) {
    store_ = must(VersionStore::open(*fs_, clock_, root_, Log([](LogLevel, std::string_view) {})));
    std::vector<VersionName> adopted;
    for (const VersionInfo& version : must(store_->scan()).live_versions())
      adopted.push_back({version.step, version.attempt});
    attempt_ = must(store_->attempt().claim("test", std::move(adopted)));
  }

  // Claims an attempt that adopts just these.
  CheckpointWriter(std::string root, std::vector<VersionName> adopted, std::vector<SetAside> set_aside = {})
      : root_(std::move(root)) {
    store_ = must(VersionStore::open(*fs_, clock_, root_, Log([](LogLevel, std::string_view) {})));
    attempt_ = must(store_->attempt().claim("test", std::move(adopted), {}, std::move(set_aside)));
  }

  // Commits the state; the path of its directory.
  std::string write(std::uint64_t step, const State& state, std::uint64_t max_header_bytes = kMaxHeaderBytes) {
    must(check_state(state));
    const FileIdentity identity{.step = step, .attempt = attempt_.number, .rank = 0, .world = 1};
    const SnapshotLayout layout = must(plan_layout(state, identity, max_header_bytes));
    const std::string directory = must(store_->make_version(step));
    Record record{.run = attempt_.run, .identity = identity, .files = {}};
    for (const FileLayout& part : layout.parts) record.files.push_back(write_part(directory, part, state));

    const std::string index_text = serialize_index(index_entries(state, layout));
    const RecordReference vote = must(store_->write_record(record, index_text));
    const Manifest decided = must(store_->decide({.run = attempt_.run,
                                                  .step = step,
                                                  .attempt = attempt_.number,
                                                  .world = 1,
                                                  .decision = Decision::kCommit,
                                                  .records = {vote},
                                                  .index_digest = digest128(index_text),
                                                  .size_bytes = layout.size_bytes,
                                                  .tensor_count = state.tensors.size(),
                                                  .created_unix_ms = clock_.wall_unix_ms()}));
    if (decided.decision != Decision::kCommit) throw std::runtime_error("the version was aborted");
    return directory;
  }

  [[nodiscard]] VersionStore& store() { return *store_; }
  [[nodiscard]] const Attempt& attempt() const { return attempt_; }

 private:
  static std::vector<IndexEntry> index_entries(const State& state, const SnapshotLayout& layout) {
    std::vector<IndexEntry> entries;
    for (const FileLayout& part : layout.parts) {
      for (const Extent& extent : part.extents()) {
        if (extent.tensor == kTreeSource) continue;
        const Tensor& tensor = state.tensors[extent.tensor];
        IndexShard shard{std::vector<std::int64_t>(tensor.shape.size()), tensor.shape, part.file_name(), extent.offset,
                         extent.size_bytes};
        entries.push_back({tensor.name, tensor.dtype, tensor.shape, {}, {std::move(shard)}});
      }
    }
    for (const auto& [alias, stored] : layout.aliases) {
      const Tensor& tensor = state.tensors[alias];
      entries.push_back({tensor.name, tensor.dtype, tensor.shape, state.tensors[stored].name, {}});
    }
    return entries;
  }

  const std::string root_;
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  const SystemClock clock_;
  std::unique_ptr<VersionStore> store_;
  Attempt attempt_;
};

// Files as tests damage them.
inline void write_file_text(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}
inline void flip_bit(const std::string& path, std::uint64_t offset, unsigned bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ (1 << bit)));
  file.close();
  if (!file) throw std::runtime_error("cannot change " + path);
}

}  // namespace slackwater::test
