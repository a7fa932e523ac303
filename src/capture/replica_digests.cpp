#include "capture/replica_digests.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include "base/result.hpp"
#include "capture/capture.hpp"
#include "layout/header_writer.hpp"
#include "layout/tied_table.hpp"

namespace slackwater {
namespace {

class Digesting {
 public:
  Digesting(const State& state, Devices& devices) : state_(state), devices_(devices), ties_(state.tensors) {}

  Result<ReplicaDigestsOfRank> run() {
    for (std::uint32_t i = 0; i < state_.tensors.size(); ++i) {
      const Tensor& tensor = state_.tensors[i];
      if (tensor.shard && tensor.shard->replicas > 1) find(i);
    }
    for (const auto& [ordinal, tensors] : on_device_) SW_TRY(fingerprint(ordinal, tensors));
    for (const auto& [index, first] : found_) add(index, fingerprints_.at(first));
    for (auto& [group, tensors] : result_) std::ranges::sort(tensors, {}, &std::pair<std::string, Digest128>::first);
    return std::move(result_);
  }

 private:
  void find(std::uint32_t index) {
    StridedMemory memory = memory_of(state_.tensors[index]);
    if (memory.size_bytes() == 0) return;
    const std::uint32_t first = ties_.insert(index);
    found_.emplace_back(index, first);
    if (first == index) on_device_[state_.tensors[index].device].emplace_back(index, std::move(memory));
  }

  using Found = std::vector<std::pair<std::uint32_t, StridedMemory>>;
  Status fingerprint(int ordinal, const Found& tensors) {
    SW_ASSIGN(Device* const device, device_of(ordinal, state_.tensors[tensors.front().first]));
    std::vector<const StridedMemory*> memories;
    for (const auto& [index, memory] : tensors) memories.push_back(&memory);
    SW_ASSIGN(const std::vector<std::uint64_t> fingerprints, device->whole_fingerprints(memories));
    for (std::size_t i = 0; i < tensors.size(); ++i) fingerprints_[tensors[i].first] = fingerprints[i];
    return {};
  }

  // A device on which the state is complete.
  Result<Device*> device_of(int ordinal, const Tensor& tensor) {
    if (ordinal == kHostDevice) return &devices_.host();
    SW_ASSIGN(AsyncDevice* const device, open_device(tensor, devices_, state_.after));
    SW_ASSIGN(const auto produced, device->record_event(streams_on(state_.after, ordinal)));
    SW_TRY(produced->wait());
    return device;
  }

  void add(std::uint32_t index, std::uint64_t fingerprint) {
    const Tensor& tensor = state_.tensors[index];
    const BoxView box{tensor.shard->offset, tensor.shape};
    result_[tensor.shard->replica_group].emplace_back(
        entry_name(tensor.name, box, tensor.shard->global_shape),
        digest128(fmt::format("{} {} {:016x}", dtype_name(tensor.dtype), to_string(box), fingerprint)));
  }

  const State& state_;
  Devices& devices_;
  TiedTable ties_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found_;  // replicas, each with the first it is tied to
  std::map<int, Found> on_device_;                              // those that are not tied to an earlier one
  std::map<std::uint32_t, std::uint64_t> fingerprints_;         // of these
  ReplicaDigestsOfRank result_;
};

}  // namespace

Result<ReplicaDigestsOfRank> digest_replicas(const State& state, Devices& devices) {
  return Digesting(state, devices).run();
}

}  // namespace slackwater
