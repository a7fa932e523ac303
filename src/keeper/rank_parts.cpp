#include "keeper/rank_parts.hpp"

#include <algorithm>
#include <utility>

#include "base/json.hpp"
#include "base/result.hpp"
#include "ranks/merged_index.hpp"

namespace slackwater {
namespace {

// What rank 0 would decide if all ranks voted now.
Result<PartsCommit> commit_of_all(std::span<const RankPart> parts, const std::string& where) {
  Vote votes;
  for (const RankPart& part : parts) {
    SW_ASSIGN(Json body, parse_json(part.version.vote, where));
    SW_ASSIGN(Vote vote, parse_vote(Message(std::move(body), part.version.index), where));
    merge(votes, std::move(vote));
  }
  if (!votes.failures.empty()) return fail(ErrorKind::kMismatch, describe(votes.failures), where);
  if (auto mismatch = replica_mismatch(votes)) return fail(ErrorKind::kMismatch, std::move(*mismatch), where);
  SW_ASSIGN(const MergedIndex index, merge_index(votes.index_parts, Scope::kEverybody));
  // What only rank 0 knows is in a manifest of its own. It names no records yet, so it is written as an abort.
  SW_ASSIGN(Manifest manifest, parse_manifest(parts.front().version.manifest, where));
  manifest.decision = Decision::kCommit;
  manifest.files = RankFiles::of_world(manifest.world);
  SW_TRY(fill_commit(manifest, votes, index, manifest.files, where));
  return PartsCommit{.manifest = std::move(manifest), .index = index.text};
}

}  // namespace

Result<PartsCommit> commit_of(std::span<const RankPart> parts, const std::string& where) {
  const StagedVersion& first = parts.front().version;
  if (parts.size() != first.world)
    return fail(ErrorKind::kUnsupported, "a step of several ranks cannot be committed by one keeper", where);
  PartsCommit commit;
  if (first.world > 1) {
    SW_ASSIGN(commit, commit_of_all(parts, where));
  } else {
    SW_ASSIGN(commit.manifest, parse_manifest(first.manifest, where));
    commit.index = first.index;
  }
  const Manifest& manifest = commit.manifest;
  if (VersionName{manifest.step, manifest.attempt} != first.name || manifest.world != first.world ||
      manifest.decision != Decision::kCommit)
    return fail(ErrorKind::kCorrupt, "the manifest in the keeper's memory is of another version", where);
  return commit;
}

}  // namespace slackwater
