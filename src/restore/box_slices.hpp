// BoxSlices: parts of boxes as they lie in a file. A stored box is one run of bytes, row after row. A target may want
// some of its rows, or some columns of every row. The wanted bytes, in file order, are the packed form of that part. So
// each byte has a place in the stored box and a place in the part, and either can be computed from the other without a
// list of runs. A plan may have a million slices, so they share one array.
// Thread rule: constant after the last add(); then any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"

namespace slackwater {

class BoxSlices {
 public:
  // The part [begin, begin + extent) of a box of `shape`. It must lie inside and have elements. All three arguments
  // have one number per dimension. Slices are numbered from 0.
  void add(std::span<const std::int64_t> shape, std::span<const std::int64_t> begin,
           std::span<const std::int64_t> extent, std::uint32_t item_bytes);
  [[nodiscard]] std::size_t size() const { return first_.size() - 1; }

  [[nodiscard]] std::uint64_t size_bytes(std::size_t slice) const;  // of the part
  [[nodiscard]] std::uint64_t run_bytes(std::size_t slice) const;   // guaranteed to lie together
  // How many bytes of the part lie before byte `at` of the box.
  [[nodiscard]] std::uint64_t bytes_before(std::size_t slice, std::uint64_t at) const;
  // Where byte `packed` of the part lies in the box.
  [[nodiscard]] std::uint64_t place_of(std::size_t slice, std::uint64_t packed) const;
  // The part as strided memory of single bytes, if the box began at address `box`. The caller must not touch what is
  // not in memory.
  [[nodiscard]] StridedMemory view(std::size_t slice, std::uintptr_t box) const;

 private:
  // Outermost first; the last one counts single bytes. Adjacent dimensions that are contiguous are merged.
  struct Dimension {
    std::uint64_t stride_bytes = 1;  // in the box
    std::uint64_t begin = 0;
    std::uint64_t extent = 0;
    std::uint64_t inner_bytes = 1;  // of the part, for each step
  };
  [[nodiscard]] std::span<const Dimension> dimensions(std::size_t slice) const {
    return std::span(dimensions_).subspan(first_[slice], first_[slice + 1] - first_[slice]);
  }

  std::vector<Dimension> dimensions_;     // of all slices
  std::vector<std::size_t> first_ = {0};  // of each, and the end
};

}  // namespace slackwater
