// Vote: what a rank, or a group of ranks, reports about its part of one version: records that are durable, or why
// there are none. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "capture/replica_samples.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/error.hpp"
#include "version/manifest.hpp"

namespace slackwater {

// The records of consecutive ranks. Kept as the text that was received: a group leader of thousands only forwards it.
struct RecordRun {
  static constexpr std::size_t kDigits = 32;  // of a hexadecimal digest
  std::uint32_t first = 0;
  std::string digests;  // of the records, one after the other
  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(digests.size() / kDigits); }
};

// The part of the index of a rank, or of several consecutive ranks. The parent keeps it, so a part that has not changed
// since the last commit is sent as a digest only.
struct IndexPart {
  std::uint32_t rank = 0;   // the first of them, which leads the others
  std::uint32_t ranks = 1;  // how many ranks
  Digest128 digest;         // of the text
  std::string text;         // as serialize_index() made it; empty: the parent has it
};

// Digests of tensors that should be equal on all ranks of a replica group.
struct ReplicaDigests {
  std::vector<std::uint32_t> ranks;                        // that report these digests, in order
  std::vector<std::pair<std::string, Digest128>> tensors;  // by name, with the box: "weight[0:512]"
};

struct Vote {
  struct Failure {
    std::uint32_t rank = 0;
    std::string why;
    bool no_space = false;         // rank 0 then makes room for the next step; it alone deletes
    bool replicas_differ = false;  // every byte is then compared until they are equal again
  };
  std::vector<RecordRun> records;      // by rank, with gaps in between
  std::vector<IndexPart> index_parts;  // by rank; for all ranks that have records here
  std::uint64_t size_bytes = 0;        // of the data files
  // By replica group, one for each different list. Sent only until a commit has shown that the replicas are equal.
  std::map<std::string, std::vector<ReplicaDigests>> replicas;
  std::map<std::string, std::vector<ReplicaSamples>> samples;  // the same from samples, at every step
  std::vector<ReplicaSamples> replicated_values;               // plain values that should be equal on all ranks
  // Top-level members. nullopt: the value is not the same on all ranks.
  std::map<std::string, std::optional<Digest128>> values;
  std::vector<Failure> failures;  // empty: every rank that this vote covers is durable
};

[[nodiscard]] RecordRun run_of(std::uint32_t rank, const Digest128& digest);  // for one rank
// The record of each rank. `files` gives their names, which are not in the message. kCorrupt: a digest cannot be read;
// `path` is where.
[[nodiscard]] Result<std::vector<RecordReference>> references(const Vote& vote, const RankFiles& files,
                                                              const std::string& path);

[[nodiscard]] Message to_message(const Vote& vote);
[[nodiscard]] Result<Vote> parse_vote(const Message& message, const std::string& path);

// Merges two votes of different ranks. Each reports records or failures.
void merge(Vote& into, Vote from);

// One sentence that names ranks whose replicas differ, and the tensor or plain value. The latter is not named if only
// the digest over all of them shows the difference.
[[nodiscard]] std::optional<std::string> replica_mismatch(const Vote& vote);
[[nodiscard]] std::vector<std::string> rank_local_values(const Vote& vote);

// "rank 2: no space is left; ranks 4 to 7: did not report".
[[nodiscard]] std::string describe(const std::vector<Vote::Failure>& failures);

}  // namespace slackwater
