// The checksum of a block, beside the memcpy it shares the memory bus with.
#include <cstring>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/digest.hpp"

namespace slackwater {
namespace {

// Larger than the caches: blocks come from memory, as they do in a checkpoint.
constexpr std::size_t kBlocks = 256;

std::vector<std::byte> random_blocks() {
  std::vector<std::byte> bytes(kBlocks * kBlockBytes);
  std::uint64_t word = 1;
  for (std::byte& byte : bytes) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(word >> 56);
  }
  return bytes;
}

void digest_of_block(benchmark::State& state) {
  const std::vector<std::byte> bytes = random_blocks();
  std::size_t block = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(digest64(std::span(bytes).subspan(block * kBlockBytes, kBlockBytes)));
    block = (block + 1) % kBlocks;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBlockBytes));
}
BENCHMARK(digest_of_block);

void memcpy_of_block(benchmark::State& state) {
  const std::vector<std::byte> bytes = random_blocks();
  std::vector<std::byte> copy(bytes.size());
  std::size_t block = 0;
  for (auto _ : state) {
    std::memcpy(copy.data() + block * kBlockBytes, bytes.data() + block * kBlockBytes, kBlockBytes);
    benchmark::ClobberMemory();
    block = (block + 1) % kBlocks;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBlockBytes));
}
BENCHMARK(memcpy_of_block);

}  // namespace
}  // namespace slackwater
