// The command line of the slackwater binary: its verbs, its help, its exit codes. It is apart from main() so that the
// folder compiles CLI11 once: that takes longer than everything else here.
#pragma once

namespace slackwater::cli {

// Parses the arguments and runs the verb. Returns the exit code (cli/verbs.hpp); throws nothing.
[[nodiscard]] int run_command_line(int argc, char** argv);

}  // namespace slackwater::cli
