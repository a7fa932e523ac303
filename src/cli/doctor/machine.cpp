#include "cli/doctor/machine.hpp"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/units.hpp"
#include "cli/doctor/thresholds.hpp"
#include "cli/text.hpp"
#include "os/file_system.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr const char* kMachine = "machine";
constexpr int kCapIpcLock = 14;

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

// The text behind "key" in a file of lines "key: value", without leading blanks.
std::string_view value_behind(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    line.remove_prefix(key.size() + 1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    return line;
  }
  return {};
}

// mountinfo writes a blank as \040, a tab as \011, a line end as \012 and a backslash as \134.
std::string unescape_octal(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ptr == text.data() + i + 4) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_below(std::string_view path, std::string_view point) {
  if (point == "/") return true;
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::uint64_t MemoryFacts::usable_bytes() const {
  if (!cgroup_limit_bytes) return available_bytes;
  const std::uint64_t allowed = *cgroup_limit_bytes > cgroup_used_bytes ? *cgroup_limit_bytes - cgroup_used_bytes : 0;
  return std::min(available_bytes, allowed);
}

// "36 35 98:0 /root /mount options shared:1 - ext4 /dev/sda1 options": the last mount of the longest point wins, since
// it lies on top of the others.
std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view path) {
  std::optional<Mount> best;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || std::distance(dash, fields.end()) < 3) continue;
    std::string point = unescape_octal(fields[4]);
    if (!is_below(path, point) || (best && point.size() < best->point.size())) continue;
    best = Mount{.type = dash[1], .source = unescape_octal(dash[2]), .point = std::move(point)};
  }
  return best;
}

std::uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key) {
  return number_of(value_behind(meminfo, key)).value_or(0) * 1024;
}

int seccomp_mode(std::string_view proc_status) {
  const auto mode = number_of(value_behind(proc_status, "Seccomp"));
  return mode ? static_cast<int>(*mode) : -1;
}

bool may_lock_any_memory(std::string_view proc_status) {
  const std::string_view text = value_behind(proc_status, "CapEff");
  std::uint64_t capabilities = 0;
  std::from_chars(text.data(), text.data() + text.size(), capabilities, 16);
  return (capabilities >> kCapIpcLock & 1) != 0;
}

std::vector<int> parse_list(std::string_view text) {
  std::vector<int> numbers;
  std::istringstream ranges{std::string(text)};
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    int last = 0;
    const int found = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (found < 1) continue;
    for (int number = first; number <= (found == 2 ? last : first); ++number) numbers.push_back(number);
  }
  return numbers;
}

Check kernel_check(std::string_view release) {
  Check check{.section = kMachine, .name = "kernel", .figure = fmt::format("Linux {}", release)};
  check.threshold = fmt::format("{}.{} or newer", kKernelWanted[0], kKernelWanted[1]);
  int version[2] = {0, 0};
  if (std::sscanf(std::string(release).c_str(), "%d.%d", &version[0], &version[1]) != 2) {
    check.verdict = Verdict::kWarn;
    check.remedy = "the version cannot be read; check it yourself";
  } else if (std::ranges::lexicographical_compare(version, kKernelForUring)) {
    check.verdict = Verdict::kWarn;
    check.remedy = fmt::format("io_uring needs {}.{}; worker threads write instead, with more processor time",
                               kKernelForUring[0], kKernelForUring[1]);
  } else if (std::ranges::lexicographical_compare(version, kKernelWanted)) {
    check.verdict = Verdict::kWarn;
    check.remedy = "writes cannot use registered buffers; a newer kernel writes with less processor time";
  }
  return check;
}

Check uring_check(std::string_view why, std::optional<int> disabled, int seccomp) {
  Check check{.section = kMachine, .name = "io_uring", .figure = "usable"};
  if (why.empty()) return check;
  // It works without, at the cost of processor time.
  check.verdict = Verdict::kWarn;
  if (disabled.value_or(0) != 0) {
    check.figure = fmt::format("not usable, kernel.io_uring_disabled is {}; worker threads write instead", *disabled);
    check.remedy = "sysctl -w kernel.io_uring_disabled=0";
  } else if (seccomp > 0) {
    check.figure = "not usable, a seccomp filter of this container forbids it; worker threads write instead";
    check.remedy =
        "allow io_uring_setup, io_uring_enter and io_uring_register, as in "
        "docker run --security-opt seccomp=unconfined";
  } else {
    check.figure = fmt::format("not usable: {}; worker threads write instead", why);
    check.remedy = "Linux 5.11 or newer has it, unless a security module forbids it";
  }
  return check;
}

Check memlock_check(std::uint64_t limit_bytes, bool exempt, std::uint64_t pool_bytes) {
  Check check{
      .section = kMachine, .name = "memlock", .threshold = fmt::format("{}, the pool", format_bytes(pool_bytes))};
  check.figure = limit_bytes == kUnlimited ? "unlimited" : format_bytes(limit_bytes);
  if (exempt && limit_bytes != kUnlimited) {
    check.figure += ", which does not bind this user (CAP_IPC_LOCK)";
  } else if (limit_bytes < pool_bytes) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "ulimit -l unlimited (or \"memlock unlimited\" in /etc/security/limits.conf, or docker run --ulimit "
        "memlock=-1); without it, writes use buffers that are not registered";
  }
  return check;
}

