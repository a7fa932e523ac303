#include "ranks/vote.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/options.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

using Digests = std::vector<std::pair<std::string, Digest128>>;

Json replicas_to_json(const Vote& vote) {
  Json replicas = Json::array();
  for (const auto& [group, reports] : vote.replicas) {
    for (const ReplicaDigests& digests : reports) {
      Json tensors = Json::object();
      for (const auto& [name, digest] : digests.tensors) tensors[name] = to_hex(digest);
      replicas.push_back({{"group", group}, {"ranks", digests.ranks}, {"tensors", std::move(tensors)}});
    }
  }
  return replicas;
}

// Runs of ranks with equal distances, like those of one dimension of a mesh: [first, distance, count].
Json ranks_to_json(const std::vector<std::uint32_t>& ranks) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < ranks.size();) {
    const std::uint32_t apart = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 1;
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == apart) ++end;
    runs.push_back({ranks[i], apart, end - i});
    i = end;
  }
  return runs;
}

Result<std::vector<std::uint32_t>> parse_ranks(const Json& json, const std::string& path) {
  std::vector<std::uint32_t> ranks;
  SW_ASSIGN(const Json* runs, json_array(json, "ranks", path));
  for (const Json& run : *runs) {
    if (!run.is_array() || run.size() != 3 || !std::ranges::all_of(run, &Json::is_number_unsigned))
      return corrupt("a run of ranks is not three whole numbers", path);
    const auto first = run[0].get<std::uint64_t>();
    const auto apart = run[1].get<std::uint64_t>();
    const auto count = run[2].get<std::uint64_t>();
    if (first >= kMaxWorld || apart > kMaxWorld || count > kMaxWorld || ranks.size() + count > kMaxWorld ||
        first + apart * count > 2 * std::uint64_t{kMaxWorld})
      return corrupt("a run of ranks is longer than a world can be", path);
    for (std::uint64_t i = 0; i < count; ++i) ranks.push_back(static_cast<std::uint32_t>(first + i * apart));
  }
  return ranks;
}

Json samples_to_json(const ReplicaSamples& samples) {
  Json some = Json::object();
  for (const auto& [name, digest] : samples.some) some[name] = digest;
  return {{"ranks", ranks_to_json(samples.ranks)},
          {"list", samples.list},
          {"count", samples.count},
          {"all", to_hex(samples.all)},
          {"some", std::move(some)}};
}

Result<ReplicaSamples> parse_samples(const Json& json, const std::string& path) {
  ReplicaSamples samples;
  SW_ASSIGN(samples.ranks, parse_ranks(json, path));
  SW_ASSIGN(samples.list, json_u64(json, "list", path));
  SW_ASSIGN(samples.count, json_u64(json, "count", path));
  SW_ASSIGN(samples.all, json_digest(json, "all", path));
  SW_ASSIGN(const Json* some, json_object(json, "some", path));
  for (const auto& [name, digest] : some->items()) {  // sorted by name
    if (!digest.is_number_unsigned()) return corrupt("the digest of a sample is not a whole number", path);
    samples.some.emplace_back(name, digest.get<std::uint64_t>());
  }
  return samples;
}

Result<Digest128> parse_hex(const Json& hex, const std::string& path) {
  const auto digest = hex.is_string() ? digest128_from_hex(hex.get_ref<const std::string&>()) : std::nullopt;
  if (!digest) return corrupt("a digest is not 32 hexadecimal digits", path);
  return *digest;
}

// Takes the next piece off the attachment of a message.
Result<std::string> take_attached(std::string_view& rest, std::uint64_t bytes, const std::string& path) {
  if (bytes > rest.size()) return corrupt("the attachment of a vote is too short", path);
  std::string piece(rest.substr(0, bytes));
  rest.remove_prefix(bytes);
  return piece;
}

Status parse_records(const Json& json, std::string_view& attached, Vote& vote, const std::string& path) {
  SW_ASSIGN(const Json* runs, json_array(json, "records", path));
  for (const Json& entry : *runs) {
    RecordRun run;
    SW_ASSIGN(run.first, json_u32(entry, "first", path));
    SW_ASSIGN(const std::uint32_t ranks, json_u32(entry, "ranks", path));
    SW_ASSIGN(run.digests, take_attached(attached, std::uint64_t{ranks} * RecordRun::kDigits, path));
    vote.records.push_back(std::move(run));
  }
  return {};
}

