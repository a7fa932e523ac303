// One index out of the parts that ranks made: by who speaks for a group, of its group; by the leader, of all. Most steps
// have the same parts as the one before, so that nothing is merged, nor sent, again. Thread rule: one thread (sw-commit).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "commit/ballot.hpp"
#include "commit/index.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct MergedIndex {
  std::string text;
  Digest128 digest;
  std::uint64_t tensor_count = 0;
  bool has_local = false;   // tensors of single ranks
  bool has_global = false;  // tensors that ranks hold together
};

// kMismatch names the first tensor whose boxes do not tile it, what is missing or stored twice, and the ranks.
[[nodiscard]] Status check_complete(std::span<const IndexEntry> entries);

enum class Reach : std::uint8_t {
  kGroup,     // others hold the rest of its global tensors
  kEverybody  // they must be complete
};

// Parts with their texts, by rank. Global tensors become one entry each. kMismatch names the tensor and the ranks that
// disagree about it, or as check_complete() does.
[[nodiscard]] Result<MergedIndex> merge_index(std::span<const IndexPart> parts, Reach reach);

// What a rank knows of the parts of those it hears, and what those who hear it know of its own.
class IndexLedger {
 public:
  // The index of these parts, of which those that were there at the last merge under this attempt need no text, whatever
  // came of that step. kMismatch names a rank whose part is not here: it sends it again after the step was given up.
  [[nodiscard]] Result<std::shared_ptr<const MergedIndex>> merge(std::uint32_t attempt, std::vector<IndexPart> parts,
                                                                 Reach reach);
  // Whether a part that is about to be sent needs its text: not if who hears it has it from the last commit.
  [[nodiscard]] bool needs_text(std::uint32_t attempt, const Digest128& digest);

  // How the step ended that needs_text() was asked for. Not committed: whatever went wrong, the next one says it all again.
  void committed() { known_ = said_; }
  void given_up() { known_.reset(); }

 private:
  struct Said {
    std::uint32_t attempt = 0;
    Digest128 digest;
    friend bool operator==(const Said&, const Said&) = default;
  };
  std::uint32_t attempt_ = 0;                  // of the last merge()
  std::vector<IndexPart> parts_;               // of it, by rank, with texts
  std::shared_ptr<const MergedIndex> merged_;  // of it
  std::optional<Said> known_;                  // to who hears this rank, since the last commit
  std::optional<Said> said_;                   // by the last needs_text()
};

}  // namespace slackwater
