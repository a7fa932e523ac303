// Cutouts: parts of boxes as they lie in a file. A stored box is one piece of bytes, row after row; of it a target may want some rows, or
// some columns of every row. The bytes wanted, taken in the order they lie there, are the packed form of the part: so a byte has a place
// in the stored box and one in the part, and either is found from the other without a list of runs.
// Many cutouts share one memory: a plan may have a million. Constant after the last add(); then any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"

namespace slackwater {

class Cutouts {
 public:
  // The part [begin, begin + extent) of a box of `shape`, which has elements and lies inside. All three have one number a dimension.
  // Cutouts are numbered from 0.
  void add(std::span<const std::int64_t> shape, std::span<const std::int64_t> begin,
           std::span<const std::int64_t> extent, std::uint32_t item_bytes);
  [[nodiscard]] std::size_t size() const { return first_.size() - 1; }

  [[nodiscard]] std::uint64_t size_bytes(std::size_t cutout) const;  // of the part
  [[nodiscard]] std::uint64_t run_bytes(std::size_t cutout) const;   // that lie together, at least
  // How many bytes of the part lie before byte `at` of the box.
  [[nodiscard]] std::uint64_t bytes_before(std::size_t cutout, std::uint64_t at) const;
  // Where byte `packed` of the part lies in the box.
  [[nodiscard]] std::uint64_t place_of(std::size_t cutout, std::uint64_t packed) const;
  // The part as strided memory of single bytes, if the box began at `box`. Where that is all in memory or not is the caller's business.
  [[nodiscard]] StridedMemory view(std::size_t cutout, std::uintptr_t box) const;

 private:
  // Outermost first; the last one counts single bytes. Neighbours that lie together are one.
  struct Dimension {
    std::uint64_t stride_bytes = 1;  // in the box
    std::uint64_t begin = 0;
    std::uint64_t extent = 0;
    std::uint64_t inner_bytes = 1;  // of the part, for each step
  };
  [[nodiscard]] std::span<const Dimension> dimensions(std::size_t cutout) const {
    return std::span(dimensions_).subspan(first_[cutout], first_[cutout + 1] - first_[cutout]);
  }

  std::vector<Dimension> dimensions_;     // of all cutouts
  std::vector<std::size_t> first_ = {0};  // of each, and the end
};

}  // namespace slackwater
