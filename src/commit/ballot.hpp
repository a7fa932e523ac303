// Ballot: what a rank, or a group of ranks, says about its part of one version: records that are durable, or why there
// are none. Plain values; as a message it is JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "commit/manifest.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// A rank's part of the index. The leader keeps the parts of the last commit, so that one that has not changed since is
// only named.
struct IndexPart {
  std::uint32_t rank = 0;
  Digest128 digest;  // of the text
  std::string text;  // as serialize_index() made it; empty: the leader has it
};

// What ranks say about tensors that all ranks of their replica group should have alike.
struct ReplicaDigests {
  std::vector<std::uint32_t> ranks;                        // who say this, in order
  std::vector<std::pair<std::string, Digest128>> tensors;  // by name, which is that of the box: "weight[0:512]"
};

struct Ballot {
  struct Failure {
    std::uint32_t rank = 0;
    std::string why;
  };
  std::vector<RecordReference> records;  // by rank
  std::vector<IndexPart> index_parts;    // by rank, one for each record
  std::uint64_t size_bytes = 0;          // of the data files
  // By replica group, one for each thing that was said. Only until a commit has shown that replicas are alike.
  std::map<std::string, std::vector<ReplicaDigests>> replicas;
  // Members at the top of the tree. No digest: it is not the same on all ranks.
  std::map<std::string, std::optional<Digest128>> values;
  std::vector<Failure> failures;  // none: every rank this speaks for is durable
};

[[nodiscard]] Json to_json(const Ballot& ballot);
// `files`: what the records are called, which a message does not say.
[[nodiscard]] Result<Ballot> parse_ballot(const Json& json, const std::string& path, const RankFiles& files = {});

// Both speak for ranks that saved, or tell of failures.
void merge(Ballot& into, Ballot from);

// One sentence that names tensor and ranks, if a group's ranks do not hold the same.
[[nodiscard]] std::optional<std::string> replica_mismatch(const Ballot& ballot);
[[nodiscard]] std::vector<std::string> rank_local_values(const Ballot& ballot);

// "rank 2: no space is left; ranks 4 to 7: did not report".
[[nodiscard]] std::string describe(const std::vector<Ballot::Failure>& failures);

}  // namespace slackwater
