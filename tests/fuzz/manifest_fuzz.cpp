// The manifest. Input: its text without the closing digest.
#include <algorithm>
#include <string>

#include "fuzz.hpp"
#include "version/manifest.hpp"
#include "version/names.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  fuzz::round_trip(
      fuzz::text_of(data, size), [](std::string_view text) { return parse_manifest(text, "manifest"); },
      [](const Manifest& manifest) { return serialize(manifest); },
      [](const Manifest& manifest) {
        const auto known = [](const std::string& feature) {
          return feature == kRankLocalFeature || feature == kGlobalTensorsFeature || feature == kSubdirectoriesFeature;
        };
        fuzz::require(manifest.format == kFormat && std::ranges::all_of(manifest.required_features, known),
                      "unknown formats are refused");
        fuzz::require(manifest.created_unix_ms >= 0, "times are not negative");
        for (const RecordReference& record : manifest.records)
          fuzz::require(stays_in_version(record.file), "names stay in the directory");
        if (manifest.decision == Decision::kAbort) return;
        fuzz::require(manifest.records.size() == manifest.world, "a commit has a record for each rank");
        for (std::uint32_t rank = 0; rank < manifest.world; ++rank) {
          fuzz::require(manifest.records[rank].rank == rank, "records are in the order of the ranks");
          fuzz::require(manifest.records[rank].file == manifest.files.record(rank), "each lies in its own directory");
        }
      });
  return 0;
}
