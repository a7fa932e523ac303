// The C++ benchmarks. Each creates what it needs below Settings::directory, measures, and removes it again.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "harness.hpp"

namespace slackwater::bench {

[[nodiscard]] Result<Report> durable_write(const Settings& settings);
[[nodiscard]] Result<Report> verified_restore(const Settings& settings);
[[nodiscard]] Result<Report> memory_restore(const Settings& settings);
[[nodiscard]] Result<Report> save_call(const Settings& settings);
[[nodiscard]] Result<Report> staging(const Settings& settings);
[[nodiscard]] Result<Report> small_tensors(const Settings& settings);
[[nodiscard]] Result<Report> peak_memory(const Settings& settings);
[[nodiscard]] Result<Report> restore_plan(const Settings& settings);
// The reference alone, for comparisons made from Python: state_bytes written `pairs` times.
[[nodiscard]] Result<Report> raw_write(const Settings& settings);

// Body of the children peak_memory() starts: `what` is "save" or "restore", the extra memory in bytes goes to `output`.
[[nodiscard]] Status measure_peak_memory(const Settings& settings, std::string_view what, const std::string& output);

struct Benchmark {
  std::string_view name;
  std::string_view help;
  Result<Report> (*run)(const Settings&);
};

[[nodiscard]] std::span<const Benchmark> all_benchmarks();

}  // namespace slackwater::bench