Status parse_index_parts(const Json& json, std::string_view& attached, Vote& vote, const std::string& path) {
  SW_ASSIGN(const Json* parts, json_array(json, "index_parts", path));
  for (const Json& entry : *parts) {
    IndexPart part;
    SW_ASSIGN(part.rank, json_u32(entry, "rank", path));
    SW_ASSIGN(part.ranks, json_u32(entry, "ranks", path));
    SW_ASSIGN(part.digest, json_digest(entry, "digest", path));
    SW_ASSIGN(const std::uint64_t bytes, json_u64(entry, "bytes", path));
    SW_ASSIGN(part.text, take_attached(attached, bytes, path));
    vote.index_parts.push_back(std::move(part));
  }
  return {};
}

Status parse_replicas(const Json& json, Vote& vote, const std::string& path) {
  SW_ASSIGN(const Json* replicas, json_array(json, "replicas", path));
  for (const Json& entry : *replicas) {
    SW_ASSIGN(const std::string group, json_string(entry, "group", path));
    ReplicaDigests& digests = vote.replicas[group].emplace_back();
    SW_ASSIGN(const Json* ranks, json_array(entry, "ranks", path));
    for (const Json& rank : *ranks) {
      if (!rank.is_number_unsigned()) return corrupt("a rank is not a whole number", path);
      digests.ranks.push_back(rank.get<std::uint32_t>());
    }
    SW_ASSIGN(const Json* tensors, json_object(entry, "tensors", path));
    for (const auto& [name, hex] : tensors->items()) {  // sorted by name
      SW_ASSIGN(const Digest128 digest, parse_hex(hex, path));
      digests.tensors.emplace_back(name, digest);
    }
  }
  return {};
}

Status parse_all_samples(const Json& json, Vote& vote, const std::string& path) {
  SW_ASSIGN(const Json* groups, json_array(json, "samples", path));
  for (const Json& entry : *groups) {
    SW_ASSIGN(const std::string group, json_string(entry, "group", path));
    SW_ASSIGN(vote.samples[group].emplace_back(), parse_samples(entry, path));
  }
  SW_ASSIGN(const Json* values, json_array(json, "replicated_values", path));
  for (const Json& entry : *values) {
    SW_ASSIGN(vote.replicated_values.emplace_back(), parse_samples(entry, path));
  }
  return {};
}

Status parse_values(const Json& json, Vote& vote, const std::string& path) {
  SW_ASSIGN(const Json* values, json_object(json, "values", path));
  for (const auto& [name, hex] : values->items()) {
    std::optional<Digest128>& value = vote.values[name];
    if (hex.is_null()) continue;
    SW_ASSIGN(value, parse_hex(hex, path));
  }
  return {};
}

void merge_records(std::vector<RecordRun>& into, std::vector<RecordRun>& from) {
  std::ranges::move(from, std::back_inserter(into));
  std::ranges::sort(into, {}, &RecordRun::first);
  std::vector<RecordRun> joined;
  for (RecordRun& run : into) {
    if (!joined.empty() && joined.back().first + joined.back().ranks() == run.first) {
      joined.back().digests += run.digests;
    } else {
      joined.push_back(std::move(run));
    }
  }
  into = std::move(joined);
}

// Reports that are equal become one, with the ranks of both.
template <class Report, class Equal>
void merge_reports(std::vector<Report>& known, std::vector<Report>& more, const Equal& equal) {
  for (Report& report : more) {
    const auto same = std::ranges::find_if(known, [&](const Report& other) { return equal(other, report); });
    if (same == known.end()) {
      known.push_back(std::move(report));
    } else {
      std::ranges::copy(report.ranks, std::back_inserter(same->ranks));
      std::ranges::sort(same->ranks);
    }
  }
}

