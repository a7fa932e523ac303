// What the verbs below `slackwater bench` share.
#pragma once

#include <string>

#include "cli/json_output.hpp"
#include "cli/verbs.hpp"

namespace slackwater::cli {

[[nodiscard]] Verb add_bench_commit(CLI::App& bench);

// One line on the terminal that is rewritten; nothing where stderr is not one.
void show_progress(const std::string& what);
[[nodiscard]] bool write_json(const std::string& path, const OrderedJson& json);

}  // namespace slackwater::cli
