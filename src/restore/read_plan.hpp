// ReadPlan: which blocks to read for a set of targets, and where the bytes of each block go. A target takes a whole tensor or a box of it,
// from wherever its parts are stored; every target is checked, and every element of it has exactly one source, before the plan exists.
// Constant after make(); pieces() may be called from several threads.
// Lifetime: the memory behind the targets outlives the reading; the plan keeps no pointer to the Target objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "restore/cutout.hpp"
#include "restore/extent_map.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

class ReadPlan {
 public:
  // `tensors`: sorted by name. kMismatch: no such tensor, another dtype or shape; kInvalidArgument: a target no bytes can be placed in;
  // both name the targets. kCorrupt: the boxes of a tensor do not cover what is wanted, or lie upon each other.
  [[nodiscard]] static Result<ReadPlan> make(std::span<const TensorInfo> tensors, std::span<const Target> targets);

  // The boxes that have wanted bytes, by file, then offset; several times if several targets want some of one.
  [[nodiscard]] std::span<const FileExtent> stored() const { return stored_.extents(); }
  [[nodiscard]] const std::string& name_of(const FileExtent& stored) const { return names_[target_[stored.item]]; }
  // CUDA devices that have targets, in order, each once.
  [[nodiscard]] std::vector<int> devices() const;

  // Whole blocks, each once, only those that hold a wanted byte.
  [[nodiscard]] std::vector<ReadUnit> units(std::span<const ReadFile> files, std::uint64_t unit_bytes) const;

  // What the verified bytes of `unit` fill.
  struct Pieces {
    std::map<int, std::vector<CopyPiece>> on;           // by device, kHostDevice first if it is among them
    std::vector<std::vector<std::byte>> gathered = {};  // bytes that lay in many short runs; pieces point to them
  };
  [[nodiscard]] Pieces pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const;
  // Names of the targets that have bytes there, without repetition.
  [[nodiscard]] std::vector<std::string> names(std::uint32_t file, std::uint64_t offset,
                                               std::uint64_t size_bytes) const;

 private:
  class Maker;

  std::vector<int> device_;         // by target
  std::vector<std::string> names_;  // by target

  // By cutout: a part of a stored box, or all of it, that one target wants.
  Cutouts cutouts_;
  std::vector<StridedMemory> memory_;  // where it goes
  std::vector<std::uint32_t> target_;
  ExtentMap stored_;  // the box it is cut from; item: the cutout
};

// Binary search in tensors sorted by name; nullptr if there is none.
[[nodiscard]] const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name);

}  // namespace slackwater
