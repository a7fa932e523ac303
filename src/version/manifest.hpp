// Manifest: the one decision about a version on a tier: commit or abort. It is sealed JSON, published exclusively, and
// the last file of a version to appear. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

inline constexpr std::uint32_t kFormat = 1;

// Required if several ranks stored tensors of their own: a name then means a different tensor on each rank.
inline constexpr const char* kRankLocalFeature = "rank-local";
// Required if tensors are stored in parts, as boxes that tile them.
inline constexpr const char* kGlobalTensorsFeature = "global-tensors";
// Required if the ranks' files are in subdirectories. VersionStore::decide() adds it.
inline constexpr const char* kSubdirectoriesFeature = "subdirectories";

enum class Decision : std::uint8_t { kCommit, kAbort };

struct RecordReference {
  std::uint32_t rank = 0;
  std::string file;
  Digest128 digest;  // of the record file's exact bytes
};

struct Manifest {
  std::uint32_t format = kFormat;
  std::vector<std::string> required_features;  // a reader that does not know one of them refuses, and names it
  std::string run;
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t world = 1;
  Decision decision = Decision::kCommit;
  std::string reason;  // of an abort
  std::vector<RecordReference> records;
  std::vector<std::string> rank_local_values;  // top-level members that differ between the ranks
  RankFiles files = {};                        // where the ranks' files are
  Digest128 index_digest;
  std::uint64_t size_bytes = 0;  // of all data files
  std::uint64_t tensor_count = 0;
  std::int64_t created_unix_ms = 0;
  std::map<std::string, double> metrics = {};  // State::metrics of rank 0
};

[[nodiscard]] std::string serialize(const Manifest& manifest);
// kUnsupported names the format or feature; kCorrupt names the field.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, const std::string& path);

}  // namespace slackwater
