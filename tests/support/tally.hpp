// report_tally: what a harness tried and lost, for the table of `make soak`: one line in the file that SLACKWATER_TALLIES names, if
// it names one.
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
