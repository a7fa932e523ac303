#include "capture/replica_samples.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "capture/capture.hpp"
#include "device/fingerprint.hpp"
#include "device/replica_places.hpp"
#include "layout/header_writer.hpp"
#include "tensor/box.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
constexpr std::size_t kPrefetchedReplicas = 3;  // as in capture.cpp: samples lie in cold memory

// A random number for each step and each choice that is made at a step, the same on all ranks.
enum class Choice : std::uint64_t { kPlaces = 1, kWhole, kOnDevice, kListed };
std::uint64_t chosen(std::uint64_t step, Choice choice) {
  return mix(mix(step + kGolden) + static_cast<std::uint64_t>(choice));
}

std::shared_ptr<const ReplicaPlan> make_plan(const State& state, std::vector<std::vector<StridedMemory>>& memories) {
  auto plan = std::make_shared<ReplicaPlan>();
  std::map<std::string_view, std::vector<ReplicaPlan::Item>> by_group;
  for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
    const Tensor& tensor = state.tensors[i];
    if (!tensor.shard || tensor.shard->replicas < 2) continue;
    const std::uint64_t size_bytes = memory_of(tensor).size_bytes();
    if (size_bytes == 0) continue;
    std::string name = entry_name(tensor.name, {tensor.shard->offset, tensor.shape}, tensor.shard->global_shape);
    by_group[tensor.shard->replica_group].push_back(
        {i, tensor.device, digest64(std::as_bytes(std::span(name))), size_bytes, std::move(name)});
  }
  memories.clear();
  for (auto& [name, items] : by_group) {
    ReplicaPlan::Group& group = plan->groups.emplace_back();
    group.name = name;
    std::ranges::sort(items, {}, &ReplicaPlan::Item::name);
    group.items = std::move(items);
    std::string list, fixed;
    std::vector<StridedMemory>& of_group = memories.emplace_back();
    for (std::uint32_t i = 0; i < group.items.size(); ++i) {
      const ReplicaPlan::Item& item = group.items[i];
      const Tensor& tensor = state.tensors[item.tensor];
      const bool on_host = item.device == kHostDevice;
      list += fmt::format("{}\n{}\n", item.name, on_host);
      fixed += fmt::format("{} {}\n", dtype_name(tensor.dtype), to_string(BoxView{tensor.shard->offset, tensor.shape}));
      of_group.push_back(memory_of(tensor));
      if (!on_host) group.on_device.push_back(i);
      if (item.size_bytes > kWholeTensorBytes) continue;
      group.small.push_back(i);
      group.small_bytes += item.size_bytes;
    }
    const bool all_small_whole = group.small_bytes <= kWholeGroupBytes;
    const std::size_t sampled = group.items.size() - (all_small_whole ? group.small.size() : 0);
    group.samples = std::clamp<std::size_t>(kSampledPlaces / std::max<std::size_t>(sampled, 1), 1, kMaxReplicaSamples);
    group.list = digest64(std::as_bytes(std::span(list)));
    group.fixed = digest64(std::as_bytes(std::span(fixed)));
  }
  return plan;
}

// Which items are read whole: all small ones, or as many as the limit allows, starting from one that the step chooses.
std::vector<bool> whole_ones(const ReplicaPlan::Group& group, std::uint64_t step) {
  std::vector<bool> whole(group.items.size());
  const std::size_t count = group.small.size();
  if (count == 0) return whole;
  const std::size_t first =
      group.small_bytes <= kWholeGroupBytes ? 0 : random_below(chosen(step, Choice::kWhole), count);
  std::uint64_t taken = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t item = group.small[(first + i) % count];
    taken += group.items[item].size_bytes;
    if (taken > kWholeGroupBytes) break;
    whole[item] = true;
  }
  return whole;
}

// Which of the items on devices are sampled.
std::vector<bool> sampled_on_device(const ReplicaPlan::Group& group, std::uint64_t step) {
  std::vector<bool> taken(group.items.size());
  const std::size_t count = group.on_device.size();
  if (count == 0) return taken;
  const std::size_t first = random_below(chosen(step, Choice::kOnDevice), count);
  for (std::size_t i = 0; i < std::min(count, kDeviceSamples); ++i) taken[group.on_device[(first + i) % count]] = true;
  return taken;
}

// Queues the samples on the first stream. The other streams wait for them, because they may write to the tensors next.
Result<std::unique_ptr<PendingSamples>> queue_samples(AsyncDevice& device, std::span<const ReplicaPlaces> places,
                                                      std::span<const StreamHandle> streams) {
  if (streams.size() > 1) {
    SW_ASSIGN(const auto all, device.record_event(streams));
    SW_TRY(device.stream_wait(streams.front(), *all));
  }
  SW_ASSIGN(auto samples, device.sample(places, streams.front()));
  if (streams.size() > 1) {
    SW_ASSIGN(const auto sampled, device.record_event(streams.first(1)));
    for (const StreamHandle stream : streams.subspan(1)) SW_TRY(device.stream_wait(stream, *sampled));
  }
  return samples;
}

}  // namespace

