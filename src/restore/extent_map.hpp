// ExtentMap: which items lie in a byte range of a file, and which reads fetch all of them. overlapping() needs extents
// that are disjoint or equal (tied tensors, several targets for one stored tensor).
// Thread rule: constant after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "restore/block_reader.hpp"

namespace slackwater {

struct FileExtent {
  std::uint32_t file = 0;
  std::uint32_t item = 0;  // the caller's number for it
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

class ExtentMap {
 public:
  ExtentMap() = default;
  // In any order; empty extents are dropped.
  explicit ExtentMap(std::vector<FileExtent> extents);

  [[nodiscard]] std::span<const FileExtent> overlapping(std::uint32_t file, std::uint64_t offset,
                                                        std::uint64_t size_bytes) const;
  [[nodiscard]] std::span<const FileExtent> extents() const { return extents_; }  // by file, then offset

  // The blocks that hold a wanted byte, each once. Neighbours are merged into units of at most unit_bytes.
  [[nodiscard]] std::vector<ReadUnit> plan_units(std::span<const ReadFile> files, std::uint64_t unit_bytes) const;

 private:
  std::vector<FileExtent> extents_;
};

}  // namespace slackwater
