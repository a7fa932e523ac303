#include "ranks/merged_index.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "layout/name_table.hpp"
#include "ranks/rank_transport.hpp"
#include "tensor/box.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

std::unexpected<Error> disagree(std::string what) { return fail(ErrorKind::kMismatch, std::move(what)); }

std::string holders_of(const IndexEntry& entry) {
  std::set<std::uint32_t> ranks;
  for (const IndexShard& shard : entry.shards) ranks.insert(rank_of_file(shard.file).value_or(0));
  if (ranks.empty()) return "no rank holds";
  return fmt::format("{} {}", name_ranks({ranks.begin(), ranks.end()}), ranks.size() == 1 ? "holds" : "hold");
}

std::string describe_fault(const IndexEntry& entry, const TilingFault& fault) {
  if (!fault.both) {
    return fmt::format(
        "tensor '{}' of shape [{}] is not complete: nobody has {}, {} elements are missing in all, and {} parts of it; "
        "give boxes that tile it",
        entry.name, fmt::join(entry.shape, ", "), to_string(fault.region.view()), fault.missing, holders_of(entry));
  }
  const auto place = [&](std::size_t shard) {
    const IndexShard& of = entry.shards[shard];
    return fmt::format("{} of rank {}", to_string(BoxView{of.box_offset, of.box_shape}),
                       rank_of_file(of.file).value_or(0));
  };
  return fmt::format(
      "tensor '{}' of shape [{}] is stored twice in part: {} lies in {} and in {}; give boxes that tile it", entry.name,
      fmt::join(entry.shape, ", "), to_string(fault.region.view()), place(fault.both->first),
      place(fault.both->second));
}

class IndexMerger {
 public:
  IndexMerger(std::vector<std::vector<IndexEntry>> parts, std::span<const IndexPart> from, Scope scope)
      : parts_(std::move(parts)),
        from_(from),
        scope_(scope),
        names_(count(parts_), [this](std::uint32_t index) -> std::string_view { return all_[index].name; }) {
    all_.reserve(count(parts_));
    first_rank_.reserve(count(parts_));
  }

  Result<MergedIndex> run() {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      for (IndexEntry& entry : parts_[i]) SW_TRY(add(std::move(entry), from_[i]));
      parts_[i] = {};
    }
    SW_TRY(check_apart());
    SW_TRY(check_ties());
    if (scope_ == Scope::kEverybody) SW_TRY(check_complete(all_));
    merged_.text = serialize_index(all_);
    if (shards_ > kMaxShards || merged_.text.size() > kMaxIndexBytes) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("the index of all ranks has {} boxes and {} bytes; readers take {} and {}", shards_,
                              merged_.text.size(), kMaxShards, kMaxIndexBytes));
    }
    merged_.digest = digest128(merged_.text);
    merged_.tensor_count = all_.size();
    return std::move(merged_);
  }

 private:
  static std::size_t count(const std::vector<std::vector<IndexEntry>>& parts) {
    std::size_t total = 0;
    for (const auto& part : parts) total += part.size();
    return total;
  }

  Status add(IndexEntry entry, const IndexPart& part) {
    const std::optional<std::uint32_t> owner = rank_of_local_name(entry.name);
    const auto strays = [&](std::optional<std::uint32_t> rank) {
      return !rank || *rank < part.rank || *rank - part.rank >= part.ranks;
    };
    const auto strays_to = [&](const IndexShard& shard) { return strays(rank_of_file(shard.file)); };
    if (std::ranges::any_of(entry.shards, strays_to) || (owner && strays(owner))) {
      return disagree(fmt::format("rank {} claims tensor '{}', which belongs to another rank", part.rank, entry.name));
    }
    // The rank to name in errors: one that holds some of the tensor, or the group leader if nobody holds any of it.
    const std::uint32_t rank =
        entry.shards.empty() ? part.rank : rank_of_file(entry.shards.front().file).value_or(part.rank);
    (owner ? merged_.has_local : merged_.has_global) = true;
    shards_ += entry.shards.size();
    const bool tied = !owner && !entry.alias_of.empty();
    all_.push_back(std::move(entry));
    first_rank_.push_back(rank);
    const auto known = names_.insert(static_cast<std::uint32_t>(all_.size() - 1));
    if (tied) tied_in_[known.value_or(static_cast<std::uint32_t>(all_.size() - 1))].insert(part.rank);
    if (!known) return {};
    entry = std::move(all_.back());
    all_.pop_back();
    first_rank_.pop_back();
    return unite(all_[*known], first_rank_[*known], std::move(entry), rank);
  }

  // A tensor of one rank must not have the name of a global tensor: that rank would see two tensors of one name.
  Status check_apart() const {
    if (!merged_.has_local || !merged_.has_global) return {};
    for (const IndexEntry& entry : all_) {
      const std::optional<std::uint32_t> owner = rank_of_local_name(entry.name);
      if (!owner) continue;
      const std::string_view name = std::string_view(entry.name).substr(local_name(*owner, {}).size());
      if (const auto global = names_.find(name)) {
        return disagree(
            fmt::format("tensor '{}' is rank {}'s own, but on rank {} a part of a global tensor; pass it in the same "
                        "way on all ranks",
                        name, *owner, first_rank_[*global]));
      }
    }
    return {};
  }

  // A tied tensor must be tied on every rank that holds a part of the stored one. Otherwise a restore would create the
  // second name on a rank that never had it. Within a group, its leader has checked this.
  Status check_ties() const {
    for (const auto& [alias, parts] : tied_in_) {
      const auto stored = names_.find(all_[alias].alias_of);
      if (!stored) continue;
      for (const IndexShard& shard : all_[*stored].shards) {
        const std::uint32_t holder = rank_of_file(shard.file).value_or(0);
        const auto part = std::ranges::upper_bound(from_, holder, {}, &IndexPart::rank) - 1;
        if (parts.contains(part->rank)) continue;
        return disagree(fmt::format(
            "tensor '{}' is tied to '{}' on {}, but not there on rank {}, which holds a part of that; tie it alike on "
            "all ranks",
            all_[alias].name, all_[*stored].name, name_ranks({parts.begin(), parts.end()}), holder));
      }
    }
    return {};
  }

  static Status unite(IndexEntry& into, std::uint32_t into_rank, IndexEntry from, std::uint32_t rank) {
    if (into.dtype != from.dtype || into.shape != from.shape) {
      return disagree(fmt::format("tensor '{}' is {} of shape [{}] on rank {}, but {} of shape [{}] on rank {}",
                                  into.name, dtype_name(into.dtype), fmt::join(into.shape, ", "), into_rank,
                                  dtype_name(from.dtype), fmt::join(from.shape, ", "), rank));
    }
    if (into.alias_of != from.alias_of) {
      const auto tie = [](const IndexEntry& entry) {
        return entry.alias_of.empty() ? std::string("to none") : fmt::format("to '{}'", entry.alias_of);
      };
      return disagree(fmt::format("tensor '{}' is tied {} on rank {}, but {} on rank {}; tie it alike on all ranks",
                                  into.name, tie(into), into_rank, tie(from), rank));
    }
    std::ranges::move(from.shards, std::back_inserter(into.shards));
    return {};
  }

  std::vector<std::vector<IndexEntry>> parts_;
  const std::span<const IndexPart> from_;
  const Scope scope_;
  std::vector<IndexEntry> all_;
  std::vector<std::uint32_t> first_rank_;  // the first rank that has the entry
  std::map<std::uint32_t, std::set<std::uint32_t>>
      tied_in_;  // entry -> parts, by rank, in which it is tied to another one
  NameTable names_;
  std::size_t shards_ = 0;
  MergedIndex merged_;
};

}  // namespace

