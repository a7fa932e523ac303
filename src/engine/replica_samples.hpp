// What save() sees of the tensors that other ranks hold too, so that every vote can say it and ranks that drift apart are
// found. Every byte of small tensors, a few samples of large ones, at places that follow from the step and the name: the
// same on all ranks, others at the next step. The first comparison, of every byte, is in replica_digests.hpp.
//
// The cost on the trainer's thread is bounded: per replica group at most kWholeGroupBytes are read whole, and of other
// tensors in host memory kSampledPlaces cache lines, or one of each if there are more; on a CUDA device at most
// kDeviceLooks copies are queued on the trainer's stream, in whose order they see the state, and nothing waits for them.
// Thread rule: ReplicaSampler belongs to the trainer's thread; ReplicaLook is handed on and read by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "commit/ballot.hpp"
#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

inline constexpr std::uint64_t kWholeTensorBytes = 64u << 10;  // larger ones are sampled
inline constexpr std::uint64_t kWholeGroupBytes = 1u << 20;    // of small ones; beyond it, they take turns
inline constexpr std::size_t kSampledPlaces = 2048;            // in the others of a group, 1 to 8 in each
inline constexpr std::size_t kDeviceLooks = 64;                // tensors of a group on CUDA devices; they take turns
inline constexpr std::size_t kListedSamples = 8;               // named in a vote; they take turns
inline constexpr std::size_t kMaxListedValues = 256;           // the same of plain values while every byte is compared

// The replicas of a state, in the order that all ranks of a group have them in.
struct ReplicaPlan {
  struct Item {
    std::uint32_t tensor = 0;  // in State::tensors
    int device = kHostDevice;
    std::uint64_t seed = 0;        // from its name
    std::uint64_t size_bytes = 0;  // packed
    std::string name;              // of the box, as files have it
  };
  struct Group {
    std::string name;
    std::uint64_t list = 0;   // ReplicaSamples::list
    std::uint64_t fixed = 0;  // digest of dtypes and boxes
    std::vector<Item> items;  // by name
    std::vector<std::uint32_t> small;
    std::uint64_t small_bytes = 0;
    std::size_t samples = 0;  // of each that is not looked at whole
    std::vector<std::uint32_t> on_device;
  };
  std::vector<Group> groups;
};

// What one save() has seen.
class ReplicaLook {
 public:
  // Waits for what was queued on a device. By replica group.
  [[nodiscard]] Result<std::map<std::string, ReplicaSamples>> samples(std::uint32_t rank);

 private:
  friend class ReplicaSampler;
  struct Seen {
    std::uint32_t item = 0;
    std::uint64_t digest = 0;
  };
  struct OnDevice {
    std::unique_ptr<Looks> looks;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> items;  // group, index into seen_[group]
  };
  std::uint64_t step_ = 0;
  std::shared_ptr<const ReplicaPlan> plan_;
  std::vector<std::vector<Seen>> seen_;  // by group, in the order of the items
  std::vector<OnDevice> on_device_;
};

class ReplicaSampler {
 public:
  // Needs check_state() to have passed.
  [[nodiscard]] Result<ReplicaLook> look(const State& state, Devices& devices, std::uint64_t step);

 private:
  void study(const State& state);

  std::shared_ptr<const void> structure_;  // of the state that plan_ is of, held so that no other can be taken for it
  std::size_t tensor_count_ = 0;
  std::shared_ptr<const ReplicaPlan> plan_;
  std::vector<std::vector<StridedMemory>> memories_;  // by group, parallel to the items
};

// As a vote says it. `all`: by name; nothing but their order and number decides which are listed at this step.
[[nodiscard]] ReplicaSamples samples_of(std::uint32_t rank, std::uint64_t list, std::uint64_t fixed, std::uint64_t step,
                                        std::span<const std::pair<std::string_view, std::uint64_t>> all,
                                        std::size_t listed = kListedSamples);

}  // namespace slackwater
