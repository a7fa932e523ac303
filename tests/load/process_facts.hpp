// What this process holds of the machine, from /proc. For tests that must not leak.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>

namespace slackwater::test {

[[nodiscard]] inline std::uint64_t entries_of(const char* directory) {
  std::uint64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

[[nodiscard]] inline std::uint64_t thread_count() { return entries_of("/proc/self/task"); }
// A thread that was joined may still be listed for a moment, while the kernel takes it apart.
[[nodiscard]] inline bool thread_count_falls_to(std::uint64_t threads) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (thread_count() > threads && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return thread_count() == threads;
}
[[nodiscard]] inline std::uint64_t descriptor_count() {
  return entries_of("/proc/self/fd");
}  // and the one that counts

[[nodiscard]] inline std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

[[nodiscard]] inline std::uint64_t bytes_on_disk(const std::string& directory) {
  std::uint64_t size = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) size += entry.file_size();
  return size;
}

}  // namespace slackwater::test
