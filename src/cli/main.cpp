// The slackwater binary. ls, show and verify only read, take no lock, and may run while a trainer runs. So may pin. rm
// and gc take the lock. doctor touches no checkpoint.
#include "cli/command_line.hpp"

int main(int argc, char** argv) { return slackwater::cli::run_command_line(argc, argv); }
