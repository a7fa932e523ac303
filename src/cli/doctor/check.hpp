// Check: one line of `slackwater doctor`. It travels as one JSON object per line from the worker processes and from the
// Python child to the process that prints it.
// Plain values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/json_output.hpp"

namespace slackwater::cli::doctor {

enum class Verdict : std::uint8_t { kPass, kWarn, kFail, kSkip };

struct Check {
  std::string section;  // "machine"
  std::string name;     // "memlock"
  Verdict verdict = Verdict::kPass;
  std::string figure;     // what was found
  std::string threshold;  // what is wanted
  std::string remedy;     // what to do about a WARN or FAIL; a command where there is one
  int rank = 0;
  OrderedJson values = nullptr;  // figures for --json that a line has no room for; null: none
};

using Emit = std::function<void(Check)>;

// Where WARN and FAIL begin.
struct Band {
  double warn = 0;
  double fail = 0;
};
[[nodiscard]] Verdict at_least(double value, Band band);
[[nodiscard]] Verdict at_most(double value, Band band);
// A short run (--quick) measures too little for a FAIL.
[[nodiscard]] Verdict soften(Verdict verdict, bool quick);

[[nodiscard]] std::string_view verdict_name(Verdict verdict);  // "PASS"
[[nodiscard]] OrderedJson check_json(const Check& check);
// nullopt if the line is not a check.
[[nodiscard]] std::optional<Check> parse_check(std::string_view line);
// One line for people: "PASS  machine  memlock  unlimited (expected: 1 GiB)".
[[nodiscard]] std::string check_text(const Check& check, bool with_rank);

}  // namespace slackwater::cli::doctor
