// Manifest: the one decision about a version on a tier, commit or abort. Sealed JSON, published exclusively, last of
// all files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "commit/names.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr std::uint32_t kFormat = 1;

// Required where several ranks stored tensors of their own: a name then means another tensor on each rank.
inline constexpr const char* kRankLocalFeature = "rank-local";
// Required where tensors lie in parts, as boxes that only together are the whole.
inline constexpr const char* kGlobalTensorsFeature = "global-tensors";
// Required where the files of the ranks lie in subdirectories. VersionStore::decide() adds it.
inline constexpr const char* kSubdirectoriesFeature = "subdirectories";

enum class Decision : std::uint8_t { kCommit, kAbort };

struct RecordReference {
  std::uint32_t rank = 0;
  std::string file;
  Digest128 digest;  // of the record file's exact bytes
};

struct Manifest {
  std::uint32_t format = kFormat;
  std::vector<std::string> required_features;  // a reader that does not know one of them refuses, by name
  std::string run;
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t world = 1;
  Decision decision = Decision::kCommit;
  std::string reason;  // of an abort
  std::vector<RecordReference> records;
  std::vector<std::string> rank_local_values;  // members at the top of the tree that differ between the ranks
  RankFiles files = {};                        // where the ranks' files lie
  Digest128 index_digest;
  std::uint64_t size_bytes = 0;  // of all data files
  std::uint64_t tensor_count = 0;
  std::int64_t created_unix_ms = 0;
  std::map<std::string, double> metrics = {};  // State::metrics of rank 0
};

[[nodiscard]] std::string serialize(const Manifest& manifest);
// kUnsupported names the format or feature; kCorrupt the field.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, const std::string& path);

}  // namespace slackwater
