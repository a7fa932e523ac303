// The section "torch": runs `PYTHON -m slackwater.doctor` and passes its lines on. The Python side gathers the results
// of all ranks itself and prints on rank 0 only.
// Thread rule: one thread.
#pragma once

#include <chrono>
#include <string>

#include "cli/doctor/check.hpp"
#include "cli/doctor/child.hpp"
#include "cli/doctor/settings.hpp"

namespace slackwater::cli::doctor {

// --python, else python3 beside this binary, else python3 in PATH.
[[nodiscard]] std::string find_python(const Settings& settings, const std::string& own_path = "/proc/self/exe");

// `directory`: where the child may write; the same one on all ranks.
void torch_checks(const Settings& settings, const std::string& directory, std::chrono::milliseconds time_limit,
                  HeldSignals& signals, const Emit& emit);

}  // namespace slackwater::cli::doctor