Status check_complete(std::span<const IndexEntry> entries) {
  std::vector<BoxView> boxes;
  for (const IndexEntry& entry : entries) {
    if (!entry.alias_of.empty()) continue;
    boxes.clear();
    for (const IndexShard& shard : entry.shards) boxes.push_back({shard.box_offset, shard.box_shape});
    if (const auto fault = check_tiling(entry.shape, boxes)) return disagree(describe_fault(entry, *fault));
  }
  return {};
}

Result<MergedIndex> merge_index(std::span<const IndexPart> parts, Scope scope) {
  std::vector<std::vector<IndexEntry>> entries;
  entries.reserve(parts.size());
  for (const IndexPart& part : parts) {
    auto parsed = digest128(part.text) == part.digest
                      ? parse_index(part.text, {})
                      : fail(ErrorKind::kCorrupt, "its text does not have the digest it came with");
    if (!parsed) return disagree(fmt::format("rank {}'s part of the index: {}", part.rank, parsed.error().message));
    entries.push_back(std::move(*parsed));
  }
  return IndexMerger(std::move(entries), parts, scope).run();
}

Status fill_commit(Manifest& manifest, const Vote& votes, const MergedIndex& index, const RankFiles& files,
                   const std::string& path) {
  // A reader that does not know these features must refuse the version, not misread it.
  if (index.has_local || !index.has_global) manifest.required_features.emplace_back(kRankLocalFeature);
  if (index.has_global) manifest.required_features.emplace_back(kGlobalTensorsFeature);
  manifest.rank_local_values = rank_local_values(votes);
  SW_ASSIGN(manifest.records, references(votes, files, path));
  manifest.index_digest = index.digest;
  manifest.size_bytes = votes.size_bytes;
  manifest.tensor_count = index.tensor_count;
  return {};
}

Result<std::shared_ptr<const MergedIndex>> IndexCache::merge(std::uint32_t attempt, std::vector<IndexPart> parts,
                                                             Scope scope) {
  const bool known = merged_ && attempt_ == attempt;
  const auto same = [](const IndexPart& a, const IndexPart& b) { return a.rank == b.rank && a.digest == b.digest; };
  if (known && std::ranges::equal(parts, parts_, same)) return merged_;

  auto kept = parts_.begin();
  for (IndexPart& part : parts) {
    if (!part.text.empty()) continue;
    while (kept != parts_.end() && kept->rank < part.rank) ++kept;
    if (!known || kept == parts_.end() || !same(*kept, part)) {
      return disagree(
          fmt::format("rank {} only named its part of the index, but its group leader does not have the text; the next "
                      "step sends it",
                      part.rank));
    }
    part.text = kept->text;
  }
  SW_ASSIGN(MergedIndex merged, merge_index(parts, scope));
  attempt_ = attempt;
  parts_ = std::move(parts);
  merged_ = std::make_shared<const MergedIndex>(std::move(merged));
  return merged_;
}

bool IndexCache::needs_text(std::uint32_t attempt, const Digest128& digest) {
  sent_ = SentPart{attempt, digest};
  return parent_has_ != sent_;
}

}  // namespace slackwater