void ReplicaSampler::study(const State& state) {
  if (plan_ && state.structure && state.structure == structure_ && state.tensors.size() == tensor_count_) {
    for (std::size_t g = 0; g < memories_.size(); ++g) {
      for (std::size_t i = 0; i < memories_[g].size(); ++i) {
        const void* const data = state.tensors[plan_->groups[g].items[i].tensor].data;
        memories_[g][i].data = static_cast<std::byte*>(const_cast<void*>(data));
      }
    }
    return;
  }
  plan_ = make_plan(state, memories_);
  structure_ = state.structure;
  tensor_count_ = state.tensors.size();
}

Result<PendingReplicaSamples> ReplicaSampler::sample(const State& state, Devices& devices, std::uint64_t step) {
  study(state);
  PendingReplicaSamples pending;
  pending.step_ = step;
  pending.plan_ = plan_;
  pending.seen_.resize(plan_->groups.size());
  const std::uint64_t seed = chosen(step, Choice::kPlaces);
  struct Queue {
    std::vector<ReplicaPlaces> places;
    PendingReplicaSamples::OnDevice part;
    std::uint32_t first_tensor = 0;
  };
  std::map<int, Queue> queues;
  for (std::uint32_t g = 0; g < plan_->groups.size(); ++g) {
    const ReplicaPlan::Group& group = plan_->groups[g];
    const std::vector<bool> whole = whole_ones(group, step);
    const std::vector<bool> on_device = sampled_on_device(group, step);
    const auto places_of = [&](std::size_t i) {
      const ReplicaPlan::Item& item = group.items[i];
      return replica_places(memories_[g][i], item.size_bytes, seed ^ item.seed, group.samples, whole[i]);
    };
    std::vector<PendingReplicaSamples::Seen>& seen = pending.seen_[g];
    seen.reserve(group.items.size());
    for (std::uint32_t i = 0; i < group.items.size(); ++i) {
      if (const std::size_t ahead = i + kPrefetchedReplicas;
          ahead < group.items.size() && group.items[ahead].device == kHostDevice && !whole[ahead]) {
        prefetch_places(places_of(ahead));
      }
      const ReplicaPlan::Item& item = group.items[i];
      if (item.device == kHostDevice) {
        seen.push_back({i, digest_places(places_of(i))});
      } else if (on_device[i]) {
        Queue& queue = queues[item.device];
        if (queue.places.empty()) queue.first_tensor = item.tensor;
        queue.places.push_back(places_of(i));
        queue.part.items.emplace_back(g, static_cast<std::uint32_t>(seen.size()));
        seen.push_back({i, 0});
      }
    }
  }
  for (auto& [ordinal, queue] : queues) {
    SW_ASSIGN(AsyncDevice* const device, open_device(state.tensors[queue.first_tensor], devices, state.after));
    SW_ASSIGN(queue.part.samples, queue_samples(*device, queue.places, streams_on(state.after, ordinal)));
    pending.on_device_.push_back(std::move(queue.part));
  }
  return pending;
}

Result<std::map<std::string, ReplicaSamples>> PendingReplicaSamples::samples(std::uint32_t rank) {
  std::map<std::string, ReplicaSamples> result;
  if (!plan_) return result;
  for (const OnDevice& part : on_device_) {
    SW_ASSIGN(const std::vector<std::uint64_t> digests, part.samples->digests());
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const auto& [group, index] = part.items[i];
      seen_[group][index].digest = digests[i];
    }
  }
  on_device_.clear();
  std::vector<std::pair<std::string_view, std::uint64_t>> all;
  for (std::size_t g = 0; g < seen_.size(); ++g) {
    const ReplicaPlan::Group& group = plan_->groups[g];
    all.clear();
    for (const Seen& seen : seen_[g]) all.emplace_back(group.items[seen.item].name, seen.digest);
    result.emplace(group.name, samples_of(rank, group.list, group.fixed, step_, all));
  }
  return result;
}

ReplicaSamples samples_of(std::uint32_t rank, std::uint64_t list, std::uint64_t fixed, std::uint64_t step,
                          std::span<const std::pair<std::string_view, std::uint64_t>> all, std::size_t listed) {
  ReplicaSamples samples{.ranks = {rank}, .list = list, .count = all.size(), .all = {}, .some = {}};
  std::vector<std::uint64_t> digests{fixed};
  for (const auto& [name, digest] : all) digests.push_back(digest);
  samples.all = digest128(std::as_bytes(std::span(digests)));
  const std::size_t first = all.empty() ? 0 : random_below(chosen(step, Choice::kListed), all.size());
  for (std::size_t i = 0; i < std::min(listed, all.size()); ++i) {
    const auto& [name, digest] = all[(first + i) % all.size()];
    samples.some.emplace_back(name, digest);
  }
  std::ranges::sort(samples.some);
  return samples;
}

}  // namespace slackwater
