#include "harness.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace slackwater::bench {

namespace {

std::string_view symbol(Comparison comparison) {
  switch (comparison) {
    case Comparison::kAtLeast: return ">=";
    case Comparison::kAtMost: return "<=";
  }
  std::abort();
}

bool meets(const Goal& goal, double value) {
  return goal.comparison == Comparison::kAtLeast ? value >= goal.value : value <= goal.value;
}

// The median decides. "narrowly" says that the interval holds values of both sides, so another run may decide
// otherwise.
std::string verdict(const Line& line, const Interval& interval) {
  if (!line.goal) return "-";
  const bool met = meets(*line.goal, interval.median);
  const bool one_sided = meets(*line.goal, interval.low) == meets(*line.goal, interval.high);
  return fmt::format("{}{}", met ? "met" : "missed", one_sided ? "" : ", narrowly");
}

std::string figure_text(double value) {
  const double size = std::abs(value);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.3f}", value);
}

}  // namespace

Json to_json(const Report& report) {
  Json lines = Json::array();
  for (const Line& line : report.lines) {
    const Interval interval = median_interval(line.samples);
    Json entry = {{"name", line.name},
                  {"unit", line.unit},
                  {"median", interval.median},
                  {"low", interval.low},
                  {"high", interval.high},
                  {"p90", quantile(line.samples, 0.9)},
                  {"verdict", verdict(line, interval)},
                  {"samples", line.samples}};
    if (line.goal) entry["goal"] = {{"comparison", symbol(line.goal->comparison)}, {"value", line.goal->value}};
    lines.push_back(std::move(entry));
  }
  return {{"benchmark", report.benchmark}, {"setup", report.setup}, {"lines", std::move(lines)}};
}

std::string table(const Report& report) {
  constexpr const char* kRow = "{:<58} {:>9} {:>19} {:>9} {:<6} {:>10}  {}\n";
  std::string text =
      fmt::format(fmt::runtime(kRow), report.benchmark, "median", "90 % interval", "p90", "unit", "goal", "verdict");
  for (const Line& line : report.lines) {
    const Interval interval = median_interval(line.samples);
    text += fmt::format(
        fmt::runtime(kRow), line.name, figure_text(interval.median),
        fmt::format("{} .. {}", figure_text(interval.low), figure_text(interval.high)),
        figure_text(quantile(line.samples, 0.9)), line.unit,
        line.goal ? fmt::format("{} {}", symbol(line.goal->comparison), figure_text(line.goal->value)) : "-",
        verdict(line, interval));
  }
  return text;
}

double process_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status settle(const Settings& settings) {
  const UniqueFd directory(::open(settings.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return fail(error_from_errno(errno, "cannot open the benchmark's directory", settings.directory));
  if (::syncfs(directory.get()) != 0)
    return fail(error_from_errno(errno, "cannot sync the file system", settings.directory));
  std::this_thread::sleep_for(std::chrono::duration<double>(settings.pause_seconds));
  return {};
}

Status drop_cache(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->is_regular_file(error)) continue;
    const UniqueFd file(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return fail(error_from_errno(errno, "cannot open a file to drop it from the cache", entry->path()));
    if (const int result = ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); result != 0)
      return fail(error_from_errno(result, "cannot drop a file from the cache", entry->path()));
  }
  if (error) return fail(error_from_errno(error.value(), "cannot list the benchmark's directory", directory));
  return {};
}

Options engine_options(const Settings& settings, const std::string& name, std::uint64_t pool_bytes) {
  Options options;
  options.path = settings.directory + "/" + name;
  options.pool_bytes = pool_bytes;
  options.slab_bytes = settings.slab_bytes;
  options.queue_depth = settings.queue_depth;
  options.keep = 0;  // the benchmarks delete outside the timed part
  return options;
}

Json describe(const EngineStats& stats) {
  return {{"io_backend", stats.io_backend},
          {"direct_io", stats.direct_io},
          {"registered_buffers", stats.registered_buffers},
          {"pool_bytes", stats.pool_bytes}};
}

}  // namespace slackwater::bench
