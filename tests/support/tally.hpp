// report_tally: reports what a harness tried and lost, for the table of `make soak`. It appends one line to the file
// that SLACKWATER_TALLIES names, if it is set.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace slackwater::test {

inline void report_tally(std::string_view what, std::uint64_t tried, std::uint64_t lost) {
  const char* path = std::getenv("SLACKWATER_TALLIES");
  if (path != nullptr && *path != '\0')
    std::ofstream(path, std::ios::app) << what << '\t' << tried << '\t' << lost << '\n';
}

}  // namespace slackwater::test