Check huge_pages_check(std::string_view enabled) {
  Check check{.section = kMachine, .name = "huge pages", .threshold = "madvise or always"};
  const std::size_t begin = enabled.find('[');
  const std::size_t end = enabled.find(']');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) {
    check.verdict = Verdict::kWarn;
    check.figure = "this kernel has no transparent huge pages";
    check.remedy = "the pool uses pages of 4 KiB; it takes longer to make";
    return check;
  }
  check.figure = std::string(enabled.substr(begin + 1, end - begin - 1));
  if (check.figure != "never") return check;
  check.verdict = Verdict::kWarn;
  check.remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  return check;
}

double load_of(std::string_view loadavg) { return std::atof(std::string(loadavg).c_str()); }

Check load_check(double load, unsigned processors) {
  Check check{.section = kMachine, .name = "load"};
  check.figure = fmt::format("{:.1f} on {}", load, plural(processors, "processor"));
  check.threshold = fmt::format("{:.0f}", kLoadPerProcessor * processors);
  if (load <= kLoadPerProcessor * processors) return check;
  check.verdict = Verdict::kWarn;
  check.remedy = "all speeds below are too low: run it again when the machine is idle";
  return check;
}

// Lines such as "7f0c18800000-7f0c48800000 rw-p ..." begin a mapping, "AnonHugePages:  2048 kB" belongs to it.
std::uint64_t huge_page_bytes(std::string_view smaps, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t bytes = 0;
  bool inside = false;
  std::istringstream lines{std::string(smaps)};
  for (std::string line; std::getline(lines, line);) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    unsigned long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) inside = from >= begin && to <= end;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kibibytes) == 1) bytes += kibibytes * 1024;
  }
  return bytes;
}

Check memory_check(const MemoryFacts& facts, std::uint64_t state_bytes) {
  const std::uint64_t usable = facts.usable_bytes();
  Check check{.section = kMachine, .name = "memory"};
  check.figure = fmt::format("{} of {} available", format_bytes(usable), format_bytes(facts.total_bytes));
  if (facts.cgroup_limit_bytes)
    check.figure += fmt::format(", cgroup limit {}", format_bytes(*facts.cgroup_limit_bytes));
  if (state_bytes > 0)
    check.figure += fmt::format("; one rank's automatic pool: {}", format_bytes(std::min(state_bytes, usable / 4)));
  check.threshold = format_bytes(kMemoryWanted);
  if (usable < kMemoryWanted) {
    check.verdict = usable < kMemoryNeeded ? Verdict::kFail : Verdict::kWarn;
    check.remedy = facts.cgroup_limit_bytes && usable < facts.available_bytes
                       ? "raise the memory limit of the container or job"
                       : "free memory: ps aux --sort -rss | head";
  }
  return check;
}

Check numa_check(const std::vector<int>& nodes, const std::vector<int>& nodes_with_memory) {
  Check check{.section = kMachine, .name = "NUMA", .figure = "unknown to this kernel, which means one node"};
  if (nodes.empty()) return check;
  check.figure = plural(nodes.size(), "node");
  std::vector<int> without;
  for (const int node : nodes)
    if (!nodes_with_memory.empty() && std::ranges::find(nodes_with_memory, node) == nodes_with_memory.end())
      without.push_back(node);
  if (without.empty()) return check;
  check.verdict = Verdict::kWarn;
  check.figure += fmt::format(", without memory: {}", fmt::join(without, ", "));
  check.threshold = "memory on every node";
  check.remedy = "the pool of a GPU there is on another node; check the memory slots and the BIOS";
  return check;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

MemoryFacts read_memory(const MachineFiles& files) {
  const std::string meminfo = read_text(files.proc + "/meminfo");
  MemoryFacts facts{.total_bytes = meminfo_bytes(meminfo, "MemTotal"),
                    .available_bytes = meminfo_bytes(meminfo, "MemAvailable")};
  for (const auto& [limit, used] :
       {std::pair{"/fs/cgroup/memory.max", "/fs/cgroup/memory.current"},
        std::pair{"/fs/cgroup/memory/memory.limit_in_bytes", "/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const auto limit_bytes = number_of(read_text(files.sys + limit));  // "max" is no number
    const auto used_bytes = number_of(read_text(files.sys + used));
    if (!limit_bytes || !used_bytes || *limit_bytes > facts.total_bytes) continue;
    facts.cgroup_limit_bytes = limit_bytes;
    facts.cgroup_used_bytes = *used_bytes;
    break;
  }
  return facts;
}

void machine_checks(const MachineFiles& files, std::uint64_t state_bytes, const Emit& emit) {
  utsname name{};
  (void)::uname(&name);
  emit(kernel_check(name.release));

  const std::string status = read_text(files.proc + "/self/status");
  const auto disabled = number_of(read_text(files.proc + "/sys/kernel/io_uring_disabled"));
  const auto queue = make_posix_file_system()->make_queue({.depth = 4});
  const std::string why = queue ? (*queue)->fallback_reason() : queue.error().to_string();
  emit(uring_check(why, disabled ? std::optional<int>(static_cast<int>(*disabled)) : std::nullopt,
                   seccomp_mode(status)));

  emit(load_check(load_of(read_text(files.proc + "/loadavg")), std::thread::hardware_concurrency()));
  const MemoryFacts memory = read_memory(files);
  const std::uint64_t largest_pool = memory.usable_bytes() / 4;
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  emit(memlock_check(limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur, may_lock_any_memory(status),
                     state_bytes > 0 ? std::min(state_bytes, largest_pool) : largest_pool));
  emit(huge_pages_check(read_text(files.sys + "/kernel/mm/transparent_hugepage/enabled")));
  emit(memory_check(memory, state_bytes));
  emit(numa_check(parse_list(read_text(files.sys + "/devices/system/node/online")),
                  parse_list(read_text(files.sys + "/devices/system/node/has_memory"))));
}

}  // namespace slackwater::cli::doctor
