// The XXH3 loops behind digest.hpp, one translation unit per instruction set. Pure functions; any thread.
// Plain C types only. The linker keeps one copy of a standard inline function for the whole program. If it kept the one
// from the AVX2 unit, the program would fault on older machines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackwater::kernels {

struct Wide {
  std::uint64_t high;
  std::uint64_t low;
};

std::uint64_t xxh3_64_portable(const void* bytes, std::size_t size);
Wide xxh3_128_portable(const void* bytes, std::size_t size);

// Only on x86-64, and only if the processor has AVX2.
std::uint64_t xxh3_64_avx2(const void* bytes, std::size_t size);
Wide xxh3_128_avx2(const void* bytes, std::size_t size);

}  // namespace slackwater::kernels
