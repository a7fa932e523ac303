#include "capture/at_once_policy.hpp"

#include <set>
#include <string>
#include <utility>

#include "base/units.hpp"

namespace slackwater {
namespace {

std::uint64_t size_bytes(const Tensor& tensor) {
  std::uint64_t bytes = item_bytes(tensor.dtype);
  for (const std::int64_t dimension : tensor.shape) bytes *= static_cast<std::uint64_t>(dimension);
  return bytes;
}

bool is_volatile(const Tensor& tensor, std::uint64_t bytes) {
  switch (tensor.updates) {
    case Updates::kBehindFence: return false;
    case Updates::kAnyTime: return true;
    case Updates::kUnknown: return bytes <= kMaxSmallTensorBytes;
  }
  return true;
}

}  // namespace

std::vector<std::uint32_t> choose_at_once(State& state, TornTensors& torn) {
  std::vector<bool> volatiles(state.tensors.size());
  std::vector<std::uint64_t> sizes(state.tensors.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t bytes = size_bytes(state.tensors[i]);
    sizes[i] = round_up(bytes, kEarlyCopyAlignment);
    volatiles[i] = is_volatile(state.tensors[i], bytes);
  }

  // Tensors that must be captured inside save() get their room first. One that does not fit takes none: save() waits.
  const std::vector<bool> torn_before = torn.among(state, volatiles);
  std::uint64_t room = kMaxAtOnceBytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Tensor& tensor = state.tensors[i];
    const bool was_torn = !torn_before.empty() && torn_before[i];
    tensor.at_once = tensor.at_once || was_torn || (volatiles[i] && !tensor.watched);
    if (tensor.at_once && sizes[i] <= room) room -= sizes[i];
  }

  std::vector<std::uint32_t> chosen;
  std::set<std::string, std::less<>> left_for_later;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Tensor& tensor = state.tensors[i];
    if (!tensor.at_once && volatiles[i]) {
      if (sizes[i] <= room) {
        room -= sizes[i];
        tensor.at_once = true;
      } else {
        left_for_later.insert(tensor.name);
      }
    }
    if (tensor.at_once) chosen.push_back(static_cast<std::uint32_t>(i));
  }
  torn.note_state(state.objects, std::move(left_for_later));
  return chosen;
}

}  // namespace slackwater
