#include "os/available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace slackwater {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // missing, or "max"
}

std::optional<std::uint64_t> machine_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// A container sees the host's /proc/meminfo. Only the cgroup tells how much it may really use.
std::optional<std::uint64_t> cgroup_available() {
  for (const auto& [limit_file, used_file] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const auto limit = number_in(limit_file);
    const auto used = number_in(used_file);
    if (limit && used) return *limit > *used ? *limit - *used : 0;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t available_memory_bytes() {
  const auto machine = machine_available();
  const auto cgroup = cgroup_available();
  if (machine && cgroup) return std::min(*machine, *cgroup);
  return machine.value_or(cgroup.value_or(0));
}

}  // namespace slackwater
