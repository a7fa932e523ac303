// ReadPlan: which blocks to read for a set of targets, and where the bytes of each block go. A target takes a whole
// tensor or a box of it, from wherever its parts are stored. Before a plan exists, every target has been checked, and
// every element of it has exactly one source.
// Thread rule: constant after make(); pieces() may be called from several threads.
// Lifetime: the memory behind the targets outlives the reading. The plan keeps no pointer to the Target objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "restore/box_slices.hpp"
#include "restore/extent_map.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

class ReadPlan {
 public:
  // `tensors`: sorted by name. kMismatch: no such tensor, or another dtype or shape. kInvalidArgument: a target that
  // cannot take bytes. Both name the targets. kCorrupt: the boxes of a tensor overlap or do not cover what is wanted.
  [[nodiscard]] static Result<ReadPlan> make(std::span<const TensorInfo> tensors, std::span<const Target> targets);

  // The boxes that hold wanted bytes, by file, then offset. A box that several targets want is there several times.
  [[nodiscard]] std::span<const FileExtent> stored() const { return stored_.extents(); }
  [[nodiscard]] const std::string& name_of(const FileExtent& stored) const { return names_[target_[stored.item]]; }
  // The CUDA devices that have targets, in order, each once.
  [[nodiscard]] std::vector<int> devices() const;

  // Whole blocks, each once, only those that hold a wanted byte.
  [[nodiscard]] std::vector<ReadUnit> units(std::span<const ReadFile> files, std::uint64_t unit_bytes) const;

  // What the verified bytes of `unit` fill.
  struct Pieces {
    std::map<int, std::vector<CopyPiece>> on;           // by device; kHostDevice comes first
    std::vector<std::vector<std::byte>> gathered = {};  // bytes of many short runs; pieces point to them
  };
  [[nodiscard]] Pieces pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const;
  // The names of the targets that have bytes there, each once.
  [[nodiscard]] std::vector<std::string> names(std::uint32_t file, std::uint64_t offset,
                                               std::uint64_t size_bytes) const;

 private:
  class Maker;

  std::vector<int> device_;         // by target
  std::vector<std::string> names_;  // by target

  // By slice: the part of a stored box that one target wants.
  BoxSlices slices_;
  std::vector<StridedMemory> memory_;  // where it goes
  std::vector<std::uint32_t> target_;
  ExtentMap stored_;  // the box that each slice is cut from; item: the slice
};

// Binary search in tensors sorted by name; nullptr if there is none of that name.
[[nodiscard]] const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name);

}  // namespace slackwater
