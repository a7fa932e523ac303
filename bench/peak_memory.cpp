// Peak extra memory of a save and of a restore of a state eight times the pool, each in a process of its own.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "base/error.hpp"
#include "benchmarks.hpp"
#include "engine_runs.hpp"

namespace slackwater::bench {

namespace {

constexpr std::uint32_t kTensors = 1'000;
constexpr double kMebibyte = 1024.0 * 1024.0;

// A line such as "VmHWM:    123456 kB" of /proc/self/status.
Result<std::uint64_t> status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return fail(ErrorKind::kUnsupported, fmt::format("/proc/self/status has no line {}", key));
}

// Memory beyond what the process had: high-water mark of `work` minus resident size before it.
template <class Work>
Result<std::uint64_t> extra_memory(Work&& work) {
  SW_ASSIGN(const std::uint64_t before, status_bytes("VmRSS"));
  {
    std::ofstream reset("/proc/self/clear_refs");
    if (!(reset << "5" << std::flush))
      return fail(ErrorKind::kUnsupported, "cannot reset the peak of resident memory", "/proc/self/clear_refs");
  }
  SW_TRY(work());
  SW_ASSIGN(const std::uint64_t peak, status_bytes("VmHWM"));
  return peak > before ? peak - before : 0;
}

Result<double> run_child(const Settings& settings, const std::string& what) {
  const std::string output = fmt::format("{}/peak-memory.{}", settings.directory, what);
  const std::array<std::string, 8> words{"/proc/self/exe",
                                         "peak_memory_child",
                                         "--dir",
                                         settings.directory,
                                         "--bytes",
                                         std::to_string(settings.state_bytes),
                                         what,
                                         output};
  std::array<char*, words.size() + 1> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = const_cast<char*>(words[i].c_str());
  pid_t child = 0;
  if (const int result = ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ);
      result != 0)
    return fail(error_from_errno(result, "cannot start a child of the memory benchmark"));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return fail(error_from_errno(errno, "cannot wait for a child of the memory benchmark"));
  }
  if (status != 0)
    return fail(ErrorKind::kInternal,
                fmt::format("the child that measures the memory of a {} failed (status {})", what, status));
  std::uint64_t bytes = 0;
  if (!(std::ifstream(output) >> bytes))
    return fail(ErrorKind::kIo, "a child of the memory benchmark left no figure", output);
  return static_cast<double>(bytes) / kMebibyte;
}

}  // namespace

Status measure_peak_memory(const Settings& settings, std::string_view what, const std::string& output) {
  SW_ASSIGN(const HostState state, HostState::create(settings.state_bytes, kTensors));
  const Options options = engine_options(settings, "peak-memory", settings.state_bytes / kStatePerPool);
  Result<std::uint64_t> extra = 0;
  if (what == "save") {
    extra = extra_memory([&]() -> Status {
      SW_ASSIGN(RepeatedSave saves, RepeatedSave::create(options, state));
      // The second finds a warm engine and, as in training, the version before still there.
      for (int step = 0; step < 2; ++step) SW_TRY(saves.run());
      return saves.engine().close();
    });
  } else {
    extra = extra_memory([&]() -> Status {
      SW_ASSIGN(Engine engine, Engine::open(options));
      SW_ASSIGN(const auto restored, engine.restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
        return state.targets(state.memory());
      }));
      if (!restored) return fail(ErrorKind::kNotFound, "the memory benchmark has nothing to restore", options.path);
      return engine.close();
    });
  }
  SW_TRY(extra);
  std::ofstream file(output);
  if (!(file << *extra << std::flush))
    return fail(ErrorKind::kIo, "cannot write the figure of the memory benchmark", output);
  return {};
}

Result<Report> peak_memory(const Settings& settings) {
  const double pool_mebibytes = static_cast<double>(settings.state_bytes / kStatePerPool) / kMebibyte;
  Report report{.benchmark = "peak_memory",
                .setup = {{"state_bytes", settings.state_bytes},
                          {"pool_bytes", settings.state_bytes / kStatePerPool},
                          {"tensors", kTensors}},
                .lines = {}};
  for (const std::string what : {"save", "restore"}) {  // in this order: the second reads what the first wrote
    SW_ASSIGN(const double mebibytes, run_child(settings, what));
    report.lines.push_back({.name = fmt::format("peak extra memory, {}, pool {:.0f} MiB", what, pool_mebibytes),
                            .unit = "MiB",
                            .samples = {mebibytes},
                            .goal = at_most(pool_mebibytes + 64)});
  }
  return report;
}

}  // namespace slackwater::bench
