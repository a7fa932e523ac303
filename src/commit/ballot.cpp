#include "commit/ballot.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/coordinator.hpp"
#include "commit/fields.hpp"
#include "commit/index.hpp"
#include "commit/names.hpp"

namespace slackwater {

Json to_json(const Ballot& ballot) {
  Json records = Json::array();
  for (const RecordReference& record : ballot.records) {
    records.push_back({{"rank", record.rank}, {"digest", to_hex(record.digest)}});
  }
  Json failures = Json::array();
  for (const Ballot::Failure& failure : ballot.failures) {
    failures.push_back({{"rank", failure.rank}, {"why", failure.why}});
  }
  return {{"records", std::move(records)},
          {"index_parts", ballot.index_parts},
          {"size_bytes", ballot.size_bytes},
          {"tensor_count", ballot.tensor_count},
          {"failures", std::move(failures)}};
}

Result<Ballot> parse_ballot(const Json& json, const std::string& path) {
  Ballot ballot;
  SW_ASSIGN(const Json* records, json_array(json, "records", path));
  for (const Json& entry : *records) {
    RecordReference record;
    SW_ASSIGN(record.rank, json_u32(entry, "rank", path));
    record.file = record_file(record.rank);
    SW_ASSIGN(record.digest, json_digest(entry, "digest", path));
    ballot.records.push_back(std::move(record));
  }
  SW_ASSIGN(const Json* parts, json_array(json, "index_parts", path));
  for (const Json& part : *parts) {
    if (!part.is_string()) return corrupt("a part of the index is not a text", path);
    ballot.index_parts.push_back(part.get<std::string>());
  }
  SW_ASSIGN(ballot.size_bytes, json_u64(json, "size_bytes", path));
  SW_ASSIGN(ballot.tensor_count, json_u64(json, "tensor_count", path));
  SW_ASSIGN(const Json* failures, json_array(json, "failures", path));
  for (const Json& entry : *failures) {
    Ballot::Failure failure;
    SW_ASSIGN(failure.rank, json_u32(entry, "rank", path));
    SW_ASSIGN(failure.why, json_string(entry, "why", path));
    ballot.failures.push_back(std::move(failure));
  }
  return ballot;
}

void merge(Ballot& into, Ballot from) {
  std::ranges::move(from.records, std::back_inserter(into.records));
  std::ranges::sort(into.records, {}, &RecordReference::rank);
  std::ranges::move(from.index_parts, std::back_inserter(into.index_parts));
  into.size_bytes += from.size_bytes;
  into.tensor_count += from.tensor_count;
  std::ranges::move(from.failures, std::back_inserter(into.failures));
}

Result<std::string> merge_index(const Ballot& ballot) {
  std::vector<IndexEntry> all;
  for (const std::string& part : ballot.index_parts) {
    SW_ASSIGN(std::vector<IndexEntry> entries, parse_index(part, "a rank's part of the index"));
    std::ranges::move(entries, std::back_inserter(all));
  }
  std::string text = serialize_index(all);
  SW_TRY(parse_index(text, "the index of all ranks"));  // two ranks must not have one name
  return text;
}

std::string describe(const std::vector<Ballot::Failure>& failures) {
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> reasons;  // in the order they came
  for (const Ballot::Failure& failure : failures) {
    const auto same = std::ranges::find(reasons, failure.why, [](const auto& reason) { return reason.first; });
    if (same != reasons.end()) {
      same->second.push_back(failure.rank);
    } else {
      reasons.push_back({failure.why, {failure.rank}});
    }
  }
  std::string text;
  for (const auto& [why, ranks] : reasons)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name_ranks(ranks), why);
  return text;
}

}  // namespace slackwater
