// Ballot: what a rank, or a group of ranks, says about its part of one version: records that are durable, or why there
// are none. Plain values; as a message it is JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "commit/manifest.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct Ballot {
  struct Failure {
    std::uint32_t rank = 0;
    std::string why;
  };
  std::vector<RecordReference> records;  // by rank
  std::vector<std::string> index_parts;  // as serialize_index() made them, one for each record
  std::uint64_t size_bytes = 0;          // of the data files
  std::uint64_t tensor_count = 0;
  std::vector<Failure> failures;  // none: every rank this speaks for is durable
};

[[nodiscard]] Json to_json(const Ballot& ballot);
[[nodiscard]] Result<Ballot> parse_ballot(const Json& json, const std::string& path);

void merge(Ballot& into, Ballot from);

// One index out of all parts. kCorrupt names the part that cannot be read, or a tensor that two ranks have.
[[nodiscard]] Result<std::string> merge_index(const Ballot& ballot);

// "rank 2: no space is left; ranks 4 to 7: did not report".
[[nodiscard]] std::string describe(const std::vector<Ballot::Failure>& failures);

}  // namespace slackwater
