// Samples of the tensors that other ranks hold too. Every vote carries them, so that ranks that drift apart are found.
// They cover every byte of small tensors and a few places of large ones. The places follow from the step and the name:
// they are the same on all ranks, and others at the next step. The first comparison, of every byte, is in
// replica_digests.hpp.
//
// The cost on the trainer's thread is bounded, per replica group:
//   small tensors       at most kWholeGroupBytes are read
//   other host tensors  kSampledPlaces cache lines, or one of each tensor if there are more tensors than that
//   CUDA tensors        at most kDeviceSamples copies are queued on the trainer's stream. Stream order makes them see
//                       the state, and nothing waits for them.
// Thread rule: ReplicaSampler belongs to the trainer's thread. PendingReplicaSamples is handed on and read by one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

inline constexpr std::uint64_t kWholeTensorBytes = 64u << 10;  // larger ones are sampled
inline constexpr std::uint64_t kWholeGroupBytes = 1u << 20;    // of small tensors; if there are more, they take turns
inline constexpr std::size_t kSampledPlaces = 2048;            // in the other tensors of a group, 1 to 8 in each
inline constexpr std::size_t kDeviceSamples = 64;              // tensors of a group on CUDA devices; they take turns
inline constexpr std::size_t kListedSamples = 8;               // named in a vote; they take turns
inline constexpr std::size_t kMaxListedValues = 256;           // plain values named while every byte is compared

// What ranks saw of tensors or values that should be the same on all of them. Part of every vote, so its size does not
// depend on their number: one digest of all samples, and a few samples by name.
struct ReplicaSamples {
  std::vector<std::uint32_t> ranks;  // that saw this, sorted
  std::uint64_t list = 0;            // what was sampled; only ranks that sampled the same are compared
  std::uint64_t count = 0;           // number of samples
  Digest128 all;                     // of all samples
  std::vector<std::pair<std::string, std::uint64_t>> some;  // digests of a few, by name; others at each step
};

// The replicas of a state, in an order that is the same on all ranks of a group.
struct ReplicaPlan {
  struct Item {
    std::uint32_t tensor = 0;  // in State::tensors
    int device = kHostDevice;
    std::uint64_t seed = 0;        // from its name
    std::uint64_t size_bytes = 0;  // packed
    std::string name;              // of the box, as in the files
  };
  struct Group {
    std::string name;
    std::uint64_t list = 0;   // ReplicaSamples::list
    std::uint64_t fixed = 0;  // digest of dtypes and boxes
    std::vector<Item> items;  // by name
    std::vector<std::uint32_t> small;
    std::uint64_t small_bytes = 0;
    std::size_t samples = 0;  // places in each tensor that is not read whole
    std::vector<std::uint32_t> on_device;
  };
  std::vector<Group> groups;
};

// The samples of one save(). Those on devices may still be pending.
class PendingReplicaSamples {
 public:
  // Waits for samples that were queued on a device. Returns them by replica group.
  [[nodiscard]] Result<std::map<std::string, ReplicaSamples>> samples(std::uint32_t rank);

 private:
  friend class ReplicaSampler;
  struct Seen {
    std::uint32_t item = 0;
    std::uint64_t digest = 0;
  };
  struct OnDevice {
    std::unique_ptr<PendingSamples> samples;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> items;  // group, index into seen_[group]
  };
  std::uint64_t step_ = 0;
  std::shared_ptr<const ReplicaPlan> plan_;
  std::vector<std::vector<Seen>> seen_;  // by group, in the order of the items
  std::vector<OnDevice> on_device_;
};

class ReplicaSampler {
 public:
  // check_state() must have passed.
  [[nodiscard]] Result<PendingReplicaSamples> sample(const State& state, Devices& devices, std::uint64_t step);

 private:
  void study(const State& state);

  std::shared_ptr<const void> structure_;  // that plan_ was made for; held so that its address is not reused
  std::size_t tensor_count_ = 0;
  std::shared_ptr<const ReplicaPlan> plan_;
  std::vector<std::vector<StridedMemory>> memories_;  // by group, parallel to the items
};

// Makes the part of a vote. `all`: sorted by name. Only their order and number decide which are listed at this step.
[[nodiscard]] ReplicaSamples samples_of(std::uint32_t rank, std::uint64_t list, std::uint64_t fixed, std::uint64_t step,
                                        std::span<const std::pair<std::string_view, std::uint64_t>> all,
                                        std::size_t listed = kListedSamples);

}  // namespace slackwater
