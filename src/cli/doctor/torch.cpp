#include "cli/doctor/torch.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "cli/text.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr const char* kTorch = "torch";
constexpr int kNoPackage = 3;
constexpr const char* kFindPackage =
    "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('slackwater') else 3)";

// The last line that is not blank: of a traceback, that is the exception.
std::string last_line(std::string_view text) {
  const std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string_view::npos) return {};
  const std::size_t begin = text.rfind('\n', end);
  return std::string(text.substr(begin == std::string_view::npos ? 0 : begin + 1, end - begin));
}

}  // namespace

std::string find_python(const Settings& settings, const std::string& own_path) {
  if (!settings.python.empty()) return settings.python;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink(own_path, error);
  if (!error) {
    const std::string beside = (own.parent_path() / "python3").string();
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  return "python3";
}

void torch_checks(const Settings& settings, const std::string& directory, std::chrono::milliseconds time_limit,
                  HeldSignals& signals, const Emit& emit) {
  const std::string python = find_python(settings);
  const ChildEnd found = run_child({python, "-c", kFindPackage}, std::chrono::seconds(30), signals,
                                   [](std::string_view) { return false; });
  if (found.interrupted) return;
  if (!found.fine()) {
    Check check{.section = kTorch, .name = "python", .verdict = Verdict::kSkip};
    // Whoever names an interpreter expects it to work.
    if (!settings.python.empty()) check.verdict = Verdict::kFail;
    check.figure = found.exit_code == kNoPackage
                       ? fmt::format("{} has no package slackwater", python)
                       : fmt::format("{} {}: {}", python, found.text(), last_line(found.error_tail));
    check.remedy = "name the interpreter of your training with --python, or skip this with --no-torch";
    emit(std::move(check));
    return;
  }

  std::vector<std::string> command{python, "-m", "slackwater.doctor", "--dir", directory};
  if (settings.quick) command.emplace_back("--quick");
  std::string last_check = "none";
  const ChildEnd end = run_child(command, time_limit, signals, [&](std::string_view line) {
    auto check = parse_check(line);
    if (!check) return false;
    last_check = check->name;
    emit(std::move(*check));
    return true;
  });
  if (end.fine() || end.interrupted) return;
  Check check{.section = kTorch, .name = "python", .verdict = Verdict::kFail};
  check.figure = fmt::format(
      "{} -m slackwater.doctor {} after the check \"{}\"", python,
      end.timed_out ? fmt::format("did not end within {} s", time_limit.count() / 1000) : end.text(), last_check);
  if (!end.error_tail.empty()) check.figure += fmt::format("; its stderr ends with: {}", end.error_tail);
  check.remedy = end.timed_out ? "give it more time with --torch-timeout" : "report it with slackwater doctor --json";
  emit(std::move(check));
}

}  // namespace slackwater::cli::doctor
