// The subcommands of slackwater_bench with options of their own, and what they share.
// Exit codes: those of the command `slackwater` (cli/verbs.hpp).
#pragma once

#include <string>
#include <vector>

#include "bench/verdict.hpp"
#include "cli/json_output.hpp"
#include "cli/verbs.hpp"
#include "slackwater/error.hpp"

namespace slackwater::bench {

[[nodiscard]] cli::Verb add_lazy(CLI::App& parser);
[[nodiscard]] cli::Verb add_backlog(CLI::App& parser);
[[nodiscard]] cli::Verb add_commit(CLI::App& parser);

// One line on the terminal that is rewritten. Prints nothing if stderr is not a terminal.
void show_progress(const std::string& what);

// Prints the error. Returns its exit code: 1 for a wrong byte, 2 for anything else.
[[nodiscard]] int report_failure(const Error& error);

[[nodiscard]] cli::OrderedJson verdicts_json(const std::vector<Verdict>& verdicts);
// The last step: writes the figures to `json_file`, unless it is empty. Returns the exit code; with `strict`, a missed
// goal is a failure.
[[nodiscard]] int finish(const std::vector<Verdict>& verdicts, const cli::OrderedJson& json,
                         const std::string& json_file, bool strict);

}  // namespace slackwater::bench
