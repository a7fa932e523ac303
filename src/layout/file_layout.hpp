// Layout: decides where every byte of a snapshot goes before any byte moves. A rank's snapshot is one or more files
// (parts). Each is one safetensors file: 8 bytes of header length, a JSON header padded with spaces so that the data
// starts at a multiple of 4096, then the tensors without gaps, larger element types first.
// Pure functions and constant values; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
inline constexpr std::uint64_t kMaxInlineTreeBytes = 1u << 20;
inline constexpr const char* kTreeTensorName = "__slackwater_tree__";

struct FileIdentity {
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
};

inline constexpr std::uint32_t kTreeSource = 0xffffffff;  // Extent::tensor if the tree is stored as a U8 tensor

// A stored tensor in a file.
struct Extent {
  std::uint32_t tensor = 0;  // index into State::tensors, or kTreeSource
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;
};

// The part of a chunk that one extent fills.
struct ChunkPiece {
  std::uint32_t tensor = 0;        // as in Extent
  std::uint64_t tensor_begin = 0;  // byte within the packed tensor
  std::uint64_t chunk_offset = 0;  // byte within the chunk
  std::uint64_t size_bytes = 0;
};

class FileLayout {
 public:
  FileLayout(std::string file_name, std::string header, std::vector<Extent> extents);

  [[nodiscard]] const std::string& file_name() const { return file_name_; }   // "rank-00000.safetensors"
  [[nodiscard]] const std::string& header() const { return header_; }         // length word, JSON, padding
  [[nodiscard]] std::span<const Extent> extents() const { return extents_; }  // by offset; empty tensors included
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }      // exact
  [[nodiscard]] std::uint64_t chunk_count(std::uint64_t slab_bytes) const;
  // Bytes of chunk `index` that belong to the file: slab_bytes, or less in the last chunk.
  [[nodiscard]] std::uint64_t chunk_bytes(std::uint64_t index, std::uint64_t slab_bytes) const;
  // Appends the pieces of chunk `index`. Before them come the header bytes from index * slab_bytes on, if there are
  // any.
  void chunk_pieces(std::uint64_t index, std::uint64_t slab_bytes, std::vector<ChunkPiece>& pieces) const;

 private:
  std::string file_name_;
  std::string header_;
  std::vector<Extent> extents_;
  std::uint64_t size_bytes_;
};

struct SnapshotLayout {
  std::vector<FileLayout> parts;      // at least one
  std::vector<std::uint32_t> stored;  // indices into State::tensors, without tied tensors and empty boxes
  std::vector<std::pair<std::uint32_t, std::uint32_t>> aliases;  // (alias, stored under)
  std::uint64_t size_bytes = 0;                                  // of all parts
};

// Finds misuse that the caller must hear of at once: empty, duplicate or reserved names, negative dimensions, strides
// that do not match the shape, null data, size overflow, boxes that do not lie in their global tensor or disagree about
// it. Cheap: well below 1 µs per tensor.
// `known`: a state with this State::structure has passed before. Only what can differ is checked then: addresses,
// metadata, metrics.
[[nodiscard]] Status check_state(const State& state, bool known = false);

// Stores each tensor once. Tied tensors (tied_table.hpp) become aliases; a global tensor is an alias only if all of its
// boxes are. Boxes without elements are not stored. check_state() must have passed. `directory` is the subdirectory of
// the version that the files go to, and part of their names; it may be empty.
[[nodiscard]] Result<SnapshotLayout> plan_layout(const State& state, const FileIdentity& identity,
                                                 std::uint64_t max_header_bytes = kMaxHeaderBytes,
                                                 std::string_view directory = {});

}  // namespace slackwater
