// ReadPlan: which blocks to read for a set of targets, and where the bytes of each block go. Every target is checked before the
// plan exists. Constant after make(); pieces() may be called from several threads.
// Lifetime: the memory behind the targets outlives the reading; the plan keeps no pointer to the Target objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "restore/extent_map.hpp"
#include "restore/version_contents.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

class ReadPlan {
 public:
  // kMismatch: no such tensor, another dtype or shape; kInvalidArgument: a target no bytes can be placed in. Names the targets.
  [[nodiscard]] static Result<ReadPlan> make(std::span<const TensorInfo> tensors, std::span<const Target> targets);

  [[nodiscard]] const ExtentMap& extents() const { return extents_; }
  // CUDA devices that have targets, in order, each once.
  [[nodiscard]] std::vector<int> devices() const;
  // What the verified bytes of `unit` fill: (device, pieces on it), kHostDevice first if it is among them.
  using DevicePieces = std::map<int, std::vector<CopyPiece>>;
  [[nodiscard]] DevicePieces pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const;
  // Names of the targets that have bytes there, without repetition.
  [[nodiscard]] std::vector<std::string> names(std::uint32_t file, std::uint64_t offset,
                                               std::uint64_t size_bytes) const;

 private:
  std::vector<StridedMemory> memory_;  // by target
  std::vector<int> device_;            // by target
  std::vector<std::string> names_;     // by target
  ExtentMap extents_;                  // item: index of the target
};

// Binary search in tensors sorted by name; nullptr if there is none.
[[nodiscard]] const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name);

}  // namespace slackwater