void merge_replicas(Vote& into, Vote& from) {
  const auto same_samples = [](const ReplicaSamples& a, const ReplicaSamples& b) {
    return a.list == b.list && a.all == b.all;
  };
  const auto same_digests = [](const ReplicaDigests& a, const ReplicaDigests& b) { return a.tensors == b.tensors; };
  for (auto& [group, reports] : from.samples) merge_reports(into.samples[group], reports, same_samples);
  merge_reports(into.replicated_values, from.replicated_values, same_samples);
  for (auto& [group, reports] : from.replicas) merge_reports(into.replicas[group], reports, same_digests);
}

// A member that some ranks lack is not the same on all ranks.
void merge_values(Vote& into, const Vote& from) {
  for (auto& [name, digest] : into.values) {
    const auto other = from.values.find(name);
    if (other == from.values.end() || other->second != digest) digest.reset();
  }
  for (const auto& [name, digest] : from.values) into.values.try_emplace(name, std::nullopt);
}

// The first tensor that differs. The lists are known to differ.
std::string first_difference(const Digests& a, const Digests& b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  if (in_a == a.end()) return in_b->first;
  if (in_b == b.end()) return in_a->first;
  return std::min(in_a->first, in_b->first);
}

constexpr std::string_view kNamedLater = " (the saves that follow compare every byte, and name it)";

// Two reports that sampled the same list and got different digests.
std::optional<std::pair<const ReplicaSamples*, const ReplicaSamples*>> find_different(
    const std::vector<ReplicaSamples>& reports) {
  for (auto one = reports.begin(); one != reports.end(); ++one) {
    const auto other = std::ranges::find(one + 1, reports.end(), one->list, &ReplicaSamples::list);
    if (other != reports.end()) return std::pair(&*one, &*other);
  }
  return std::nullopt;
}

// The first name for which the digests differ, or that one of them lacks. Null: it is not among those that are listed.
const std::string* named_difference(const ReplicaSamples& a, const ReplicaSamples& b) {
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [name, digest] : one->some) {
      const auto same = std::ranges::find(other->some, name, &std::pair<std::string, std::uint64_t>::first);
      const bool lacks = same == other->some.end();
      if (lacks ? other->some.size() == other->count : same->second != digest) return &name;
    }
  }
  return nullptr;
}

// `name` is null if it is not known.
std::string tensor_differs(const std::string* name, const std::string& group, const std::vector<std::uint32_t>& one,
                           const std::vector<std::uint32_t>& other) {
  return fmt::format(
      "{} of replica group '{}' is not the same on {} and {}{}; bring the replicas into step, or save it as a tensor "
      "of "
      "each rank",
      name != nullptr ? fmt::format("tensor '{}'", *name) : "a tensor", group, name_ranks(one), name_ranks(other),
      name != nullptr ? "" : kNamedLater);
}

}  // namespace

RecordRun run_of(std::uint32_t rank, const Digest128& digest) { return {rank, to_hex(digest)}; }

Result<std::vector<RecordReference>> references(const Vote& vote, const RankFiles& files, const std::string& path) {
  std::vector<RecordReference> records;
  for (const RecordRun& run : vote.records) {
    for (std::uint32_t i = 0; i < run.ranks(); ++i) {
      const std::uint32_t rank = run.first + i;
      const auto digest =
          digest128_from_hex(std::string_view(run.digests).substr(i * RecordRun::kDigits, RecordRun::kDigits));
      if (!digest) return corrupt(fmt::format("the digest of rank {}'s record cannot be read", rank), path);
      records.push_back({rank, files.record(rank), *digest});
    }
  }
  return records;
}

