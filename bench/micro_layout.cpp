// Planning a file and parsing its header, by number of tensors.
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "layout/file_layout.hpp"
#include "layout/safetensors_header.hpp"

namespace slackwater {
namespace {

constexpr std::int64_t kElements = 64;

// Nothing reads through the pointers here: they only have to differ.
State state_of(std::int64_t count, std::vector<float>& memory) {
  memory.resize(static_cast<std::size_t>(count * kElements));
  State state;
  for (std::int64_t i = 0; i < count; ++i)
    state.tensors.push_back({.name = "model.layers." + std::to_string(i) + ".weight",
                             .dtype = DType::kF32,
                             .shape = {kElements},
                             .strides = {},
                             .data = memory.data() + i * kElements});
  state.tree = "{}";
  return state;
}

void per_tensor(benchmark::State& state) {
  state.counters["per_tensor"] = benchmark::Counter(static_cast<double>(state.iterations() * state.range(0)),
                                                    benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void check(benchmark::State& state) {
  std::vector<float> memory;
  const State tensors = state_of(state.range(0), memory);
  for (auto _ : state) benchmark::DoNotOptimize(check_state(tensors).has_value());
  per_tensor(state);
}
BENCHMARK(check)->RangeMultiplier(10)->Range(10, 100'000)->Unit(benchmark::kMicrosecond);

void plan(benchmark::State& state) {
  std::vector<float> memory;
  const State tensors = state_of(state.range(0), memory);
  for (auto _ : state) benchmark::DoNotOptimize(plan_layout(tensors, {}).has_value());
  per_tensor(state);
}
BENCHMARK(plan)->RangeMultiplier(10)->Range(10, 100'000)->Unit(benchmark::kMicrosecond);

void parse(benchmark::State& state) {
  std::vector<float> memory;
  const auto layout = plan_layout(state_of(state.range(0), memory), {});
  if (!layout) {
    state.SkipWithError(layout.error().to_string().c_str());
    return;
  }
  const FileLayout& file = layout->parts.front();
  const std::string_view json = std::string_view(file.header()).substr(8);
  for (auto _ : state) benchmark::DoNotOptimize(parse_header(json, file.size_bytes(), "benchmark").has_value());
  per_tensor(state);
}
BENCHMARK(parse)->RangeMultiplier(10)->Range(10, 100'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace slackwater
