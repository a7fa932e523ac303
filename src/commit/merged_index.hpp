// One index out of the parts that all ranks made. The leader's; most steps have the same parts as the one before, so that
// nothing is merged again. Thread rule: one thread (sw-commit).
#pragma once

#include <cstdint>
#include <memory>
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

// Parts with their texts, by rank. Global tensors become one entry each. kMismatch names the tensor and the ranks that
// disagree about it, or as check_complete() does.
[[nodiscard]] Result<MergedIndex> merge_index(std::span<const IndexPart> parts);

class IndexLedger {
 public:
  // The index of these parts, of which those that were there at the last commit of this attempt need no text. kMismatch
  // names a rank whose part is not here: it sends it again after the step was given up.
  [[nodiscard]] Result<std::shared_ptr<const MergedIndex>> merge(std::uint32_t attempt, std::vector<IndexPart> parts);
  // The step of the last merge() is committed: its parts are what the next ones are compared with.
  void keep();

 private:
  struct Page {
    std::uint32_t attempt = 0;
    std::vector<IndexPart> parts;  // by rank, with texts
    std::shared_ptr<const MergedIndex> merged;
  };
  Page kept_;
  Page last_;  // of the last merge(); no index: it is the one kept
};

}  // namespace slackwater