// Digests and texts go into the attachment, in the order in which the body names them.
Message to_message(const Vote& vote) {
  Message message;
  Json records = Json::array();
  for (const RecordRun& run : vote.records) {
    records.push_back({{"first", run.first}, {"ranks", run.ranks()}});
    message.attachment += run.digests;
  }
  Json parts = Json::array();
  for (const IndexPart& part : vote.index_parts) {
    parts.push_back(
        {{"rank", part.rank}, {"ranks", part.ranks}, {"digest", to_hex(part.digest)}, {"bytes", part.text.size()}});
    message.attachment += part.text;
  }
  Json samples = Json::array();
  for (const auto& [group, reports] : vote.samples) {
    for (const ReplicaSamples& each : reports) {
      samples.push_back(samples_to_json(each));
      samples.back()["group"] = group;
    }
  }
  Json replicated_values = Json::array();
  for (const ReplicaSamples& each : vote.replicated_values) replicated_values.push_back(samples_to_json(each));
  Json values = Json::object();
  for (const auto& [name, digest] : vote.values) values[name] = digest ? Json(to_hex(*digest)) : Json();
  Json failures = Json::array();
  for (const Vote::Failure& failure : vote.failures) {
    Json entry = {{"rank", failure.rank}, {"why", failure.why}};
    if (failure.no_space) entry["no_space"] = true;
    if (failure.replicas_differ) entry["replicas_differ"] = true;
    failures.push_back(std::move(entry));
  }
  message.body = {{"records", std::move(records)}, {"index_parts", std::move(parts)},
                  {"size_bytes", vote.size_bytes}, {"replicas", replicas_to_json(vote)},
                  {"samples", std::move(samples)}, {"replicated_values", std::move(replicated_values)},
                  {"values", std::move(values)},   {"failures", std::move(failures)}};
  return message;
}

Result<Vote> parse_vote(const Message& message, const std::string& path) {
  const Json& json = message.body;
  Vote vote;
  std::string_view attached = message.attachment;
  SW_TRY(parse_records(json, attached, vote, path));
  SW_TRY(parse_index_parts(json, attached, vote, path));
  SW_ASSIGN(vote.size_bytes, json_u64(json, "size_bytes", path));
  SW_TRY(parse_replicas(json, vote, path));
  SW_TRY(parse_all_samples(json, vote, path));
  SW_TRY(parse_values(json, vote, path));
  SW_ASSIGN(const Json* failures, json_array(json, "failures", path));
  for (const Json& entry : *failures) {
    Vote::Failure failure;
    SW_ASSIGN(failure.rank, json_u32(entry, "rank", path));
    SW_ASSIGN(failure.why, json_string(entry, "why", path));
    failure.no_space = entry.contains("no_space");
    failure.replicas_differ = entry.contains("replicas_differ");
    vote.failures.push_back(std::move(failure));
  }
  return vote;
}

void merge(Vote& into, Vote from) {
  merge_records(into.records, from.records);
  std::ranges::move(from.index_parts, std::back_inserter(into.index_parts));
  std::ranges::sort(into.index_parts, {}, &IndexPart::rank);
  into.size_bytes += from.size_bytes;
  merge_replicas(into, from);
  merge_values(into, from);
  std::ranges::move(from.failures, std::back_inserter(into.failures));
}

std::optional<std::string> replica_mismatch(const Vote& vote) {
  for (const auto& [group, reports] : vote.replicas) {
    if (reports.size() < 2) continue;
    const std::string name = first_difference(reports[0].tensors, reports[1].tensors);
    return tensor_differs(&name, group, reports[0].ranks, reports[1].ranks);
  }
  for (const auto& [group, reports] : vote.samples) {
    const auto differ = find_different(reports);
    if (!differ) continue;
    const auto& [one, other] = *differ;
    return tensor_differs(named_difference(*one, *other), group, one->ranks, other->ranks);
  }
  if (const auto differ = find_different(vote.replicated_values)) {
    const auto& [one, other] = *differ;
    const std::string* const name = named_difference(*one, *other);
    return fmt::format(
        "{} is not the same on {} and {}{}; bring the ranks into step, or save it as a value of each rank",
        name != nullptr ? fmt::format("replicated value '{}'", *name) : "a replicated value", name_ranks(one->ranks),
        name_ranks(other->ranks), name != nullptr ? "" : kNamedLater);
  }
  return std::nullopt;
}

std::vector<std::string> rank_local_values(const Vote& vote) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : vote.values) {
    if (!digest) names.push_back(name);
  }
  return names;
}

std::string describe(const std::vector<Vote::Failure>& failures) {
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> reasons;  // in the order of the failures
  for (const Vote::Failure& failure : failures) {
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
