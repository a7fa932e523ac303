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
      if (tensor.shard && tensor.shard->replicas > 1) SW_TRY(add(i));
    }
    for (auto& [group, tensors] : result_) std::ranges::sort(tensors, {}, &std::pair<std::string, Digest128>::first);
    return std::move(result_);
  }

 private:
  Status add(std::uint32_t index) {
    const Tensor& tensor = state_.tensors[index];
    const StridedMemory memory = memory_of(tensor);
    if (memory.size_bytes() == 0) return {};
    SW_ASSIGN(Device* const device, device_of(tensor));
    const std::uint32_t first = ties_.insert(index);
    std::uint64_t& fingerprint = fingerprints_[first];
    if (first == index) {
      SW_ASSIGN(fingerprint, device->fingerprint(memory, 0, true));
    }
    const BoxView box{tensor.shard->offset, tensor.shape};
    result_[tensor.shard->replica_group].emplace_back(
        entry_name(tensor.name, box, tensor.shard->global_shape),
        digest128(fmt::format("{} {} {:016x}", dtype_name(tensor.dtype), to_string(box), fingerprint)));
    return {};
  }

  Result<Device*> device_of(const Tensor& tensor) {
    if (tensor.device == kHostDevice) return &devices_.host();
    if (const auto known = ready_.find(tensor.device); known != ready_.end()) return known->second;
    SW_ASSIGN(AsyncDevice* const device, open_device(tensor, devices_, state_.after));
    SW_ASSIGN(const auto produced, device->record_event(streams_on(state_.after, tensor.device)));
    SW_TRY(produced->wait());
    return ready_.emplace(tensor.device, device).first->second;
  }

  const State& state_;
  Devices& devices_;
  TiedTable ties_;
  std::map<std::uint32_t, std::uint64_t> fingerprints_;  // of tensors that are not tied to an earlier one
  std::map<int, Device*> ready_;                         // devices on which the state is complete
  ReplicaDigestsOfRank result_;
};

}  // namespace

Result<ReplicaDigestsOfRank> digest_replicas(const State& state, Devices& devices) {
  return Digesting(state, devices).run();
}

}  // namespace slackwater
