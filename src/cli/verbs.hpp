// The verbs of the command line. add_<verb>() is in <verb>.cpp: it declares the verb's arguments, and
// run_command_line() calls run() if the user chose it.
// Data goes to stdout, messages to stderr. Exit codes: 0 fine, 1 damage found, 2 wrong usage, refused, or nothing there
// that can be read.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace slackwater::cli {

enum ExitCode : int { kFine = 0, kDamaged = 1, kFailed = 2 };

struct Verb {
  CLI::App* parser = nullptr;  // owned by the parser it was added to
  std::function<int()> run;
};

[[nodiscard]] Verb add_ls(CLI::App& parser);
[[nodiscard]] Verb add_show(CLI::App& parser);
[[nodiscard]] Verb add_verify(CLI::App& parser);
[[nodiscard]] Verb add_copy(CLI::App& parser);
[[nodiscard]] Verb add_rm(CLI::App& parser);
[[nodiscard]] Verb add_pin(CLI::App& parser);
[[nodiscard]] Verb add_gc(CLI::App& parser);
[[nodiscard]] Verb add_import(CLI::App& parser);
[[nodiscard]] Verb add_export(CLI::App& parser);
[[nodiscard]] Verb add_doctor(CLI::App& parser);
[[nodiscard]] Verb add_keeper(CLI::App& parser);

}  // namespace slackwater::cli
