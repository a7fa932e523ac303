// The torn-capture guard's fingerprint of one tensor. Every save() takes one per tensor.
#include <vector>

#include <benchmark/benchmark.h>

#include "device/device.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kTensors = 1'000;

void fingerprint_of_tensor(benchmark::State& state) {
  const auto tensor_bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> memory(kTensors * tensor_bytes, std::byte{1});
  const std::unique_ptr<Device> device = make_host_device();
  std::vector<StridedMemory> tensors;
  for (std::size_t i = 0; i < kTensors; ++i)
    tensors.push_back({.data = memory.data() + i * tensor_bytes,
                       .item_bytes = 4,
                       .shape = {static_cast<std::int64_t>(tensor_bytes / 4)},
                       .strides = {}});
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(device->fingerprint(tensors[next], 42, false));
    next = (next + 1) % kTensors;
  }
}
BENCHMARK(fingerprint_of_tensor)->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20);

}  // namespace
}  // namespace slackwater
