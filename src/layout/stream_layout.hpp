// Layout: where every byte of a snapshot goes, before one has moved. Pure: no I/O, no threads; results are constant.
// A rank's snapshot is one or more streams (parts), each exactly one safetensors file: 8 bytes header length, JSON
// header padded with spaces so that data starts at a multiple of 4096, then the tensors without holes, larger items
// first.
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

struct StreamIdentity {
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
};

inline constexpr std::uint32_t kTreeSource = 0xffffffff;  // Extent::tensor of the tree stored as U8 tensor

// A stored tensor in a stream.
struct Extent {
  std::uint32_t tensor = 0;  // index into State::tensors, or kTreeSource
  std::uint64_t offset = 0;  // from the start of the stream
  std::uint64_t size_bytes = 0;
};

// A part of a slab that one extent fills.
struct WindowPiece {
  std::uint32_t tensor = 0;         // as in Extent
  std::uint64_t tensor_begin = 0;   // byte within the packed tensor
  std::uint64_t window_offset = 0;  // byte within the window
  std::uint64_t size_bytes = 0;
};

class StreamLayout {
 public:
  StreamLayout(std::string file_name, std::string header, std::vector<Extent> extents);

  [[nodiscard]] const std::string& file_name() const { return file_name_; }   // "rank-00000.safetensors"
  [[nodiscard]] const std::string& header() const { return header_; }         // length word, JSON, padding
  [[nodiscard]] std::span<const Extent> extents() const { return extents_; }  // by offset; empty tensors included
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }      // exact
  [[nodiscard]] std::uint64_t window_count(std::uint64_t slab_bytes) const;
  // Bytes of window `index` that belong to the file (less than slab_bytes only in the last).
  [[nodiscard]] std::uint64_t window_bytes(std::uint64_t index, std::uint64_t slab_bytes) const;
  // What fills window `index`: header bytes [index*slab, ...) as far as they reach, then these pieces. Appends to
  // `pieces`.
  void window_pieces(std::uint64_t index, std::uint64_t slab_bytes, std::vector<WindowPiece>& pieces) const;

 private:
  std::string file_name_;
  std::string header_;
  std::vector<Extent> extents_;
  std::uint64_t size_bytes_;
};

struct SnapshotLayout {
  std::vector<StreamLayout> parts;  // at least one
  std::vector<std::uint32_t>
      stored;  // indices of State::tensors that are stored: not tied to an earlier one, no empty box
  std::vector<std::pair<std::uint32_t, std::uint32_t>> aliases;  // (alias, stored under)
  std::uint64_t size_bytes = 0;                                  // of all parts
};

// Misuse the caller must hear at once: empty, duplicate or reserved names, negative dimensions, strides of another rank
// than the shape, null data with bytes, size overflow, boxes that do not lie in their global tensor or differ about it.
// Cheap: well below 1 µs a tensor.
[[nodiscard]] Status check_state(const State& state);

// Tied = same pointer, shape, strides, dtype, device and more than 0 bytes; boxes of global tensors: all of them, box by box.
// Boxes without elements are not stored. Needs check_state() to have passed. `directory`: a subdirectory of the version's,
// part of the names of the files; empty: none.
[[nodiscard]] Result<SnapshotLayout> plan_layout(const State& state, const StreamIdentity& identity,
                                                 std::uint64_t max_header_bytes = kMaxHeaderBytes,
                                                 std::string_view directory = {});

}  // namespace slackwater
