#include "version/manifest.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kCommitText = "commit";
constexpr std::string_view kAbortText = "abort";

constexpr std::array<std::string_view, 3> kKnownFeatures{kRankLocalFeature, kGlobalTensorsFeature,
                                                         kSubdirectoriesFeature};

Result<std::vector<std::string>> parse_features(const Json& json, const std::string& path) {
  SW_ASSIGN(std::vector<std::string> features, json_strings(json, "required_features", path));
  for (const std::string& feature : features) {
    if (std::ranges::find(kKnownFeatures, feature) != kKnownFeatures.end()) continue;
    return fail(
        ErrorKind::kUnsupported,
        fmt::format(
            "the checkpoint needs the feature '{}', which this build of Slackwater does not have; use a newer build",
            feature),
        path);
  }
  return features;
}

// The field is absent if there are no subdirectories. The feature goes with it: without it, an older reader would take
// subdirectories for damage.
Result<RankFiles> parse_files(const Json& json, const std::vector<std::string>& features, const std::string& path) {
  RankFiles files;
  const bool given = json.contains("ranks_in_directory");
  if (given) {
    SW_ASSIGN(files.ranks_in_directory, json_u32(json, "ranks_in_directory", path));
    if (files.ranks_in_directory == 0) return corrupt("field 'ranks_in_directory' is 0", path);
  }
  if (given != (std::ranges::find(features, kSubdirectoriesFeature) != features.end())) {
    return corrupt(
        fmt::format("the feature '{}' and the field 'ranks_in_directory' belong together, but one is missing",
                    kSubdirectoriesFeature),
        path);
  }
  return files;
}

// The field is absent if there are no metrics. A value that is not finite is null: JSON cannot express it.
Result<std::map<std::string, double>> parse_metrics(const Json& json, const std::string& path) {
  std::map<std::string, double> metrics;
  if (!json.contains("metrics")) return metrics;
  SW_ASSIGN(const Json* object, json_object(json, "metrics", path));
  for (const auto& [name, value] : object->items()) {
    if (!value.is_number() && !value.is_null())
      return corrupt(fmt::format("the metric '{}' is not a number", name), path);
    metrics.emplace(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return metrics;
}

Result<Decision> parse_decision(const Json& json, const std::string& path) {
  SW_ASSIGN(const std::string text, json_string(json, "decision", path));
  if (text == kCommitText) return Decision::kCommit;
  if (text == kAbortText) return Decision::kAbort;
  return corrupt(fmt::format("field 'decision' is '{}', neither commit nor abort", text), path);
}

Result<RecordReference> parse_reference(const Json& json, const std::string& path) {
  RecordReference reference;
  SW_ASSIGN(reference.rank, json_u32(json, "rank", path));
  SW_ASSIGN(reference.file, json_string(json, "file", path));
  if (!stays_in_version(reference.file)) {
    return corrupt(fmt::format("the record name '{}' leaves the directory of its version", reference.file), path);
  }
  SW_ASSIGN(reference.digest, json_digest(json, "digest", path));
  return reference;
}

// A commit names the record of each rank, in the order of the ranks.
Status check_records(const Manifest& manifest, const std::string& path) {
  if (manifest.decision == Decision::kAbort) return {};
  if (manifest.records.size() != manifest.world) {
    return corrupt(fmt::format("the manifest names {} records for {} ranks", manifest.records.size(), manifest.world),
                   path);
  }
  for (std::uint32_t rank = 0; rank < manifest.world; ++rank) {
    const RecordReference& record = manifest.records[rank];
    if (record.rank != rank)
      return corrupt(fmt::format("the manifest does not name the record of rank {}", rank), path);
    if (record.file != manifest.files.record(rank)) {
      return corrupt(fmt::format("the manifest names '{}' as the record of rank {}, but that must be '{}'", record.file,
                                 rank, manifest.files.record(rank)),
                     path);
    }
  }
  return {};
}

}  // namespace

std::string serialize(const Manifest& manifest) {
  Json records = Json::array();
  for (const RecordReference& record : manifest.records) {
    records.push_back({{"rank", record.rank}, {"file", record.file}, {"digest", to_hex(record.digest)}});
  }
  Json json = {{"format", manifest.format},
               {"required_features", manifest.required_features},
               {"run", manifest.run},
               {"step", manifest.step},
               {"attempt", manifest.attempt},
               {"world", manifest.world},
               {"decision", manifest.decision == Decision::kCommit ? kCommitText : kAbortText},
               {"reason", manifest.reason},
               {"records", std::move(records)},
               {"index_digest", to_hex(manifest.index_digest)},
               {"size_bytes", manifest.size_bytes},
               {"tensor_count", manifest.tensor_count},
               {"created_unix_ms", std::max<std::int64_t>(manifest.created_unix_ms, 0)}};
  if (manifest.files.ranks_in_directory != 0) json["ranks_in_directory"] = manifest.files.ranks_in_directory;
  if (!manifest.rank_local_values.empty()) json["rank_local_values"] = manifest.rank_local_values;
  if (!manifest.metrics.empty()) {
    Json& metrics = json["metrics"] = Json::object();
    for (const auto& [name, value] : manifest.metrics)
      metrics[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  }
  return seal_json(json);
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path) {
  SW_ASSIGN(const Json json, open_sealed_json(text, path));
  Manifest manifest;
  SW_TRY(check_format(json, kFormat, "manifest", path));
  SW_ASSIGN(manifest.required_features, parse_features(json, path));
  SW_ASSIGN(manifest.run, json_string(json, "run", path));
  SW_ASSIGN(manifest.step, json_u64(json, "step", path));
  SW_ASSIGN(manifest.attempt, json_u32(json, "attempt", path));
  SW_ASSIGN(manifest.world, json_u32(json, "world", path));
  SW_ASSIGN(manifest.decision, parse_decision(json, path));
  SW_ASSIGN(manifest.reason, json_string(json, "reason", path));
  SW_ASSIGN(manifest.files, parse_files(json, manifest.required_features, path));
  SW_ASSIGN(const Json* records, json_array(json, "records", path));
  for (const Json& entry : *records) {
    SW_ASSIGN(RecordReference reference, parse_reference(entry, path));
    manifest.records.push_back(std::move(reference));
  }
  SW_TRY(check_records(manifest, path));
  if (json.contains("rank_local_values")) {
    SW_ASSIGN(manifest.rank_local_values, json_strings(json, "rank_local_values", path));
  }
  SW_ASSIGN(manifest.index_digest, json_digest(json, "index_digest", path));
  SW_ASSIGN(manifest.size_bytes, json_u64(json, "size_bytes", path));
  SW_ASSIGN(manifest.tensor_count, json_u64(json, "tensor_count", path));
  SW_ASSIGN(manifest.created_unix_ms, json_time(json, "created_unix_ms", path));
  SW_ASSIGN(manifest.metrics, parse_metrics(json, path));
  return manifest;
}

}  // namespace slackwater
