// MergedIndex: one index, made from the index parts of several ranks. A group leader merges the parts of its group.
// Rank 0 merges the parts of all ranks. Most steps have the same parts as the step before. Then nothing is merged or
// sent again.
// RankCommitter owns the IndexCache. Thread rule: one thread (sw-commit).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "ranks/vote.hpp"
#include "slackwater/error.hpp"
#include "version/index.hpp"
#include "version/manifest.hpp"

namespace slackwater {

struct MergedIndex {
  std::string text;
  Digest128 digest;
  std::uint64_t tensor_count = 0;
  bool has_local = false;   // there are tensors of single ranks
  bool has_global = false;  // there are tensors that ranks hold together
};

// kMismatch names the first tensor that its boxes do not tile, what is missing or stored twice, and the ranks.
[[nodiscard]] Status check_complete(std::span<const IndexEntry> entries);

enum class Scope : std::uint8_t {
  kGroup,      // other groups may hold the rest of a global tensor
  kEverybody,  // global tensors must be complete
};

// `parts`: by rank, with their texts. Each global tensor becomes one entry. kMismatch names the tensor and the ranks
// that disagree about it, or fails like check_complete().
[[nodiscard]] Result<MergedIndex> merge_index(std::span<const IndexPart> parts, Scope scope);

// Adds what the votes of all ranks and their index say to a manifest that decides to commit. `path`: for messages.
[[nodiscard]] Status fill_commit(Manifest& manifest, const Vote& votes, const MergedIndex& index,
                                 const RankFiles& files, const std::string& path);

// What a rank has of its children's parts, and what its parent has of this rank's own part.
class IndexCache {
 public:
  // Merges these parts. One that was part of the last merge under this attempt needs no text, however that step ended.
  // kMismatch names a rank whose text is missing here: it sends the text again once this step is given up.
  [[nodiscard]] Result<std::shared_ptr<const MergedIndex>> merge(std::uint32_t attempt, std::vector<IndexPart> parts,
                                                                 Scope scope);
  // Whether a part that is about to be sent needs its text. It does not if the parent has it from the last commit.
  [[nodiscard]] bool needs_text(std::uint32_t attempt, const Digest128& digest);

  // How the step ended for which needs_text() was called. If it was given up, for whatever reason, the next step sends
  // the text again.
  void committed() { parent_has_ = sent_; }
  void given_up() { parent_has_.reset(); }

 private:
  struct SentPart {
    std::uint32_t attempt = 0;
    Digest128 digest;
    friend bool operator==(const SentPart&, const SentPart&) = default;
  };
  std::uint32_t attempt_ = 0;                  // of the last merge()
  std::vector<IndexPart> parts_;               // of the last merge(), by rank, with texts
  std::shared_ptr<const MergedIndex> merged_;  // result of the last merge()
  std::optional<SentPart> parent_has_;         // since the last commit
  std::optional<SentPart> sent_;               // by the last needs_text()
};

}  // namespace slackwater
