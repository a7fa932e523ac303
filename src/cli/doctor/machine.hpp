// The machine as the kernel describes it. Each check is a function of what was read, so that tests can pass texts of
// machines that they are not running on.
// Pure functions, except machine_checks(); any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/check.hpp"

namespace slackwater::cli::doctor {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

struct Mount {
  std::string type;    // "ext4"
  std::string source;  // "/dev/nvme0n1p2"
  std::string point;   // "/data"
};

struct MemoryFacts {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::optional<std::uint64_t> cgroup_limit_bytes;  // none: no limit
  std::uint64_t cgroup_used_bytes = 0;
  [[nodiscard]] std::uint64_t usable_bytes() const;  // what is available and permitted
};

// The parsers. A text that they do not understand gives nothing, 0 or -1.
[[nodiscard]] std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view path);  // an absolute path
[[nodiscard]] std::uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key);
[[nodiscard]] int seccomp_mode(std::string_view proc_status);
// Bytes on huge pages in the mappings from `begin` on, up to `end`.
[[nodiscard]] std::uint64_t huge_page_bytes(std::string_view smaps, std::uint64_t begin, std::uint64_t end);
[[nodiscard]] bool may_lock_any_memory(std::string_view proc_status);  // CAP_IPC_LOCK
[[nodiscard]] std::vector<int> parse_list(std::string_view text);      // "0-2,5" -> 0, 1, 2, 5

[[nodiscard]] Check kernel_check(std::string_view release);
// `why`: the error of the attempt; empty if io_uring works. `disabled`: kernel.io_uring_disabled.
[[nodiscard]] Check uring_check(std::string_view why, std::optional<int> disabled, int seccomp);
[[nodiscard]] Check memlock_check(std::uint64_t limit_bytes, bool exempt, std::uint64_t pool_bytes);
// Of /proc/loadavg, for the last minute. More than one process per processor makes all speeds doubtful.
[[nodiscard]] double load_of(std::string_view loadavg);
[[nodiscard]] Check load_check(double load, unsigned processors);
[[nodiscard]] Check huge_pages_check(std::string_view enabled);
[[nodiscard]] Check memory_check(const MemoryFacts& facts, std::uint64_t state_bytes);
[[nodiscard]] Check numa_check(const std::vector<int>& nodes, const std::vector<int>& nodes_with_memory);

// Where to read. Tests name directories of their own.
struct MachineFiles {
  std::string proc = "/proc";
  std::string sys = "/sys";
};
[[nodiscard]] std::string read_text(const std::string& path);  // empty if it cannot be read
[[nodiscard]] MemoryFacts read_memory(const MachineFiles& files);
void machine_checks(const MachineFiles& files, std::uint64_t state_bytes, const Emit& emit);

}  // namespace slackwater::cli::doctor
