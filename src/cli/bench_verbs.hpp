// What the verbs below `slackwater bench` share.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_lazy.hpp"
#include "cli/json_output.hpp"
#include "cli/verbs.hpp"

namespace slackwater::cli {

[[nodiscard]] Verb add_bench_commit(CLI::App& bench);

// One line on the terminal that is rewritten; nothing where stderr is not one.
void show_progress(const std::string& what);

[[nodiscard]] OrderedJson verdicts_json(const std::vector<Verdict>& verdicts);
// The end of a bench: writes the figures where `json_file` names a file. The exit code; with `strict` that of missed goals.
[[nodiscard]] int finish_bench(const std::vector<Verdict>& verdicts, const OrderedJson& json,
                               const std::string& json_file, bool strict);

}  // namespace slackwater::cli
