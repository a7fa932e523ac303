// Ballot: what a rank, or a group of ranks, says about its part of one version: records that are durable, or why there
// are none. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "commit/coordinator.hpp"
#include "commit/manifest.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// The records of ranks that follow each other. Kept as the text they come in: a speaker of thousands only passes it on.
struct RecordRun {
  static constexpr std::size_t kDigits = 32;  // hexadecimal, of a digest
  std::uint32_t first = 0;
  std::string digests;  // of each rank's, one behind the other
  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(digests.size() / kDigits); }
};

// The part of the index of a rank, or of several that follow each other. Who hears it keeps it, so that one that
// has not changed since the last commit is only named.
struct IndexPart {
  std::uint32_t rank = 0;   // the first, who speaks for the others
  std::uint32_t ranks = 1;  // how many
  Digest128 digest;         // of the text
  std::string text;         // as serialize_index() made it; empty: who hears this has it
};

// What ranks say about tensors that all ranks of their replica group should have alike.
struct ReplicaDigests {
  std::vector<std::uint32_t> ranks;                        // who say this, in order
  std::vector<std::pair<std::string, Digest128>> tensors;  // by name, which is that of the box: "weight[0:512]"
};

// What ranks saw of tensors or values that they should have alike: all bytes of small ones, samples of large ones. Said
// with every vote, so it has the same size however many there are: one digest of all, and a few by name.
struct ReplicaSamples {
  std::vector<std::uint32_t> ranks;  // who say this, in order
  std::uint64_t list = 0;            // which ones were looked at; only ranks that looked at the same are compared
  std::uint64_t count = 0;           // how many
  Digest128 all;                     // of all of them
  std::vector<std::pair<std::string, std::uint64_t>> some;  // digests of a few, by name; other ones at each step
};

struct Ballot {
  struct Failure {
    std::uint32_t rank = 0;
    std::string why;
    bool no_space = false;         // rank 0, which alone deletes, then makes room for the next step
    bool replicas_differ = false;  // every byte is compared until they are alike again
  };
  std::vector<RecordRun> records;      // by rank, with gaps between them
  std::vector<IndexPart> index_parts;  // by rank; of all the ranks that have records here
  std::uint64_t size_bytes = 0;        // of the data files
  // By replica group, one for each thing that was said. Only until a commit has shown that replicas are alike.
  std::map<std::string, std::vector<ReplicaDigests>> replicas;
  std::map<std::string, std::vector<ReplicaSamples>> samples;  // the same, at every step
  std::vector<ReplicaSamples> replicated_values;               // plain values that all ranks should have alike
  // Members at the top of the tree. No digest: it is not the same on all ranks.
  std::map<std::string, std::optional<Digest128>> values;
  std::vector<Failure> failures;  // none: every rank this speaks for is durable
};

[[nodiscard]] RecordRun run_of(std::uint32_t rank, const Digest128& digest);  // of one rank
// Of each rank. `files`: what the records are called, which a message does not say. kCorrupt: what a rank sent are no
// digests; `path` names the place.
[[nodiscard]] Result<std::vector<RecordReference>> references(const Ballot& ballot, const RankFiles& files,
                                                              const std::string& path);

[[nodiscard]] Message to_message(const Ballot& ballot);
[[nodiscard]] Result<Ballot> parse_ballot(const Message& message, const std::string& path);

// Both speak for ranks that saved, or tell of failures.
void merge(Ballot& into, Ballot from);

// One sentence that names ranks that do not hold the same, and the tensor or plain value; not that, if only the digest
// of all shows it.
[[nodiscard]] std::optional<std::string> replica_mismatch(const Ballot& ballot);
[[nodiscard]] std::vector<std::string> rank_local_values(const Ballot& ballot);

// "rank 2: no space is left; ranks 4 to 7: did not report".
[[nodiscard]] std::string describe(const std::vector<Ballot::Failure>& failures);

}  // namespace slackwater
